"""What the learners of all algorithms keep: tensors by name, a count of updates, a generator."""

from abc import ABC
from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from srl.core.algorithm import Arrays
from srl.core.collective import Collective
from srl.nets.policy import NetworkPolicy
from srl.nets.tensors import array_of, load_arrays

PolicyT = TypeVar("PolicyT", bound=NetworkPolicy)


class NetworkLearner(ABC, Generic[PolicyT]):
    """Owns the policy being trained, and what a checkpoint holds beside its weights."""

    def __init__(self, policy: PolicyT, *, seed: int, ranks: Collective) -> None:
        self.policy = policy
        self.updates = 0
        self.ranks = ranks
        self._seed = seed
        self._kept: dict[str, Tensor] = {f"weights/{name}": x for name, x in policy.tensors.items()}
        self.generator = torch.Generator().manual_seed(self._generator_seed())
        """For what is random in learning: of every rank its own."""

    def keep(self, **tensors: Mapping[str, Tensor]) -> None:
        """Have checkpoints hold these too, by a name of their own; they are written in place."""
        for prefix, named in tensors.items():
            self._kept |= {f"{prefix}/{name}": x for name, x in named.items()}

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over the weights of another run; who keeps copies of the network extends this."""
        self.policy.load_weights(weights)

    def save(self) -> Arrays:
        """All that was kept, counters and random generators, as copies."""
        return {name: array_of(x).copy() for name, x in self._state().items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; raises CheckpointError naming what does not fit."""
        own = self._state()
        load_arrays(own, state)
        self.updates = int(own["updates"])
        if self.ranks.rank:  # what rank 0 saved is of rank 0
            self.generator.manual_seed(self._generator_seed())
        else:
            self.generator.set_state(own["shuffle"])
        self.policy.load({"generator": array_of(own["generator"])})

    def _generator_seed(self) -> int:
        """A seed of its own for every rank, and for each time it begins anew."""
        if not self.ranks.rank:
            return self._seed
        numbers = (self._seed, self.ranks.rank, self.updates)
        return int(np.random.SeedSequence(numbers).generate_state(1)[0])

    def _state(self) -> dict[str, Tensor]:
        """All that `save` holds: the tensors in use, and copies of the rest."""
        return self._kept | {
            "updates": torch.tensor(self.updates),
            "shuffle": self.generator.get_state(),
            "generator": torch.from_numpy(self.policy.save()["generator"]),
        }
