"""Running normalisation as a module: its moments are buffers, so they travel with the weights."""

import torch
from torch import Tensor, nn

from srl.nets.limits import SMALLEST_VARIANCE
from srl.ops.normalise import Moments, merge_moments


class Normaliser(nn.Module):
    """Mean and variance of all rows seen; the identity before the first `update`."""

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))

    @property
    def std(self) -> Tensor:
        """`[*shape]` standard deviation, bounded from below."""
        return self.var.clamp(min=SMALLEST_VARIANCE).sqrt()

    @torch.no_grad()
    def update(self, moments: Moments) -> None:
        """Count in rows of which these are the moments, `[*shape]`."""
        seen = (self.count, self.mean.double(), self.var.double())
        count, mean, var = merge_moments(seen, moments)
        self.count.copy_(count)
        self.mean.copy_(mean)
        self.var.copy_(var)

    def normalise(self, x: Tensor) -> Tensor:
        """`[N, *shape]` to mean 0 and standard deviation 1."""
        return (x - self.mean) / self.std

    def denormalise(self, x: Tensor) -> Tensor:
        """The inverse of `normalise`."""
        return x * self.std + self.mean
