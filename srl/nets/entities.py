"""Sets of entities: each looks at all others (Baker et al. 2020, https://arxiv.org/abs/1909.07528).

A set is an observation of two axes, `[n, d]`: so many entities of so many numbers. An observation
`[n]` of its name and `_mask` says which of them are there: anything but 0. The order of a set does
not matter, and entities that are not there do not either, whatever their numbers.

Axes: `M` rows, `n` entities of a set, `d` numbers of each, `F` numbers of what is not in a set,
`H` size, `S` = 1 + all entities.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from srl.core.env import Observation
from srl.core.errors import ConfigError
from srl.nets.attention import attention_weights, merge_heads, orthogonal, split_heads
from srl.nets.limits import LARGEST_NORMALISED
from srl.nets.mlp import Linear
from srl.nets.normaliser import Normaliser
from srl.ops.normalise import moments_of

MASK = "_mask"


def is_set(observation: Observation) -> bool:
    """Whether an observation is a set of entities."""
    plain = observation.stack == 1 and not observation.categories
    return plain and len(observation.shape) == 2


def find_sets(observations: Iterable[Observation]) -> tuple[list[Observation], dict[str, str]]:
    """The sets among observations, and of those that have one the name of the mask, by name."""
    named = {o.name: o for o in observations}
    sets = [o for o in named.values() if is_set(o)]
    masks = {o.name: o.name + MASK for o in sets if o.name + MASK in named}
    for name, mask in masks.items():
        wanted = named[name].shape[:1]
        if named[mask].seen_shape != wanted:
            raise ConfigError(
                f"{mask!r} masks the entities of {name!r}: it must be {list(wanted)}, and is "
                f"{list(named[mask].seen_shape)}"
            )
    return sets, masks


class Entities(nn.Module):
    """Sets and a vector about oneself to one vector of features."""

    def __init__(
        self,
        sets: Sequence[Observation],
        masks: Mapping[str, str],
        num_own: int,
        *,
        size: int,
        heads: int,
        normalise: bool,
    ) -> None:
        super().__init__()
        self.num_features = 2 * size
        self._names = tuple(o.name for o in sets)
        self._masks = dict(masks)
        self.sets = nn.ModuleList(
            _Set(o.shape[1], num_own, size, normalise=normalise) for o in sets
        )
        self.own = Linear(num_own, size, math.sqrt(2))
        self.attention = SetAttention(size, heads)
        self.norm = nn.LayerNorm(2 * size)
        self.output = Linear(2 * size, 2 * size, math.sqrt(2))

    def forward(self, obs: Mapping[str, Tensor], own: Tensor) -> Tensor:
        """Sets `[M, n, d]` and masks `[M, n]` by name, and `own`, `[M, F]`, to `[M, 2H]`."""
        myself = self.own(own).relu()
        tokens, there = [myself[:, None]], [own.new_ones((len(own), 1), dtype=torch.bool)]
        for name, part in zip(self._names, self.sets, strict=True):
            there.append(self.there(obs, name))
            tokens.append(part(obs[name], there[-1], own))
        is_there = torch.cat(there, 1)
        looked = self.attention(torch.cat([x.float() for x in tokens], 1), is_there)
        pooled = masked_mean_of(looked, is_there)
        return self.output(self.norm(torch.cat([pooled, myself.float()], 1))).relu()

    def there(self, obs: Mapping[str, Tensor], name: str) -> Tensor:
        """`[M, n]` bool: which entities of a set are there."""
        if name in self._masks:
            return obs[self._masks[name]] != 0
        return torch.ones(obs[name].shape[:2], dtype=torch.bool, device=obs[name].device)

    def normalised(self) -> tuple[str, ...]:
        """Observations that `count_in` needs: sets and their masks, where sets are normalised."""
        names = tuple(self._normalisers())
        return (*names, *(self._masks[name] for name in names if name in self._masks))

    def count_in(self, obs: Mapping[str, Tensor], sum_: Callable[[Tensor], None]) -> None:
        """Have normalisers count in the entities that are there of this rank's rows.

        `sum_` replaces a tensor by its sum over all ranks.
        """
        for name, normaliser in self._normalisers().items():
            normaliser.update(moments_of(obs[name][self.there(obs, name)], sum_))

    def _normalisers(self) -> dict[str, Normaliser]:
        parts = zip(self._names, self.sets, strict=True)
        found = {name: part.normaliser for name, part in parts if isinstance(part, _Set)}
        return {name: x for name, x in found.items() if x is not None}


class _Set(nn.Module):
    """Entities of one kind, each beside what is known of oneself, as tokens."""

    def __init__(self, num_numbers: int, num_own: int, size: int, *, normalise: bool) -> None:
        super().__init__()
        self.normaliser = Normaliser((num_numbers,)) if normalise else None
        self.embedding = Linear(num_numbers + num_own, size, math.sqrt(2))

    def forward(self, x: Tensor, there: Tensor, own: Tensor) -> Tensor:
        """`[M, n, d]`, of which `[M, n]` are there, and `[M, F]`, to `[M, n, H]`."""
        x = x.float()
        if self.normaliser is not None:
            x = self.normaliser.normalise(x).clamp(-LARGEST_NORMALISED, LARGEST_NORMALISED)
        x = x.masked_fill(~there[:, :, None], 0)
        # both beside each other times one weight, without a copy of `own` for each entity
        weight = self.embedding.weight
        mine = torch.addmm(self.embedding.bias, own, weight[x.shape[-1] :])
        return (x @ weight[: x.shape[-1]] + mine[:, None]).relu()


class SetAttention(nn.Module):
    """x + attention(norm(x)): each token looks at all that are there."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.query, self.key, self.value, self.output = (orthogonal(size, size) for _ in range(4))

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        """`[M, S, H]`, of which `[M, S]` are there, in each row at least one, to `[M, S, H]`."""
        x = self.norm(tokens)
        query, key, value = (
            split_heads(x @ weight, self.heads) for weight in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1)
        weights = attention_weights(scores, query.shape[-1], there[:, None, None])
        return tokens + merge_heads(weights @ value) @ self.output


def masked_mean_of(tokens: Tensor, there: Tensor) -> Tensor:
    """Mean of the tokens, `[M, S, H]`, that are there, `[M, S]`: `[M, H]`; 0 where none is."""
    kept = tokens.masked_fill(~there[:, :, None], 0)
    return kept.sum(1) / there.sum(1, keepdim=True).clamp(min=1)
