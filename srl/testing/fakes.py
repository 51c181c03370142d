"""Fakes for tests of workers and streams: a policy and a learner of a few NumPy calls.

Their answers are functions of the observation and the weights alone, so a test knows them.
"""

from collections.abc import Mapping

import numpy as np

from srl.core.algorithm import Records
from srl.core.arrays import Arrays
from srl.core.env import AgentSpec
from srl.core.spec import Field, Spec


class FakePolicy:
    """Answers `mark`, the sum of what a lane sees plus the weight, and an action made of it."""

    def __init__(self, agent: AgentSpec) -> None:
        self.records = Records(Spec((agent.action.field, Field("mark", (), "float32"))))
        self.batches: list[int] = []
        """Lanes of every batch so far."""
        self._names = agent.observation_names
        self._weight = np.zeros((), np.float32)

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """`[N]` marks and actions."""
        num_lanes = len(inputs[self._names[0]])
        self.batches.append(num_lanes)
        seen = [np.asarray(inputs[n]).reshape(num_lanes, -1).sum(1) for n in self._names]
        mark = (np.sum(seen, axis=0) + self._weight).astype(np.float32)
        action = self.records.outputs["action"]
        shaped = mark.reshape(-1, *[1] * len(action.shape)) % 2
        actions = np.broadcast_to(shaped, (num_lanes, *action.shape)).astype(action.dtype)
        return {"action": actions, "mark": mark}

    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Like `act`."""
        return self.act(inputs)

    def weights(self) -> Arrays:
        """One number."""
        return {"weight": self._weight.copy()}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take the number over."""
        self._weight = weights["weight"].copy()

    def save(self) -> Arrays:
        """The weight."""
        return self.weights()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self.load_weights(state)


class FakeLearner:
    """Keeps a copy of every batch and raises the policy's weight by one."""

    def __init__(self, policy: FakePolicy) -> None:
        self.policy = policy
        self.updates = 0
        self.seen: list[Arrays] = []
        self.progress: list[float] = []

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Remember the batch."""
        self.seen.append({name: np.array(array) for name, array in batch.items()})
        self.progress.append(progress)
        self.updates += 1
        self.policy.load_weights({"weight": np.asarray(self.updates, np.float32)})
        return {"train_samples": float(np.count_nonzero(batch["valid"]))}

    def save(self) -> Arrays:
        """The counter, which is the weight too."""
        return {"updates": np.array(self.updates)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self.updates = int(state["updates"])
        self.policy.load_weights({"weight": np.asarray(self.updates, np.float32)})
