"""Running moments, and normalisation by them. Moments are a triple (count, mean, var)."""

import torch
from torch import Tensor

from srl.ops.checks import check_same_shape

Moments = tuple[Tensor, Tensor, Tensor]
"""`[]` number of rows, `[*shape]` mean, `[*shape]` variance (of the population), float64."""


def moments_of(x: Tensor) -> Moments:
    """Moments of the rows of `x`, `[M, *shape]`, with M > 0."""
    var, mean = torch.var_mean(x.double(), dim=0, correction=0)
    return torch.tensor(float(len(x)), dtype=torch.float64, device=x.device), mean, var


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of the union of two sets of rows (Chan et al. 1979); either may be empty."""
    (count_a, mean_a, var_a), (count_b, mean_b, var_b) = a, b
    check_same_shape(mean_a=mean_a, var_a=var_a, mean_b=mean_b, var_b=var_b)
    count = count_a + count_b
    share = count_b / count.clamp(min=1)
    delta = mean_b - mean_a
    mean = mean_a + delta * share
    var = var_a + (var_b - var_a) * share + delta.square() * share * (1 - share)
    return count, mean, var


def normalise_masked(x: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Shift and scale `x` to mean 0 and standard deviation 1 over the rows where `mask` holds.

    Args:
        x: `[M]` float32.
        mask: `[M]` bool; rows where it is False do not count, and come out as 0.
        epsilon: added to the standard deviation.

    Returns:
        `[M]` float32.
    """
    check_same_shape(x=x, mask=mask)
    count = mask.sum().clamp(min=1)
    centred = torch.where(mask, x - torch.where(mask, x, 0.0).sum() / count, 0.0)
    std = (centred.square().sum() / count).sqrt()
    return centred / (std + epsilon)


def rescale_output(
    weight: Tensor, bias: Tensor, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Keep std·(w·x + b) + mean what it was when (mean, std) move (PopArt, van Hasselt et al. 2016).

    Args:
        weight: `[D, 1]` of the linear layer whose output is normalised.
        bias: `[1]`.
        old: mean and standard deviation, `[]` each, that the output was trained for.
        new: those it will be de-normalised with.

    Returns:
        The new weight `[D, 1]` and bias `[1]`.
    """
    (old_mean, old_std), (new_mean, new_std) = old, new
    return weight * (old_std / new_std), (bias * old_std + old_mean - new_mean) / new_std
