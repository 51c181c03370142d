"""An env, a policy and a learner that know what every row must be.

The env numbers its observations, no number ever twice; the policy's answer is a function of that
number and of its weights, of which every version has others; the learner sees to it that every row it
learns from has that answer, and that it never had this row before.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from srl.core.algorithm import Records
from srl.core.arrays import Arrays
from srl.core.env import AgentSpec, Discrete, EnvRequest, EnvSpec, Observation
from srl.core.spec import Spec
from srl.testing.chaos.checker import Checker

ANSWERS = 1009
LENGTH = 7
"""Steps of an episode."""


class World:
    """What the parts of one simulated run share, though its processes could not."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.numbers = itertools.count()
        self.weights_of: dict[int, int] = {}
        """Version to the number that its weights are."""
        self.learned = set[int]()


world: World | None = None
"""Of the run that is simulated now."""


def current() -> World:
    """Of the run that is simulated now."""
    assert world is not None, "no run is simulated"
    return world


class Numbers:
    """`E` envs that show numbers."""

    def __init__(self, request: EnvRequest) -> None:
        agent = AgentSpec((Observation("number", (), "int64"),), Discrete(ANSWERS))
        self.spec = EnvSpec(request.name, request.num_envs, {"agent_0": agent}, "nothing")
        self._step = 0

    @staticmethod
    def make_batch(request: EnvRequest) -> "Numbers":
        """Envs."""
        return Numbers(request)

    def reset(self, out: Any) -> None:
        """Begin."""
        self._step = 0
        self._show(out[0], first=True)

    def step(self, actions: Any, outcome: Any, out: Any) -> None:
        """Go on; an episode is truncated after LENGTH steps."""
        self._step = (self._step + 1) % (LENGTH + 1)
        outcome[0].reward.fill(1)
        outcome[0].terminated.fill(False)
        outcome[0].truncated.fill(self._step == LENGTH)
        self._show(out[0], first=self._step == 0)

    def save(self) -> Arrays:
        """Nothing."""
        return {}

    def load(self, state: Any, seen: Any) -> bool:
        """Nothing."""
        return False

    def close(self) -> None:
        """Nothing."""

    def _show(self, rows: Any, *, first: bool) -> None:
        shown = rows.obs["number"]
        numbers = current().numbers if world is not None else itertools.count()
        shown[...] = np.fromiter(itertools.islice(numbers, shown.size), np.int64).reshape(
            shown.shape
        )
        rows.first.fill(first)
        rows.valid.fill(self._step != LENGTH)
        rows.acting.fill(True)


def answer(numbers: np.ndarray, weights: int | np.ndarray) -> np.ndarray:
    """What a policy with these weights says; or several policies, each to one number."""
    return (numbers * 31 + weights * 17) % ANSWERS


class Answers:
    """A policy whose weights are one number."""

    def __init__(self, agent: AgentSpec) -> None:
        self.records = Records(Spec((agent.action.field,)))
        self.number = np.zeros(1, np.int64)

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Answer."""
        return {"action": answer(inputs["number"], int(self.number[0]))}

    act_greedy = act

    def weights(self) -> Arrays:
        """The number."""
        return {"number": self.number}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take another number."""
        np.copyto(self.number, weights["number"])

    def save(self) -> Arrays:
        """Nothing is random."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Nothing is random."""


class Judge:
    """A learner that judges its batches."""

    def __init__(self, agent: AgentSpec) -> None:
        self.policy = Answers(agent)
        self.updates = 0

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """See that every row is what it must be."""
        known, rows = current(), batch["valid"][:-1]  # the last row is the next block's first
        numbers, actions, versions = (batch[n][:-1][rows] for n in ("number", "action", "version"))
        weights = np.array([known.weights_of.get(int(v), -1) for v in versions])
        wrong = np.flatnonzero(answer(numbers, weights) != actions)
        known.checker.must(
            "answer", not wrong.size, f"{wrong.size} of {numbers.size} rows have another's answer"
        )
        again = known.learned.intersection(numbers.tolist())
        known.checker.must("twice", not again, f"rows {sorted(again)[:5]} were learned before")
        known.learned.update(numbers.tolist())
        self.updates += 1
        self.policy.number += 1
        return {"train_samples": float(rows.sum())}

    def save(self) -> Arrays:
        """The number and the updates."""
        return {"number": self.policy.number.copy(), "updates": np.array(self.updates)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from `save`."""
        np.copyto(self.policy.number, state["number"])
        self.updates = int(state["updates"])


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """Judges batches."""

    rollout: int = 3
    batch_size: int = 12

    def records(self, agent: AgentSpec) -> Records:
        """The action."""
        return Answers(agent).records

    def make_policy(self, agent: AgentSpec, **_: Any) -> Answers:
        """A policy."""
        return Answers(agent)

    def make_learner(self, agent: AgentSpec, **_: Any) -> Judge:
        """A learner."""
        return Judge(agent)
