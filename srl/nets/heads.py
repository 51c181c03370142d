"""What stands on the features: a distribution of actions, or a value. `N`: rows; `D`: features."""

import math

import torch
from torch import Tensor, nn

from srl.core.env import ActionSpace, Discrete, MultiDiscrete
from srl.core.errors import SpecError
from srl.nets.mlp import Linear
from srl.ops.distributions import Categorical, DiagonalGaussian, MultiCategorical

POLICY_GAIN = 0.01
"""Small, so that a fresh policy is close to uniform (Andrychowicz et al. 2021, section 3.2)."""


class CategoricalHead(nn.Module):
    """For Discrete actions."""

    def __init__(self, num_features: int, n: int) -> None:
        super().__init__()
        self.logits = Linear(num_features, n, POLICY_GAIN)

    def forward(self, features: Tensor, allowed: Tensor | None = None) -> Categorical:
        """`[N, D]` to the distribution of N actions, of those that are `allowed`, `[N, n]`."""
        return Categorical(self.logits(features), allowed)


class MultiCategoricalHead(nn.Module):
    """For MultiDiscrete actions."""

    def __init__(self, num_features: int, nvec: tuple[int, ...]) -> None:
        super().__init__()
        self.nvec = nvec
        self.logits = Linear(num_features, sum(nvec), POLICY_GAIN)

    def forward(self, features: Tensor, allowed: Tensor | None = None) -> MultiCategorical:
        """`[N, D]` to the distribution of N actions, of those `allowed`, `[N, sum(nvec)]`."""
        return MultiCategorical(self.logits(features), self.nvec, allowed)


class GaussianHead(nn.Module):
    """For Box actions: a mean for each state, one standard deviation for all."""

    def __init__(self, num_features: int, shape: tuple[int, ...], std: float) -> None:
        super().__init__()
        self.shape = shape
        self.mean = Linear(num_features, math.prod(shape), POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full(shape, math.log(std)))

    def forward(self, features: Tensor, allowed: Tensor | None = None) -> DiagonalGaussian:
        """`[N, D]` to the distribution of N actions; all of them are allowed."""
        if allowed is not None:
            raise SpecError("real actions cannot be masked")
        mean = self.mean(features).reshape(len(features), *self.shape)
        return DiagonalGaussian(mean, self.log_std)


PolicyHead = CategoricalHead | MultiCategoricalHead | GaussianHead


def make_policy_head(num_features: int, action: ActionSpace, std: float = 1.0) -> PolicyHead:
    """The head for an action space; real actions begin with this standard deviation."""
    if isinstance(action, Discrete):
        return CategoricalHead(num_features, action.n)
    if isinstance(action, MultiDiscrete):
        return MultiCategoricalHead(num_features, action.nvec)
    return GaussianHead(num_features, action.shape, std)


class ValueHead(nn.Module):
    """One number for each state."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.value = Linear(num_features, 1, 1.0)

    def forward(self, features: Tensor) -> Tensor:
        """`[N, D]` to `[N]`."""
        return self.value(features).squeeze(-1)
