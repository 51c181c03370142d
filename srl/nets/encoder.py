"""From the named observations of an agent to one vector of features. `N`: rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from srl.core.env import Observation
from srl.core.errors import ConfigError
from srl.nets.conv import ConvNet
from srl.nets.entities import Entities, find_sets, is_set
from srl.nets.limits import LARGEST_NORMALISED
from srl.nets.normaliser import Normaliser
from srl.nets.resnet import ResNet
from srl.ops.normalise import moments_of

EncoderKind = Literal["nature", "light", "resnet", "entities"]


@dataclass(frozen=True)
class EncoderOptions:
    """How observations are encoded."""

    kind: EncoderKind = "nature"
    width: int = 1
    """Of a ResNet: how many times its channels."""
    entity_size: int = 128
    """Of entities: numbers each becomes."""
    entity_heads: int = 4
    """Of entities: heads by which they look at each other."""


class OneHot(nn.Module):
    """Categorical values, `[N, *shape]` of any integer type, to `[N, sum(categories)]`."""

    offsets: Tensor

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        self.num_features = sum(categories)
        starts = [sum(categories[:i]) for i in range(len(categories))]
        self.register_buffer("offsets", torch.tensor(starts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """One 1 for each value."""
        index = x.reshape(len(x), -1).long() + self.offsets
        return torch.zeros(len(x), self.num_features, device=x.device).scatter_(1, index, 1.0)


class Flat(nn.Module):
    """Numbers, `[N, *shape]`, to `[N, D]` float32, normalised if asked."""

    def __init__(self, shape: tuple[int, ...], *, normalise: bool) -> None:
        super().__init__()
        self.num_features = math.prod(shape)
        self.normaliser = Normaliser(shape) if normalise else None

    def forward(self, x: Tensor) -> Tensor:
        """Flatten each row."""
        x = x.float()
        if self.normaliser is not None:
            x = self.normaliser.normalise(x).clamp(-LARGEST_NORMALISED, LARGEST_NORMALISED)
        return x.reshape(len(x), -1)


def is_image(observation: Observation) -> bool:
    """Whether an observation is an image, or a stack of them: three axes or more."""
    return len(observation.seen_shape) >= 3 and not observation.categories


def make_part(
    observation: Observation, options: EncoderOptions, *, normalise: bool
) -> OneHot | ConvNet | ResNet | Flat:
    """The encoder of one observation: categorical, images, or plain numbers."""
    shape = observation.seen_shape
    if observation.categories:
        return OneHot(observation.categories * observation.stack)
    if is_image(observation):
        if options.kind == "resnet":
            return ResNet(shape, options.width)
        return ConvNet(shape, is_light=options.kind == "light")
    return Flat(shape, normalise=normalise)


class Encoder(nn.Module):
    """The features of all observations, side by side; only images have weights here."""

    def __init__(
        self,
        observations: Sequence[Observation],
        options: EncoderOptions = EncoderOptions(),  # noqa: B008 - frozen
        *,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        parts = [make_part(o, options, normalise=normalise) for o in observations]
        self.names = tuple(o.name for o in observations)
        self.num_features = sum(part.num_features for part in parts)
        self.parts = nn.ModuleList(parts)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Each observation `[N, *shape]`; all of them `[N, num_features]`."""
        features = [part(obs[n]) for n, part in zip(self.names, self.parts, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)

    def normalised(self) -> tuple[str, ...]:
        """Observations that `count_in` needs."""
        return tuple(self._normalisers())

    def count_in(self, obs: Mapping[str, Tensor], sum_: Callable[[Tensor], None]) -> None:
        """Have normalisers count in this rank's rows, each `[N, *shape]`.

        `sum_` replaces a tensor by its sum over all ranks.
        """
        for name, normaliser in self._normalisers().items():
            normaliser.update(moments_of(obs[name], sum_))

    def _normalisers(self) -> dict[str, Normaliser]:
        parts = zip(self.names, self.parts, strict=True)
        flat = {name: part.normaliser for name, part in parts if isinstance(part, Flat)}
        return {name: found for name, found in flat.items() if found is not None}


class EntityEncoder(Encoder):
    """Sets of entities, each beside the features of all other observations."""

    def __init__(
        self, observations: Sequence[Observation], options: EncoderOptions, *, normalise: bool
    ) -> None:
        sets, masks = find_sets(observations)
        others = [o for o in observations if o not in sets and o.name not in masks.values()]
        super().__init__(others, options, normalise=normalise)
        self.entities = Entities(
            sets,
            masks,
            max(1, self.num_features),
            size=options.entity_size,
            heads=options.entity_heads,
            normalise=normalise,
        )
        self._set_names = tuple(o.name for o in sets)
        self.num_features = self.entities.num_features

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Each observation `[N, *shape]`; all of them `[N, num_features]`."""
        if self.names:
            return self.entities(obs, super().forward(obs))
        one = obs[self._set_names[0]]
        return self.entities(obs, torch.ones(len(one), 1, device=one.device))

    def normalised(self) -> tuple[str, ...]:
        """Observations that `count_in` needs."""
        return (*super().normalised(), *self.entities.normalised())

    def count_in(self, obs: Mapping[str, Tensor], sum_: Callable[[Tensor], None]) -> None:
        """Have normalisers count in this rank's rows, and of sets the entities that are there."""
        super().count_in(obs, sum_)
        self.entities.count_in(obs, sum_)


def check_encoder(observations: Sequence[Observation], kind: EncoderKind) -> None:
    """Raise ConfigError where there is nothing for an encoder of this kind."""
    if kind in ("light", "resnet") and not any(is_image(o) for o in observations):
        raise ConfigError(f"algorithm.encoder {kind} needs an image: an observation of three axes")
    if kind == "entities" and not any(is_set(o) for o in observations):
        raise ConfigError(
            "algorithm.encoder entities needs a set: an observation [n, d] of numbers"
        )


def make_encoder(
    observations: Sequence[Observation], options: EncoderOptions, *, normalise: bool
) -> Encoder:
    """The encoder that the options ask for; where it finds no set in these, one without."""
    has_sets = options.kind == "entities" and any(is_set(o) for o in observations)
    return (EntityEncoder if has_sets else Encoder)(observations, options, normalise=normalise)
