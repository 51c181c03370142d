"""Losses of policies and values. `M`: rows of a minibatch.

Each is a sum over the rows where `mask` holds (None: all), divided by a `count` the caller
gives: data-parallel trainers divide by the count of all of them, so that their gradients add.
"""

import torch
from torch import Tensor

from srl.ops.checks import check_rank, check_same_shape


def masked_mean(x: Tensor, mask: Tensor | None, count: float | Tensor) -> Tensor:
    """Sum of `x` over the rows where `mask` holds, divided by `count`.

    Args:
        x: `[M]` float32.
        mask: `[M]` bool, or None for all rows. Masked values have no influence, even NaN.
        count: how many rows the mean is over.

    Returns:
        `[]` float32.
    """
    if mask is not None:
        check_same_shape(x=x, mask=mask)
        x = torch.where(mask, x, 0.0)
    return x.sum() / count


def policy_gradient_loss(
    log_prob: Tensor, advantage: Tensor, *, mask: Tensor | None = None, count: float | Tensor
) -> Tensor:
    """Minus the mean of log π(a|s)·A: its gradient is the policy gradient, negated.

    Args:
        log_prob: `[M]` float32, of the recorded actions under the current policy.
        advantage: `[M]` float32; no gradient flows into it.
        mask: `[M]` bool, or None for all rows.
        count: how many rows the mean is over.

    Returns:
        `[]` float32.
    """
    check_rank(1, log_prob=log_prob)
    check_same_shape(log_prob=log_prob, advantage=advantage)
    return -masked_mean(log_prob * advantage.detach(), mask, count)


def clipped_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    *,
    clip: float | Tensor,
    dual_clip: float | None = None,
    mask: Tensor | None = None,
    count: float | Tensor,
) -> Tensor:
    """PPO's clipped surrogate (Schulman et al. 2017, equation 7), negated to be minimised.

    With `dual_clip` c, the objective of rows with A < 0 is at least c·A, which bounds the loss
    of actions that became much more likely (Ye et al. 2020, equation 5).

    Args:
        log_prob: `[M]` float32, of the recorded actions under the current policy.
        old_log_prob: `[M]` float32, as recorded when acting.
        advantage: `[M]` float32.
        clip: how far the ratio may leave 1 before its gradient stops.
        dual_clip: more than 1, or None for none.
        mask: `[M]` bool, or None for all rows.
        count: how many rows the mean is over.

    Returns:
        `[]` float32.
    """
    check_rank(1, log_prob=log_prob)
    check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    ratio = (log_prob - old_log_prob).exp()
    near_one = ratio.clamp(1 - clip, 1 + clip)  # pyright: ignore[reportCallIssue, reportArgumentType]
    objective = torch.minimum(ratio * advantage, near_one * advantage)
    if dual_clip is not None:
        bounded = torch.maximum(objective, dual_clip * advantage)
        objective = torch.where(advantage < 0, bounded, objective)
    return -masked_mean(objective, mask, count)


def value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    *,
    clip: float | None = None,
    mask: Tensor | None = None,
    count: float | Tensor,
) -> Tensor:
    """Half the squared error; with `clip`, the worse of it and that of the clipped change.

    Args:
        value: `[M]` float32, predictions.
        old_value: `[M]` float32, predictions as recorded when acting.
        target: `[M]` float32, returns.
        clip: how far a prediction may leave the recorded one before its gradient stops.
        mask: `[M]` bool, or None for all rows.
        count: how many rows the mean is over.

    Returns:
        `[]` float32.
    """
    check_rank(1, value=value)
    check_same_shape(value=value, old_value=old_value, target=target)
    error = (value - target).square()
    if clip is not None:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    return 0.5 * masked_mean(error, mask, count)


def approximate_kl(
    log_prob: Tensor, old_log_prob: Tensor, *, mask: Tensor | None = None, count: float | Tensor
) -> Tensor:
    """Low-variance estimate of KL(old ‖ new): mean of (ratio − 1) − log ratio; never negative.

    Source: J. Schulman, "Approximating KL divergence", 2020.

    Args:
        log_prob: `[M]` float32.
        old_log_prob: `[M]` float32.
        mask: `[M]` bool, or None for all rows.
        count: how many rows the mean is over.

    Returns:
        `[]` float32.
    """
    check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob)
    log_ratio = log_prob - old_log_prob
    return masked_mean(log_ratio.expm1() - log_ratio, mask, count)
