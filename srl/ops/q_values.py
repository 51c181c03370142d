"""What values of actions are learned by. `M`: rows; `n`: atoms or quantiles."""

import torch
from torch import Tensor

from srl.ops.checks import check_rank, check_same_shape

RESCALE_EPSILON = 1e-3


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x)·(√(|x| + 1) − 1) + ε·x: returns of any size, made comparable (Pohlen et al. 2018)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + RESCALE_EPSILON * x


def unscale(y: Tensor) -> Tensor:
    """The x of h(x) = y; in float64, for it is a difference of nearly equal numbers."""
    wide, epsilon = y.double(), RESCALE_EPSILON
    root = (1 + 4 * epsilon * (wide.abs() + 1 + epsilon)).sqrt()
    return (wide.sign() * (((root - 1) / (2 * epsilon)).square() - 1)).to(y.dtype)


def categorical_projection(
    probabilities: Tensor, returns: Tensor, discounts: Tensor, *, support: Tensor
) -> Tensor:
    """The distribution of return + discount·z, brought back onto the atoms of z (Bellemare et al. 2017).

    Args:
        probabilities: `[M, n]`, of the atoms of z.
        returns: `[M]`.
        discounts: `[M]`.
        support: `[n]` atoms, evenly spaced and rising; what falls outside goes to the nearest.

    Returns:
        `[M, n]` probabilities: of each moved atom, shares for the two atoms around it.
    """
    check_rank(2, probabilities=probabilities)
    check_same_shape(returns=returns, discounts=discounts)
    lowest, spacing = support[0], support[1] - support[0]
    moved = returns[:, None] + discounts[:, None] * support
    place = ((moved - lowest) / spacing).clamp(0, len(support) - 1)
    lower = place.floor()
    upper_share = place - lower
    below = lower.long()
    above = (below + 1).clamp(max=len(support) - 1)
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, below, probabilities * (1 - upper_share))
    return projected.scatter_add_(1, above, probabilities * upper_share)


def quantile_loss(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Quantile regression with a Huber loss of width 1 (Dabney et al. 2018, equation 10).

    Args:
        quantiles: `[M, n]`, of the levels (i + ½) / n.
        targets: `[M, m]` samples of what they are of.

    Returns:
        `[M]`: summed over quantiles, averaged over samples.
    """
    check_rank(2, quantiles=quantiles, targets=targets)
    count = quantiles.shape[1]
    levels = (torch.arange(count, device=quantiles.device) + 0.5) / count
    error = targets[:, None, :] - quantiles[:, :, None]
    huber = torch.where(error.abs() <= 1, 0.5 * error.square(), error.abs() - 0.5)
    weight = (levels[:, None] - (error < 0).float()).abs()
    return (weight * huber).mean(2).sum(1)


def importance_weights(chances: Tensor, exponent: float, *, rarest: float) -> Tensor:
    """What undoes that windows were not drawn alike (Schaul et al. 2016): `[M]`.

    Args:
        chances: `[M]`, how likely each was to be drawn, in any unit.
        exponent: 0 undoes nothing, 1 all (β).
        rarest: the chance whose weight is 1: the smallest, so that none is larger.
    """
    return (chances / rarest) ** -exponent
