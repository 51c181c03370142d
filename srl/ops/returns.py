"""Returns and advantages of trajectories. `T`: rows in time; `B`: lanes.

Episode ends follow `core/env.py`: where row `t` ends an episode, row `t+1` holds the final
observation and is not valid, so `values[t+1]` is what a truncated episode bootstraps from.
"""

import numpy as np

from srl.core.errors import SpecError
from srl.ops.checks import check_rank, check_same_shape


def discounts(terminated: np.ndarray, gamma: float) -> np.ndarray:
    """Weight of the next value, γ(1 − terminated): truncation does not stop the return.

    Args:
        terminated: `[...]` bool.
        gamma: discount of one step.

    Returns:
        `[...]` float32.
    """
    return np.where(terminated, np.float32(0), np.float32(gamma))


def continuation(terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Whether row `t+1` continues the trajectory of row `t`: 1 − (terminated | truncated | ~valid).

    Args:
        terminated: `[...]` bool.
        truncated: `[...]` bool.
        valid: `[...]` bool.

    Returns:
        `[...]` float32, 0 or 1.
    """
    check_same_shape(terminated=terminated, truncated=truncated, valid=valid)
    return (~(terminated | truncated) & valid).astype(np.float32)


def generalised_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    valid: np.ndarray,
    *,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16).

    δ_t = r_t + γ(1 − terminated_t)·v_{t+1} − v_t  and  A_t = δ_t + γλ·continuation_t·A_{t+1}.

    Args:
        rewards: `[T, B]` float32.
        values: `[T+1, B]` float32, state values; row `T` is that of the bootstrap observation.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T, B]` bool.
        gamma: discount of one step.
        gae_lambda: 0 for one-step advantages, 1 for Monte-Carlo ones.

    Returns:
        `[T, B]` float32; meaningless on rows that are not valid.
    """
    check_rank(2, rewards=rewards, values=values)
    check_same_shape(rewards=rewards, terminated=terminated, truncated=truncated, valid=valid)
    if values.shape != (len(rewards) + 1, rewards.shape[1]):
        raise SpecError(
            f"values must have one row more than rewards {list(rewards.shape)}, "
            f"their shape is {list(values.shape)}"
        )
    advantages = rewards + discounts(terminated, gamma) * values[1:] - values[:-1]
    decay = np.float32(gamma * gae_lambda) * continuation(terminated, truncated, valid)
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages


def explained_variance(returns: np.ndarray, advantages: np.ndarray) -> float:
    """Share of the variance of the returns that the values, returns − advantages, explain.

    Args:
        returns: `[M]` float32.
        advantages: `[M]` float32.

    Returns:
        1 for perfect values, 0 for constant ones (or constant returns), below 0 for worse.
    """
    check_same_shape(returns=returns, advantages=advantages)
    variance = returns.var()
    return float(1 - advantages.var() / variance) if variance > 0 else 0.0
