"""Running moments, and normalisation by them. Moments are a triple (count, mean, var)."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from srl.ops.checks import check_same_shape

Moments = tuple[Tensor, Tensor, Tensor]
"""`[]` number of rows, `[*shape]` mean, `[*shape]` variance (of the population), float64."""


def moments_of(x: Tensor, sum_: Callable[[Tensor], None] = lambda _: None) -> Moments:
    """Moments of the rows of `x`, `[M, *shape]`; M may be 0.

    Args:
        x: this rank's rows.
        sum_: replaces a tensor by its sum over all ranks; the moments are then of all of their
            rows.
    """
    x = x.double()
    sums = torch.cat([x.sum(0).reshape(-1), x.new_tensor([len(x)])])
    sum_(sums)
    count = sums[-1]
    mean = (sums[:-1] / count.clamp(min=1)).reshape(x.shape[1:])
    squares = (x - mean).square().sum(0)
    sum_(squares)
    return count, mean, squares / count.clamp(min=1)


def normalise(x: np.ndarray, moments: Moments, epsilon: float = 1e-8) -> np.ndarray:
    """`x`, float32, shifted and scaled by a mean and a standard deviation, `[]` each."""
    _, mean, var = moments
    return (x - np.float32(mean.item())) / np.float32(var.sqrt().item() + epsilon)


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
