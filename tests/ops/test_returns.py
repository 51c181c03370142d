import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.algorithm import Records
from srl.core.block import Block, route_layout
from srl.core.env import EnvRequest
from srl.core.errors import SpecError
from srl.core.spec import Spec
from srl.envs.toy import Mortal, Turns
from srl.ops.returns import generalised_advantages, n_step_returns
from srl.rollout.episodes import Episodes


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
    return (rewards, values, *ends), {"valid": valid, "acting": acting}


def naive(rows, masks, *, gamma, gae_lambda):
    """Advantage of each (t, b), from the list of what one agent did and got; None: not known."""
    rewards, values, terminated, truncated = rows
    found = {}
    for b in range(rewards.shape[1]):
        steps, t = [], 0  # of an episode: row, reward until the next, what follows
        while t < len(rewards):
            if not masks["valid"][t, b]:
                t += 1
                continue
            begin, paid, follows = t, rewards[t, b], None
            while follows is None:
                if terminated[t, b]:
                    follows = ("end", 0.0)
                elif truncated[t, b]:
                    follows = ("end", values[t + 1, b])
                elif t + 1 == len(rewards):
                    here = masks["acting"][t + 1, b]
                    follows = ("cut", values[t + 1, b]) if here else ("unknown", 0.0)
                elif masks["acting"][t + 1, b]:
                    follows = ("next", values[t + 1, b])
                else:
                    t += 1
                    paid += rewards[t, b]
            if masks["acting"][begin, b]:
                steps.append((begin, paid, *follows))
            t += 1
        later = 0.0
        for t, paid, how, value in reversed(steps):
            later = 0.0 if how != "next" else later
            advantage = paid + gamma * value - values[t, b] + gamma * gae_lambda * later
            found[t, b] = None if how == "unknown" else advantage
            later = found[t, b] or 0.0
    return found


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        # no end: δ = (1, 2, 3) + ½·(2, 3, 4) − (1, 2, 3) = (1, 1.5, 2); γλ = ¼
        (0, 0, [1 + 0.25 * (1.5 + 0.25 * 2), 1.5 + 0.25 * 2, 2.0]),
        # terminated at row 0: δ_0 = 1 − 1, nothing flows back
        (1, 0, [0.0, 2.0, 2.0]),
        # truncated at row 0: δ_0 = 1 + ½·2 − 1, from the final observation in row 1
        (0, 1, [1.0, 2.0, 2.0]),
    ],
)
def test_advantages_by_hand(terminated, truncated, expected):
    false = np.zeros((3, 1), bool)
    first = column(1, 0, 0, dtype=bool)
    valid = ~column(0, terminated or truncated, 0, 0, dtype=bool)
    result, known = generalised_advantages(
        column(1, 2, 3),
        column(1, 2, 3, 4),
        first if terminated else false,
        first if truncated else false,
        valid=valid,
        acting=np.ones((4, 1), bool),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert known.tolist() == valid[:-1].tolist()
    np.testing.assert_allclose(result[known], np.array(expected)[known[:, 0]])
    assert result.dtype == np.float32


def test_a_waiting_lane_is_paid_for_what_it_did_before_by_hand():
    # acts at rows 0 and 2; row 1 pays 10 to row 0; row 3 pays to row 2, whose next row is unknown
    acting = column(1, 0, 1, 0, 0, dtype=bool)
    result, known = generalised_advantages(
        column(1, 10, 2, 20),
        column(5, 99, 7, 99, 99),
        *np.zeros((2, 4, 1), bool),
        valid=np.ones((5, 1), bool),
        acting=acting,
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert known[:, 0].tolist() == [True, False, False, False]
    assert result[0, 0] == 11 + 0.5 * 7 - 5


def test_a_lane_that_dies_while_it_waits_is_paid_by_hand():
    terminated = column(0, 1, 0, dtype=bool)
    result, known = generalised_advantages(
        column(1, 10, 0),
        column(5, 99, 99, 99),
        terminated,
        np.zeros((3, 1), bool),
        valid=column(1, 1, 0, 0, dtype=bool),
        acting=column(1, 0, 0, 0, dtype=bool),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert known[:, 0].tolist() == [True, False, False]
    assert result[0, 0] == 11 - 5


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.0, 0.5]))
def test_advantages_equal_a_naive_computation_for_each_agent(seed, gamma, gae_lambda, waiting):
    rows, masks = random_trajectory(seed, waiting=waiting)
    result, known = generalised_advantages(*rows, **masks, gamma=gamma, gae_lambda=gae_lambda)
    expected = naive(rows, masks, gamma=gamma, gae_lambda=gae_lambda)
    assert {tuple(at) for at in np.argwhere(known)} == {
        at for at, value in expected.items() if value is not None
    }
    for t, b in np.argwhere(known):
        np.testing.assert_allclose(result[t, b], expected[t, b], atol=1e-4)


def played(toy, seed, rows=40):
    """A block of three envs of a toy, played at random."""
    env = toy.make_batch(
        EnvRequest(
            name="toy",
            options={},
            wrappers=(),
            num_envs=3,
            seed=seed,
            first_env=0,
            reseed="episode",
        )
    )
    agent = next(iter(env.spec.agents.values()))
    records, lanes = Records(Spec((agent.action.field,))), 3 * len(env.spec.agents)
    block = Block.allocate(route_layout(agent, records, rollout=rows, lanes=lanes, envs=3))
    rng = np.random.default_rng(seed)
    env.reset([block.observation_rows(agent, 0)])
    for t in range(rows):
        block["action"][t] = rng.integers(2, size=lanes)
        actions = block["action"][t].reshape(3, -1)
        env.step([actions], [block.outcome_rows(t)], [block.observation_rows(agent, t + 1)])
    return block, rng.normal(size=(rows + 1, lanes)).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("toy", [Turns, Mortal])
def test_advantages_of_agents_that_wait_or_die_equal_a_naive_computation(toy, seed):
    block, values = played(toy, seed)
    rows = (block["reward"][:-1], values, block["terminated"][:-1], block["truncated"][:-1])
    masks = {"valid": block["valid"], "acting": block["acting"]}
    result, known = generalised_advantages(*rows, **masks, gamma=0.9, gae_lambda=0.8)
    expected = naive(rows, masks, gamma=0.9, gae_lambda=0.8)
    moves = block["valid"][:-1] & block["acting"][:-1]
    assert not moves.all()
    assert known.sum() >= moves.sum() - moves.shape[1]  # at most one move a lane is cut off
    for t, b in np.argwhere(moves):
        assert known[t, b] == (expected[t, b] is not None)
        if known[t, b]:
            np.testing.assert_allclose(result[t, b], expected[t, b], atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("toy", [Turns, Mortal])
def test_returns_of_agents_that_wait_or_die_are_what_each_was_paid(toy, seed):
    block, _ = played(toy, seed)
    lanes = block["reward"].shape[1]
    counted, account = [[] for _ in range(lanes)], Episodes(lanes)
    for t in range(len(block["reward"]) - 1):
        for lane, episode in account.observe(block, t).items():
            counted[lane].append(tuple(episode)[:2])
    for lane in range(lanes):
        expected, total, length = [], 0.0, 0
        for t in range(len(block["reward"]) - 1):
            if block["valid"][t, lane]:  # alive: paid whether it moved or not
                total, length = total + float(block["reward"][t, lane]), length + 1
            if block["terminated"][t, lane] or block["truncated"][t, lane]:
                expected.append((total, length))
                total, length = 0.0, 0
        assert counted[lane] == expected
        assert expected


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_truncation_bootstraps_and_termination_does_not(seed):
    (rewards, values, *_), _ = random_trajectory(seed)
    end, false = np.zeros(rewards.shape, bool), np.zeros(rewards.shape, bool)
    end[2] = True
    valid = np.ones(values.shape, bool)
    valid[3] = False
    moved = values.copy()
    moved[3] += 1

    def change(terminated, truncated):
        old, new = (
            generalised_advantages(
                rewards,
                v,
                terminated,
                truncated,
                valid=valid,
                acting=np.ones_like(valid),
                gamma=0.9,
                gae_lambda=1,
            )[0]
            for v in (values, moved)
        )
        return (new - old)[2]

    np.testing.assert_allclose(change(end, false), 0.0)
    np.testing.assert_allclose(change(false, end), 0.9, rtol=1e-4)


def test_advantages_when_shapes_differ_raise():
    (rewards, values, terminated, truncated), masks = random_trajectory(0)
    options = {"gamma": 1, "gae_lambda": 1}
    with pytest.raises(SpecError, match="valid has shape"):
        generalised_advantages(rewards, values[:-1], terminated, truncated, **masks, **options)
    with pytest.raises(SpecError, match="terminated has shape"):
        generalised_advantages(rewards, values, terminated[1:], truncated, **masks, **options)
    short = {name: mask[:-1] for name, mask in masks.items()}
    with pytest.raises(SpecError, match="one row more"):
        generalised_advantages(rewards, values[:-1], terminated, truncated, **short, **options)


def naive_n_step(rewards, terminated, truncated, *, first, valid, acting, steps, gamma):
    """One row at a time."""
    count, lanes = len(rewards) - steps, rewards.shape[1]
    sums, discounts = np.zeros((2, count, lanes), np.float32)
    ends, known = np.zeros((count, lanes), np.int64), np.zeros((count, lanes), bool)
    for t in range(count):
        for b in range(lanes):
            ends[t, b] = t
            if not (valid[t, b] and acting[t, b]):
                continue
            total, factor = 0.0, 1.0
            for row in range(t, t + steps):
                if row > t and valid[row, b] and acting[row, b]:
                    factor *= gamma
                total += factor * rewards[row, b]
                found = None
                if terminated[row, b]:
                    found = (total, 0.0)
                elif first[row + 1, b] and not truncated[row, b]:
                    break  # it broke off
                elif truncated[row, b] or (valid[row + 1, b] and acting[row + 1, b]):
                    found = (total, factor * gamma)
                if found is not None:
                    sums[t, b], discounts[t, b] = found
                    ends[t, b], known[t, b] = row + 1, True
                if terminated[row, b] or truncated[row, b]:
                    break
    return sums, discounts, ends, known


ONE = {"steps": 1, "gamma": 0.5}


def test_n_step_returns_by_hand():
    """One lane: three steps, the third ends the episode, its final row, and a new episode."""
    rewards = np.array([[1.0], [2.0], [4.0], [0.0], [8.0], [16.0]], np.float32)
    no = np.zeros((6, 1), bool)
    ends_at_2, valid = no.copy(), np.ones((6, 1), bool)
    ends_at_2[2], valid[3] = True, False
    every, first = np.ones((6, 1), bool), no.copy()
    first[4] = True
    sums, discounts, ends, known = n_step_returns(
        rewards, ends_at_2, no, first=first, valid=valid, acting=every, steps=2, gamma=0.5
    )
    assert sums[:, 0].tolist() == [1 + 0.5 * 2, 2 + 0.5 * 4, 4, 0]
    assert discounts[:, 0].tolist() == [0.25, 0, 0, 0]
    assert ends[:, 0].tolist() == [2, 3, 3, 3]
    assert known[:, 0].tolist() == [True, True, True, False]
    _, discounts, ends, _ = n_step_returns(
        rewards, no, ends_at_2, first=first, valid=valid, acting=every, steps=2, gamma=0.5
    )
    assert discounts[:3, 0].tolist() == [0.25, 0.25, 0.5]  # bootstrapped from the final row
    assert ends[:3, 0].tolist() == [2, 3, 3]


def test_n_step_returns_stop_where_an_episode_broke_off():
    """Rows 0 and 1 were sent before the env failed; of row 2 nothing is known, row 3 begins anew."""
    rewards = column(1, 2, 0, 100, 100, 100)
    no = np.zeros((6, 1), bool)
    sums, discounts, ends, known = n_step_returns(
        rewards,
        no,
        no,
        first=column(1, 0, 0, 1, 0, 0, dtype=bool),
        valid=column(1, 1, 0, 1, 1, 1, dtype=bool),
        acting=~no,
        steps=3,
        gamma=0.5,
    )
    assert known[:, 0].tolist() == [True, False, False]
    assert (sums[0, 0], discounts[0, 0], ends[0, 0]) == (1, 0.5, 1)
    straight = n_step_returns(  # the next episode follows at once
        rewards[:3], no[:3], no[:3], first=column(0, 1, 0) > 0, valid=~no[:3], acting=~no[:3], **ONE
    )
    assert straight[3][:, 0].tolist() == [False, True]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_n_step_returns_are_those_of_a_loop(count, steps, seed):
    rng = np.random.default_rng(seed)
    shape = (count + steps, 3)
    rewards = rng.normal(size=shape).astype(np.float32)
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    valid, acting = np.ones(shape, bool), rng.random(shape) < 0.8
    first = np.zeros(shape, bool)
    for b in range(3):
        for t in range(shape[0]):
            if t and (terminated[t - 1, b] or truncated[t - 1, b]):
                valid[t, b] = False
                continue
            first[t, b] = not (t and valid[t - 1, b]) or rng.random() < 0.1  # or it broke off
            if rng.random() < 0.1:  # forgotten: nothing of it is learned
                valid[t, b] = False
            elif rng.random() < 0.3:
                (terminated if rng.random() < 0.5 else truncated)[t, b] = True
    options = {"first": first, "valid": valid, "acting": acting, "steps": steps, "gamma": 0.9}
    ours = n_step_returns(rewards, terminated, truncated, **options)
    theirs = naive_n_step(rewards, terminated, truncated, **options)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_too_few_rows_for_n_steps_are_refused():
    rows = np.zeros((2, 1), np.float32)
    no = np.zeros((2, 1), bool)
    with pytest.raises(SpecError, match="too few"):
        n_step_returns(rows, no, no, first=no, valid=~no, acting=~no, steps=2, gamma=0.9)
