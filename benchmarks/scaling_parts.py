"""An env and an algorithm that cost next to nothing, so that what is left is the data path.

The env shows `bytes` bytes, written anew each step; the policy answers zeros; the learner counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from srl.core.algorithm import Records
from srl.core.arrays import Arrays
from srl.core.env import AgentSpec, Discrete, EnvRequest, EnvSpec, Observation
from srl.core.experiment import ActorsConfig, EnvConfig, EvaluationConfig, Experiment
from srl.core.spec import Spec

LENGTH = 1000


class Bytes:
    """`E` envs that show the number of the step, `bytes` times; truncated after 1,000 steps."""

    def __init__(self, request: EnvRequest) -> None:
        seen = Observation("obs", (request.options["bytes"],), "uint8")
        agent = AgentSpec((seen,), Discrete(2))
        self.spec = EnvSpec(request.name, request.num_envs, {"agent_0": agent}, "nothing")
        self._step = 0

    @staticmethod
    def make_batch(request: EnvRequest) -> "Bytes":
        return Bytes(request)

    def reset(self, out: Any) -> None:
        self._step = 0
        self._show(out[0], first=True)

    def step(self, actions: Any, outcome: Any, out: Any) -> None:
        self._step = (self._step + 1) % (LENGTH + 1)
        outcome[0].reward.fill(1)
        outcome[0].terminated.fill(False)
        outcome[0].truncated.fill(self._step == LENGTH)
        self._show(out[0], first=self._step == 0)

    def save(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Any, seen: Any) -> bool:
        return False

    def close(self) -> None:
        pass

    def _show(self, rows: Any, *, first: bool) -> None:
        rows.obs["obs"].fill(self._step % 256)
        rows.first.fill(first)
        rows.valid.fill(self._step != LENGTH)
        rows.acting.fill(True)


class Zeros:
    """A policy that looks at one byte and answers zeros."""

    def __init__(self, agent: AgentSpec) -> None:
        self.records = Records(Spec((agent.action.field,)))

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        return {"action": np.zeros(len(inputs["first"]), np.int64)}

    act_greedy = act

    def weights(self) -> Arrays:
        return {"nothing": np.zeros(1, np.float32)}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        pass

    def save(self) -> Arrays:
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        pass


class Count:
    """A learner that counts."""

    def __init__(self, agent: AgentSpec) -> None:
        self.policy = Zeros(agent)
        self.updates = 0

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        self.updates += 1
        return {"train_samples": float(np.count_nonzero(batch["valid"][:-1]))}

    def save(self) -> Arrays:
        return {"updates": np.array(self.updates)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.updates = int(state["updates"])


@dataclass(frozen=True, kw_only=True)
class NothingConfig:
    """Learns nothing."""

    rollout: int = 32
    batch_size: int = 2048

    def records(self, agent: AgentSpec) -> Records:
        return Zeros(agent).records

    def make_policy(self, agent: AgentSpec, **_: Any) -> Zeros:
        return Zeros(agent)

    def make_learner(self, agent: AgentSpec, **_: Any) -> Count:
        return Count(agent)


def experiment() -> Experiment[NothingConfig]:
    return Experiment(
        name="scaling",
        env=EnvConfig(name=f"{__file__}:Bytes", options='{"bytes": 64}'),
        algorithm=NothingConfig(),
        actors=ActorsConfig(count=1, envs=64, groups=1),
        evaluation=EvaluationConfig(episodes=0),
        inference="shm",
    )
