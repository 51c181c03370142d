import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.errors import SpecError
from srl.ops.returns import generalised_advantages
from srl.ops.vtrace import vtrace


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def random_trajectory(seed, T=8, B=3, waiting=0.0):
    """Rows as an env writes them: the row after an end is invalid and holds no reward."""
    rng = np.random.default_rng(seed)
    ends, valid = rng.random((2, T, B)) < 0.15, np.ones((T + 1, B), bool)
    for t in range(1, T + 1):
        valid[t] = ~(ends[0, t - 1] | ends[1, t - 1])
        if t < T:
            ends[:, t] &= valid[t]
    rewards = np.where(valid[:-1], rng.normal(size=(T, B)), 0).astype(np.float32)
    values = rng.normal(size=(T + 1, B)).astype(np.float32)
    acting = rng.random((T + 1, B)) >= waiting
    ratios = np.exp(rng.normal(size=(T, B))).astype(np.float32)
    return ratios, (rewards, values, *ends), {"valid": valid, "acting": acting}


def steps_of(rows, masks, b, gamma):
    """By row at which agent b acts: δ and the row that follows in its episode; None: not known."""
    rewards, values, terminated, truncated = (array[:, b] for array in rows)
    acting, last, steps = masks["acting"][:, b], len(rewards), {}
    for t in np.flatnonzero((masks["valid"][:, b] & acting)[:-1]):
        paid, s = rewards[t], t
        while not (terminated[s] or truncated[s]) and s + 1 < last and not acting[s + 1]:
            s += 1
            paid += rewards[s]
        is_end = terminated[s] or truncated[s]
        value = 0.0 if terminated[s] else values[s + 1]
        follows = None if is_end or s + 1 == last else s + 1
        is_known = is_end or acting[s + 1]
        steps[t] = (paid + gamma * value - values[t], follows) if is_known else None
    return steps


def naive(ratios, rows, masks, *, gamma, trace_lambda, weight_clip, trace_clip):
    """Target and advantage of each (t, b), by the sum of the paper's equation 1."""
    found = {}
    for b in range(ratios.shape[1]):
        steps = steps_of(rows, masks, b, gamma)

        def error(t, steps=steps, b=b):
            """Sum over s ≥ t of (γλ)^(s−t) · (Π c) · ρ_s·δ_s, in steps that were acted."""
            total, factor = 0.0, 1.0
            while steps.get(t) is not None:
                delta, follows = steps[t]
                total += factor * min(ratios[t, b], weight_clip) * delta
                factor *= gamma * trace_lambda * min(ratios[t, b], trace_clip)
                t = follows
            return total

        for t, step in steps.items():
            if step is not None:
                target = rows[1][t, b] + error(t)
                found[t, b] = target, step[0] + gamma * trace_lambda * error(step[1])
    return found


def test_targets_and_advantages_by_hand():
    # γ = ½, λ = 1, ρ̄ = 1, c̄ = ½; ratios (2, ½, 1) clip to ρ = (1, ½, 1) and c = (½, ½, ½)
    # δ = (1, 2, 3) + ½·(2, 3, 4) − (1, 2, 3) = (1, 1.5, 2)
    # errors: E_2 = 2;  E_1 = ½·1.5 + ½·½·2 = 1.25;  E_0 = 1 + ½·½·1.25 = 1.3125
    targets, advantages, known = vtrace(
        column(2, 0.5, 1),
        column(1, 2, 3),
        column(1, 2, 3, 4),
        *np.zeros((2, 3, 1), bool),
        valid=np.ones((4, 1), bool),
        acting=np.ones((4, 1), bool),
        gamma=0.5,
        trace_lambda=1.0,
        weight_clip=1.0,
        trace_clip=0.5,
    )
    assert known.all()
    assert targets[:, 0].tolist() == [1 + 1.3125, 2 + 1.25, 3 + 2]
    assert advantages[:, 0].tolist() == [1 + 0.5 * 1.25, 1.5 + 0.5 * 2, 2]
    # the paper's policy gradient: r + γ·v_{t+1} − V
    assert advantages[0, 0] == 1 + 0.5 * (2 + 1.25) - 1
    assert targets.dtype == advantages.dtype == np.float32


def test_truncation_bootstraps_from_the_final_observation_by_hand():
    truncated = column(1, 0, 0, dtype=bool)
    targets, advantages, known = vtrace(
        column(0.5, 9, 1),
        column(1, 0, 3),
        column(1, 7, 3, 4),
        np.zeros((3, 1), bool),
        truncated,
        valid=column(1, 0, 1, 1, dtype=bool),
        acting=np.ones((4, 1), bool),
        gamma=0.5,
        trace_lambda=1.0,
        weight_clip=1.0,
        trace_clip=1.0,
    )
    assert known[:, 0].tolist() == [True, False, True]
    assert advantages[0, 0] == 1 + 0.5 * 7 - 1
    assert targets[0, 0] == 1 + 0.5 * (1 + 0.5 * 7 - 1)


OPTIONS = {
    "gamma": st.floats(0, 1),
    "trace_lambda": st.floats(0, 1),
    "weight_clip": st.floats(0.1, 3),
    "trace_clip": st.floats(0.1, 3),
}


@settings(deadline=None)
@given(st.integers(0, 10**6), st.fixed_dictionaries(OPTIONS), st.sampled_from([0.0, 0.5]))
def test_vtrace_equals_the_sum_of_the_paper_for_each_agent(seed, options, waiting):
    ratios, rows, masks = random_trajectory(seed, waiting=waiting)
    targets, advantages, known = vtrace(ratios, *rows, **masks, **options)
    expected = naive(ratios, rows, masks, **options)
    assert {tuple(at) for at in np.argwhere(known)} == expected.keys()
    for t, b in np.argwhere(known):
        found = targets[t, b], advantages[t, b]
        np.testing.assert_allclose(found, expected[t, b], rtol=1e-3, atol=1e-3)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.0, 0.5]))
def test_on_policy_with_clips_of_at_least_one_it_is_generalised_advantages(
    seed, gamma, trace_lambda, waiting
):
    ratios, rows, masks = random_trajectory(seed, waiting=waiting)
    targets, advantages, known = vtrace(
        np.ones_like(ratios),
        *rows,
        **masks,
        gamma=gamma,
        trace_lambda=trace_lambda,
        weight_clip=1.0,
        trace_clip=2.0,
    )
    expected, same = generalised_advantages(*rows, **masks, gamma=gamma, gae_lambda=trace_lambda)
    np.testing.assert_array_equal(known, same)
    np.testing.assert_array_equal(advantages, expected)
    np.testing.assert_array_equal(targets[known], (rows[1][:-1] + expected)[known])


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5]))
def test_ratios_of_rows_that_nobody_acts_on_have_no_influence(seed, waiting):
    ratios, rows, masks = random_trajectory(seed, waiting=waiting)
    options = {"gamma": 0.9, "trace_lambda": 0.8, "weight_clip": 1.0, "trace_clip": 1.0}
    expected = vtrace(ratios, *rows, **masks, **options)
    acts = masks["valid"] & masks["acting"]
    others = np.where(acts[:-1], ratios, np.float32(1e30))
    for a, b in zip(vtrace(others, *rows, **masks, **options), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_vtrace_when_shapes_differ_raises():
    ratios, rows, masks = random_trajectory(0)
    options = {"gamma": 1, "trace_lambda": 1, "weight_clip": 1.0, "trace_clip": 1.0}
    with pytest.raises(SpecError, match="ratios has shape"):
        vtrace(ratios[1:], *rows, **masks, **options)
