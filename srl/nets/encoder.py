"""From the named observations of an agent to one vector of features. `N`: rows."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from srl.core.env import Observation
from srl.nets.conv import ConvNet
from srl.nets.limits import LARGEST_NORMALISED
from srl.nets.normaliser import Normaliser


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


def make_part(observation: Observation, *, normalise: bool) -> OneHot | ConvNet | Flat:
    """The encoder of one observation: categorical, images (three axes), or plain numbers."""
    shape = observation.seen_shape
    if observation.categories:
        return OneHot(observation.categories * observation.stack)
    if len(shape) >= 3:
        return ConvNet(shape)
    return Flat(shape, normalise=normalise)


class Encoder(nn.Module):
    """The features of all observations, side by side; only images have weights here."""

    def __init__(self, observations: tuple[Observation, ...], *, normalise: bool = False) -> None:
        super().__init__()
        parts = [make_part(o, normalise=normalise) for o in observations]
        self.names = tuple(o.name for o in observations)
        self.num_features = sum(part.num_features for part in parts)
        self.parts = nn.ModuleList(parts)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Each observation `[N, *shape]`; all of them `[N, num_features]`."""
        features = [part(obs[n]) for n, part in zip(self.names, self.parts, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)

    def normalisers(self) -> dict[str, Normaliser]:
        """Those that count in rows of an observation, by its name."""
        parts = zip(self.names, self.parts, strict=True)
        flat = {name: part.normaliser for name, part in parts if isinstance(part, Flat)}
        return {name: found for name, found in flat.items() if found is not None}
