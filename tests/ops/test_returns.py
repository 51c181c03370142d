import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.errors import SpecError
from srl.ops.returns import continuation, discounts, explained_variance, generalised_advantages


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def random_trajectory(seed, T=6, B=3):
    """Rows as an env writes them: the row after an end is invalid and holds no reward."""
    rng = np.random.default_rng(seed)
    ends, valid = rng.random((2, T, B)) < 0.2, np.ones((T, B), bool)
    for t in range(1, T):
        valid[t] = ~(ends[0, t - 1] | ends[1, t - 1])
        ends[:, t] &= valid[t]
    rewards = np.where(valid, rng.normal(size=(T, B)), 0).astype(np.float32)
    values = rng.normal(size=(T + 1, B)).astype(np.float32)
    return rewards, values, ends[0], ends[1], valid


def naive_advantage(t, b, rewards, values, terminated, truncated, valid, *, gamma, gae_lambda):
    """Sum of (γλ)^k δ_{t+k} until the episode or the block ends."""
    total, weight = 0.0, 1.0
    for k in range(t, len(rewards)):
        bootstrap = 0.0 if terminated[k, b] else gamma * values[k + 1, b]
        total += weight * (rewards[k, b] + bootstrap - values[k, b])
        weight *= gamma * gae_lambda
        if terminated[k, b] or truncated[k, b] or not valid[k, b]:
            break
    return total


def test_discounts_by_hand():
    assert discounts(np.array([False, True]), 0.5).tolist() == [0.5, 0.0]


def test_continuation_by_hand():
    bits = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0]], bool)
    assert continuation(*bits).tolist() == [1.0, 0.0, 0.0, 0.0]


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
    valid = ~column(0, terminated or truncated, 0, dtype=bool)
    result = generalised_advantages(
        column(1, 2, 3),
        column(1, 2, 3, 4),
        first if terminated else false,
        first if truncated else false,
        valid,
        gamma=0.5,
        gae_lambda=0.5,
    )
    keep = valid[:, 0]
    np.testing.assert_allclose(result[keep, 0], np.array(expected)[keep])
    assert result.dtype == np.float32


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_advantages_equal_naive_loop(seed, gamma, gae_lambda):
    rows = random_trajectory(seed)
    result = generalised_advantages(*rows, gamma=gamma, gae_lambda=gae_lambda)
    for t, b in np.argwhere(rows[-1]):
        naive = naive_advantage(t, b, *rows, gamma=gamma, gae_lambda=gae_lambda)
        np.testing.assert_allclose(result[t, b], naive, atol=1e-4)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1))
def test_advantages_when_lambda_is_one_are_monte_carlo(seed, gamma):
    rewards, values, terminated, truncated, valid = rows = random_trajectory(seed)
    result = generalised_advantages(*rows, gamma=gamma, gae_lambda=1.0)
    for t, b in np.argwhere(valid):
        end = t
        while end < len(rewards) - 1 and not (terminated[end, b] or truncated[end, b]):
            end += 1
        total = sum(gamma ** (k - t) * rewards[k, b] for k in range(t, end + 1))
        if not terminated[end, b]:
            total += gamma ** (end + 1 - t) * values[end + 1, b]
        np.testing.assert_allclose(result[t, b], total - values[t, b], atol=1e-4)


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_truncation_bootstraps_and_termination_does_not(seed):
    rewards, values, *_ = random_trajectory(seed)
    end, false = np.zeros(rewards.shape, bool), np.zeros(rewards.shape, bool)
    end[2] = True
    valid = np.ones(rewards.shape, bool)
    valid[3] = False
    moved = values.copy()
    moved[3] += 1

    def change(terminated, truncated):
        old, new = (
            generalised_advantages(
                rewards, v, terminated, truncated, valid, gamma=0.9, gae_lambda=1
            )
            for v in (values, moved)
        )
        return (new - old)[2]

    np.testing.assert_allclose(change(end, false), 0.0)
    np.testing.assert_allclose(change(false, end), 0.9, rtol=1e-4)


def test_advantages_when_shapes_differ_raise():
    rewards, values, *rest = random_trajectory(0)
    with pytest.raises(SpecError, match="one row more"):
        generalised_advantages(rewards, values[:-1], *rest, gamma=1, gae_lambda=1)
    with pytest.raises(SpecError, match="terminated has shape"):
        generalised_advantages(rewards, values, rest[0][1:], *rest[1:], gamma=1, gae_lambda=1)


def test_explained_variance_by_hand():
    returns = np.array([1.0, 3.0], np.float32)
    assert explained_variance(returns, np.zeros(2, np.float32)) == 1.0
    assert explained_variance(returns, returns) == 0.0
    assert explained_variance(returns, np.array([-1.0, 3.0], np.float32)) == -3.0
    assert explained_variance(np.ones(2, np.float32), returns) == 0.0
