"""What an algorithm is to the system: a policy that acts, and a learner.

The learner turns batches into new weights. Neither knows of streams, processes or hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from srl.core.arrays import Arrays
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.spec import Spec


@dataclass(frozen=True)
class Records:
    """What an algorithm wants in its blocks, beside observations and what came of the actions."""

    outputs: Spec
    """Fields that `act` returns and that are recorded in every row: `action` and what else."""
    state: Spec = field(default_factory=lambda: Spec(()))
    """Fields of a lane's recurrent state, `per="chunk"`: `act` is given the latest and returns the
    next. Recorded where training chunks start, and at the last row."""
    chunk: int = 1
    """Rows of a training chunk; the rollout is a multiple of it."""
    burn_in: int = 0
    """Rows before each chunk over which a recurrent state is brought up to date."""
    members: int = 0
    """Of a pool, how many sets of parameters it holds: `policy_id` then says, in every row, by which
    of them its lane plays. It changes only where an episode begins."""


class Policy(Protocol):
    """Weights and the rule to act by them. Used by one thread."""

    records: Records
    """What `act` returns, and how its state is recorded."""

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Sample actions for `N` lanes.

        Args:
            inputs: observation fields, `first` and the fields of the state, each `[N, *shape]`
                (a stacked one `[N, stack, *shape]`); not kept, not written. Where `first` holds, a
                state is of the episode before: to be taken as zeros.

        Returns:
            Every field of the outputs and of the state, `[N, *shape]`; to be read before the next
            call, which may overwrite them.
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
            batch: every field of the route's Spec, `[R, B, *shape]` (`head` fields `[B]`, states
                `[C, B]`, those of envs `[R, B / agents]`); `R` = `burn_in + rollout + 1`. Not
                kept after the call.
            progress: how much of the run is done, 0..1, for schedules; 0 where it is unknown.

        Returns:
            Metrics, by name, over all ranks. `train_samples` must be there: valid rows times
            epochs.
        """
        ...

    def save(self) -> Arrays:
        """Weights, optimiser, schedules, counters, random generators: all that `load` needs."""
        ...

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; raises CheckpointError where it is of another shape."""
        ...


@runtime_checkable
class BeginsWith(Protocol):
    """A learner that has more to do than its policy when a run begins with the weights of another."""

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over the policy's weights before anything is learned.

        Copies of the network that the learner keeps (targets) become the same; how much is explored is
        as in any fresh run.
        """
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

    def records(self, agent: AgentSpec) -> Records:
        """What its blocks hold; raises ConfigError where the agent's spaces do not fit."""
        ...

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> Policy:
        """A policy with fresh weights; equal seeds give equal weights and equal samples."""
        ...

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> Learner:
        """A learner with fresh weights, one of `ranks.size` that learn together.

        Equal seeds give equal weights; what differs by rank comes from `ranks.rank`.
        """
        ...


@dataclass(frozen=True)
class NamedPolicy:
    """A policy by name: made without the algorithm's module, and so without what that imports."""

    maker: str
    """`module:Object`, called with the AgentSpec, `seed` and the options; returns a Policy."""
    options: dict[str, Any]
    """Plain values: they travel as JSON."""


@runtime_checkable
class ActsAhead(Protocol):
    """A policy on an accelerator, which computes while its worker gathers the next requests."""

    ahead: int
    """Batches to begin before the oldest is waited for: 1, or 0 where nothing is gained by it."""

    def begin(self, inputs: Mapping[str, np.ndarray]) -> "Pending":
        """Like `act`, but returns at once.

        At most `ahead + 1` are under way; their outputs are overwritten by the second `begin` after.
        """
        ...


class Pending(Protocol):
    """Outputs that are being computed."""

    def is_ready(self) -> bool:
        """Whether `outputs` need not be waited for, or not by a core that is kept busy."""
        ...

    def outputs(self) -> Arrays:
        """Wait for them."""
        ...


@dataclass(frozen=True)
class Done:
    """Outputs that are there already."""

    arrays: Arrays

    def is_ready(self) -> bool:
        """They are."""
        return True

    def outputs(self) -> Arrays:
        """At once."""
        return self.arrays


@runtime_checkable
class HasSmallPolicy(Protocol):
    """A config whose policy can also act without torch, where actions are answered on a CPU."""

    def small_policy(self, agent: AgentSpec) -> NamedPolicy | None:
        """A policy that acts like `make_policy`'s by the same weights; None: there is none.

        It may sample other actions by equal seeds, with the same probabilities.
        """
        ...
