"""The algorithm of the scale bench: blocks of real size, a version of a real size, and no learning.

What it costs is next to nothing, so that what is measured is the system around it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from srl.core.algorithm import Records
from srl.core.arrays import Arrays
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.spec import Spec

_TENSORS = 12
"""The weights are in so many."""
STAMP = "stamp"
"""The tensor that says when its version was made, by the clock that all processes of a host share."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Blocks of `rollout` rows, and weights of so many megabytes."""

    rollout: int = 32
    batch_size: int = 32
    megabytes: float = 6.0

    def records(self, agent: AgentSpec) -> Records:
        """The action alone."""
        return Records(Spec((agent.action.field,)))

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> "ReplayPolicy":
        """Weights of the size, and actions of zeros."""
        return ReplayPolicy(self, agent)

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "ReplayLearner":
        """One that changes every tensor a batch."""
        return ReplayLearner(ReplayPolicy(self, agent), ranks)


class ReplayPolicy:
    """Answers zeros."""

    def __init__(self, config: ReplayConfig, agent: AgentSpec) -> None:
        self.records = config.records(agent)
        self._action = agent.action.field
        self._seen = agent.observation_names[0]
        size = int(config.megabytes * 1e6) // (4 * _TENSORS)
        self._weights: Arrays = {f"w{i}": np.zeros(size, np.float32) for i in range(_TENSORS)}
        self._weights[STAMP] = np.zeros(1, np.float64)

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Zeros."""
        lanes = len(inputs[self._seen])
        return {"action": np.zeros((lanes, *self._action.shape), self._action.dtype)}

    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Like `act`."""
        return self.act(inputs)

    def weights(self) -> Arrays:
        """All of them."""
        return self._weights

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take them over."""
        for name, array in weights.items():
            np.copyto(self._weights[name], array)

    def save(self) -> Arrays:
        """Nothing beside the weights."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """There is nothing to load."""


class ReplayLearner:
    """Makes a version of every batch."""

    def __init__(self, policy: ReplayPolicy, ranks: Collective) -> None:
        self.policy = policy
        self.updates = 0
        self._ranks = ranks

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Change every tensor, so that each version is sent whole, and say when."""
        self.updates += 1
        valid = float(np.count_nonzero(batch["valid"][:-1]))
        rows = sum(share[0] for share in self._ranks.gather([valid]))
        weights = self.policy.weights()
        for name, array in weights.items():
            array.fill(time.monotonic() if name == STAMP else self.updates)
        return {"train_samples": rows}

    def save(self) -> Arrays:
        """The weights and how often they changed."""
        return {"updates": np.array(self.updates), **self.policy.weights()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self.updates = int(state["updates"])
        self.policy.load_weights({n: a for n, a in state.items() if n != "updates"})
