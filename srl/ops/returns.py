"""Returns and advantages of trajectories. `T`: rows in time; `B`: lanes.

Episode ends follow `core/env.py`: where row `t` ends an episode, row `t+1` holds the final
observation and is not valid, so `values[t+1]` is what a truncated episode bootstraps from.
"""

import numpy as np

from srl.core.errors import SpecError
from srl.ops.checks import check_rank, check_same_shape


def generalised_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    valid: np.ndarray,
    acting: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16), lane by lane.

    δ_t = r_t + γ(1 − terminated_t)·v_{t+1} − v_t  and  A_t = δ_t + γλ·continuation_t·A_{t+1}

    over the rows at which the lane acts: where it waits, `t+1` is the next row at which it acts,
    and r_t the sum of the rewards until then.

    Args:
        rewards: `[T, B]` float32.
        values: `[T+1, B]` float32, state values; row `T` is that of the bootstrap observation.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T+1, B]` bool.
        acting: `[T+1, B]` bool.
        gamma: discount of one step.
        gae_lambda: 0 for one-step advantages, 1 for Monte-Carlo ones.

    Returns:
        Advantages `[T, B]` float32, and `[T, B]` bool: whether they are known. They are not on rows
        that are not acted on, and where a lane acts again only after the last row.
    """
    advantages, _, known = advantages_and_errors(
        rewards,
        values,
        terminated,
        truncated,
        valid=valid,
        acting=acting,
        gamma=gamma,
        decay=gamma * gae_lambda,
    )
    return advantages, known


def advantages_and_errors(
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    valid: np.ndarray,
    acting: np.ndarray,
    gamma: float,
    decay: float,
    weights: np.ndarray | None = None,
    traces: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The recursion of all such estimates, over the rows at which a lane acts.

    A_t = δ_t + decay·continuation_t·E_{t+1}  and  E_t = w_t·δ_t + c_t·decay·continuation_t·E_{t+1}

    Args:
        rewards: `[T, B]` float32.
        values: `[T+1, B]` float32, as above.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T+1, B]` bool.
        acting: `[T+1, B]` bool.
        gamma: discount of one step.
        decay: of errors, each step.
        weights: `[T, B]` float32, w; None: all 1.
        traces: `[T, B]` float32, c; None: all 1.

    Returns:
        Advantages A and errors E of the values, `[T, B]` float32, and where they are known, as
        above: elsewhere both are 0.
    """
    check_rank(2, rewards=rewards, values=values)
    check_same_shape(rewards=rewards, terminated=terminated, truncated=truncated)
    check_same_shape(values=values, valid=valid, acting=acting)
    if values.shape != (len(rewards) + 1, rewards.shape[1]):
        raise SpecError(
            f"values must have one row more than rewards {list(rewards.shape)}, "
            f"their shape is {list(values.shape)}"
        )
    discount, shrink = np.float32(gamma), np.float32(decay)
    advantages, errors = np.zeros_like(rewards), np.zeros_like(rewards)
    known = np.zeros(rewards.shape, np.bool_)
    ended = terminated | truncated
    acts = valid & acting
    waits = valid & ~acting
    # What follows a row: rewards until the lane acts next, and value and error there.
    paid = np.zeros(rewards.shape[1], np.float32)
    value, error = values[-1], paid
    is_known = ~waits[-1]
    for t in reversed(range(len(rewards))):
        paid = rewards[t] + np.where(ended[t], 0, paid)
        value = np.where(terminated[t], 0, np.where(truncated[t], values[t + 1], value))
        later = shrink * np.where(ended[t], 0, error)
        is_known = is_known | ended[t]
        delta = paid + discount * value - values[t]
        known[t] = acts[t] & is_known
        advantages[t] = np.where(known[t], delta + later, 0)
        weighed = delta if weights is None else weights[t] * delta
        traced = later if traces is None else traces[t] * later
        errors[t] = np.where(known[t], weighed + traced, 0)
        paid = np.where(waits[t], paid, 0)
        value = np.where(waits[t], value, values[t])
        error = np.where(waits[t], error, errors[t])
        is_known = is_known | ~waits[t]
    return advantages, errors, known


def n_step_returns(
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    first: np.ndarray,
    valid: np.ndarray,
    acting: np.ndarray,
    steps: int,
    gamma: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Discounted sums of the rewards of at most `steps` rows, and from where to bootstrap, lane by lane.

    R_t = r_t + γ·r_{t+1} + … up to the row before `end_t`, and the return is R_t + discount_t·v(obs_{end_t}).

    `end_t` is `t + steps`, or the row after the end of the episode: where it was truncated that row holds
    its final observation, where it terminated the discount is 0. Where a lane waits, nothing is
    discounted, and `end_t` is the last row up to `t + steps` at which it acts. An episode may break off
    without an end (its env failed): `end_t` is then the last row before the next one at which it acts.

    Args:
        rewards: `[T + steps, B]` float32.
        terminated: `[T + steps, B]` bool.
        truncated: `[T + steps, B]` bool.
        first: `[T + steps, B]` bool: an episode begins.
        valid: `[T + steps, B]` bool.
        acting: `[T + steps, B]` bool.
        steps: most rows whose rewards are added up.
        gamma: discount of one step.

    Returns:
        `[T, B]` each: sums, float32; discounts, float32; `end`, int64; and whether they are known, bool:
        they are not on rows that are not acted on, and where a lane does not act again in time.
    """
    check_rank(2, rewards=rewards)
    ends_and_starts = {"terminated": terminated, "truncated": truncated, "first": first}
    check_same_shape(rewards=rewards, **ends_and_starts, valid=valid, acting=acting)
    count = len(rewards) - steps
    if steps < 1 or count < 1:
        raise SpecError(f"{len(rewards)} rows are too few for returns of {steps} steps")
    acts = valid & acting
    sums, paid = np.zeros((2, count, rewards.shape[1]), np.float32)
    discounts, factor = np.zeros_like(paid), np.ones_like(paid)
    ends = np.repeat(np.arange(count)[:, None], rewards.shape[1], axis=1)
    known = np.zeros(paid.shape, np.bool_)
    goes_on = acts[:count].copy()
    for step in range(steps):
        now = slice(step, step + count)
        after = slice(step + 1, step + 1 + count)
        paid = np.where(goes_on, paid + factor * rewards[now], paid)
        next_factor = factor * np.float32(gamma)
        stops = goes_on & (terminated[now] | truncated[now])
        goes_on &= ~first[after]
        settled = stops | (goes_on & acts[after])
        sums = np.where(settled, paid, sums)
        discounts = np.where(settled, np.where(terminated[now], 0, next_factor), discounts)
        ends = np.where(settled, np.arange(step + 1, step + 1 + count)[:, None], ends)
        known |= settled
        goes_on &= ~stops
        factor = np.where(acts[after], next_factor, factor)
    return sums, discounts.astype(np.float32), ends, known
