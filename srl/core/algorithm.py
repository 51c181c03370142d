"""What an algorithm is to the system: a policy that acts, and a learner.

The learner turns batches into new weights. Neither knows of streams, processes or hosts.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from srl.core.arrays import Arrays
from srl.core.env import AgentSpec
from srl.core.spec import Spec


class Policy(Protocol):
    """Weights and the rule to act by them. Used by one thread."""

    outputs: Spec
    """Fields that `act` returns and that are recorded in every row: `action` and what else."""

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Sample actions for `N` lanes.

        Args:
            inputs: observation fields and `first`, each `[N, *shape]`; not kept, not written.

        Returns:
            Every field of `outputs`, `[N, *shape]`.
        """
        ...

    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Like `act`, but the most likely action."""
        ...

    def weights(self) -> Arrays:
        """Everything `act` depends on (normalisers included), by name; read-only for callers."""
        ...

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights; copies them. Names and shapes are those of `weights()`."""
        ...

    def save(self) -> Arrays:
        """State beside the weights (random generators)."""
        ...

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        ...


class Learner(Protocol):
    """Owns the policy being trained and its optimiser. Used by one thread."""

    @property
    def policy(self) -> Policy:
        """The policy being trained."""
        ...

    @property
    def updates(self) -> int:
        """Optimiser steps so far."""
        ...

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Learn one batch.

        Args:
            batch: every field of the route's Spec, `[R, B, *shape]` (`head` fields `[B]`);
                `R` = `rollout + 1`. Not kept after the call.
            progress: how much of the run is done, 0..1, for schedules; 0 where it is unknown.

        Returns:
            Metrics, by name. `train_samples` must be there: valid rows times epochs.
        """
        ...

    def save(self) -> Arrays:
        """Weights, optimiser, schedules, counters, random generators: all that `load` needs."""
        ...

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; raises CheckpointError where it is of another shape."""
        ...


class AlgorithmConfig(Protocol):
    """A frozen dataclass of options that can build its policy and its learner."""

    @property
    def rollout(self) -> int:
        """Rows of experience in a block (`T`); one more holds the observation after the last."""
        ...

    @property
    def batch_size(self) -> int:
        """Rows of experience, over all lanes, that one call of `learn` gets."""
        ...

    def policy_outputs(self, agent: AgentSpec) -> Spec:
        """Fields the policy records; raises ConfigError where the agent's spaces do not fit."""
        ...

    def make_policy(self, agent: AgentSpec, *, seed: int, device: str) -> Policy:
        """A policy with fresh weights; equal seeds give equal weights and equal samples."""
        ...

    def make_learner(self, agent: AgentSpec, *, seed: int, device: str) -> Learner:
        """A learner with fresh weights."""
        ...
