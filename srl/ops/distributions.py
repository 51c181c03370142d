"""Distributions of actions, float32, one a row. `N`: rows.

They do what `torch.distributions` does, without its argument checks: at the sizes actors use,
those cost more than the sampling.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from srl.core.env import ActionSpace, Box, Discrete
from srl.core.errors import SpecError
from srl.ops.checks import check_rank, check_same_shape

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
LOG_2 = math.log(2)
_ALMOST_1 = 1 - 2**-24
"""The largest float32 below 1: what lies on a bound has no log-density, and is taken to be next to it."""


class Categorical:
    """One choice of `n`; an action is `[N] int64`."""

    __slots__ = ("log_probs",)

    def __init__(self, logits: Tensor, allowed: Tensor | None = None) -> None:
        """Normalise `logits`, `[N, n]`; choices that are not `allowed`, `[N, n]`, are never taken.

        Where no choice is allowed (an agent that does not act), all are alike.
        """
        check_rank(2, logits=logits)
        logits = logits.float()
        if allowed is not None:
            # the lowest number, not -inf: 0 x -inf is NaN in entropies and gradients
            logits = logits.masked_fill(~allowed.bool(), torch.finfo(torch.float32).min)
        self.log_probs = logits.log_softmax(-1)

    def sample(self, noise: Tensor) -> Tensor:
        """`[N]` actions by `noise`, `[N, n]` uniform: argmax of p / Exp(1) is distributed as p."""
        return (self.log_probs - (-noise.log()).log()).argmax(-1)

    def mode(self) -> Tensor:
        """`[N]` most likely actions."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """`[N]` log-probabilities of `action`, `[N] int64`."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """`[N]` entropies."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def divergence(self, other: "Categorical") -> Tensor:
        """`[N]`: KL(self ‖ other)."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


class MultiCategorical:
    """Several independent choices; an action is `[N, K] int64`."""

    __slots__ = ("choices",)

    def __init__(self, logits: Tensor, nvec: Sequence[int], allowed: Tensor | None = None) -> None:
        """Split `logits` and what is `allowed`, `[N, sum(nvec)]`, into the `K` choices of `nvec`."""
        check_rank(2, logits=logits)
        parts, sizes = logits.split(list(nvec), -1), list(nvec)
        masks = [None] * len(sizes) if allowed is None else allowed.split(sizes, -1)
        self.choices = [Categorical(*pair) for pair in zip(parts, masks, strict=True)]

    def sample(self, noise: Tensor) -> Tensor:
        """`[N, K]` actions by `noise`, `[N, sum(nvec)]`."""
        parts = noise.split([choice.log_probs.shape[-1] for choice in self.choices], -1)
        pairs = zip(self.choices, parts, strict=True)
        return torch.stack([choice.sample(part) for choice, part in pairs], -1)

    def mode(self) -> Tensor:
        """`[N, K]` most likely actions."""
        return torch.stack([choice.mode() for choice in self.choices], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """`[N]` log-probabilities of `action`, `[N, K] int64`."""
        parts = zip(self.choices, action.unbind(-1), strict=True)
        return torch.stack([choice.log_prob(part) for choice, part in parts]).sum(0)

    def entropy(self) -> Tensor:
        """`[N]` entropies."""
        return torch.stack([choice.entropy() for choice in self.choices]).sum(0)

    def divergence(self, other: "MultiCategorical") -> Tensor:
        """`[N]`: KL(self ‖ other)."""
        pairs = zip(self.choices, other.choices, strict=True)
        return torch.stack([mine.divergence(its) for mine, its in pairs]).sum(0)


class DiagonalGaussian:
    """Independent normal numbers; an action is `[N, *shape] float32`."""

    __slots__ = ("log_std", "mean")

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Means `[N, *shape]` and the logarithms of standard deviations `[*shape]`."""
        if mean.shape[1:] != log_std.shape:
            raise SpecError(
                f"log_std has shape {list(log_std.shape)}, a row of mean {list(mean.shape[1:])}"
            )
        self.mean, self.log_std = mean.float(), log_std.float()

    def sample(self, noise: Tensor) -> Tensor:
        """`[N, *shape]` actions by `noise` of that shape."""
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        """`[N, *shape]` most likely actions."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """`[N]` log-densities of `action`, `[N, *shape]`."""
        z = (action - self.mean) * (-self.log_std).exp()
        each = -0.5 * z.square() - self.log_std - HALF_LOG_TAU
        return each.reshape(len(each), -1).sum(-1)

    def entropy(self) -> Tensor:
        """`[N]` entropies."""
        return (self.log_std + HALF_LOG_TAU + 0.5).sum().expand(len(self.mean))

    def divergence(self, other: "DiagonalGaussian") -> Tensor:
        """`[N]`: KL(self ‖ other)."""
        apart = (self.mean - other.mean).square() + (2 * self.log_std).exp()
        each = other.log_std - self.log_std + 0.5 * apart * (-2 * other.log_std).exp() - 0.5
        return each.reshape(len(each), -1).sum(-1)


class SquashedGaussian:
    """Independent normal numbers u, squashed by tanh between bounds; an action is `[N, A] float32`.

    log π(a) = Σ log N(u) − log(1 − tanh²u) − log((high − low) / 2), and 1 − tanh²u = 4 / (eᵘ + e⁻ᵘ)², of
    which the logarithm is exact for any u: 2 · (log 2 − u − softplus(−2u)).
    """

    __slots__ = ("bounds", "log_std", "mean")

    def __init__(
        self, mean: Tensor, log_std: Tensor, bounds: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Means of u and the logarithms of their standard deviations, `[N, A]` each.

        `bounds` are the lowest and the highest action, `[A]` each; None: -1 and 1.
        """
        check_rank(2, mean=mean)
        check_same_shape(mean=mean, log_std=log_std)
        self.mean, self.log_std = mean.float(), log_std.float()
        self.bounds = bounds

    def sample(self, noise: Tensor) -> Tensor:
        """`[N, A]` actions by `noise` of that shape."""
        return self._squash(self.mean + self.log_std.exp() * noise)

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`[N, A]` actions by `noise`, and `[N]` their log-densities; both can be differentiated."""
        u = self.mean + self.log_std.exp() * noise
        return self._squash(u), self._log_density(u, noise)

    def mode(self) -> Tensor:
        """`[N, A]`: the squashed means, the medians of the actions."""
        return self._squash(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """`[N]` log-densities of `action`, `[N, A]`."""
        if self.bounds is not None:
            low, high = self.bounds
            action = (2 * action - low - high) / (high - low)
        u = action.clamp(-_ALMOST_1, _ALMOST_1).atanh()
        return self._log_density(u, (u - self.mean) * (-self.log_std).exp())

    def _squash(self, u: Tensor) -> Tensor:
        if self.bounds is None:
            return u.tanh()
        low, high = self.bounds
        return 0.5 * (low + high + (high - low) * u.tanh())

    def _log_density(self, u: Tensor, z: Tensor) -> Tensor:
        """Of u, `[N, A]`, whose distance from the mean is z standard deviations."""
        constant = HALF_LOG_TAU + 2 * LOG_2
        each = 2 * (u + softplus(-2 * u)) - 0.5 * z.square() - self.log_std - constant
        if self.bounds is not None:
            low, high = self.bounds
            each = each - (0.5 * (high - low)).log()
        return each.sum(-1)


def draw_noise(action: ActionSpace, num_rows: int, generator: torch.Generator) -> Tensor:
    """What `sample` needs for `num_rows` actions: uniform for choices, normal for numbers."""
    if isinstance(action, Box):
        return torch.empty(num_rows, *action.shape).normal_(generator=generator)
    choices = action.n if isinstance(action, Discrete) else sum(action.nvec)
    return torch.rand(num_rows, choices, generator=generator)


Distribution = Categorical | MultiCategorical | DiagonalGaussian
