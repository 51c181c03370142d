"""Fakes for tests of workers and streams: a policy and a learner of a few NumPy calls.

Their answers are functions of the observation and the weights alone, so a test knows them.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from srl.core.algorithm import Records
from srl.core.arrays import Arrays
from srl.core.env import AgentSpec
from srl.core.errors import StreamError
from srl.core.spec import Field, Spec

ResultT = TypeVar("ResultT")


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


class ThreadRanks:
    """A Collective whose ranks are threads of one process; sums are added in the order of ranks."""

    def __init__(self, rank: int, shared: list[Any], barrier: threading.Barrier) -> None:
        """One rank of a `group`."""
        self.rank = rank
        self.size = len(shared)
        self._shared = shared
        self._barrier = barrier

    @classmethod
    def group(cls, size: int, *, seconds: float = 60.0) -> list["ThreadRanks"]:
        """As many ranks that know each other; a call waits at most this long for the others."""
        barrier, shared = threading.Barrier(size, timeout=seconds), [None] * size
        return [cls(rank, shared, barrier) for rank in range(size)]

    def sum_(self, tensor: Any) -> None:
        """Replace a tensor by its sum over all ranks."""
        total, *others = self._exchange(tensor.detach().clone())
        for other in others:
            total = total + other
        tensor.detach().copy_(total)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank."""
        gathered = [list(map(float, theirs)) for theirs in self._exchange(list(values))]
        if len({len(theirs) for theirs in gathered}) > 1:
            raise StreamError(f"the ranks gave different numbers of values: {gathered}")
        return gathered

    def abort(self) -> None:
        """Let every rank fail that waits, now or later."""
        self._barrier.abort()

    def _exchange(self, value: Any) -> list[Any]:
        try:
            if self._barrier.broken:
                raise threading.BrokenBarrierError
            self._shared[self.rank] = value
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise StreamError(f"rank {self.rank} of {self.size} was left by another") from error
        values = list(self._shared)
        with contextlib.suppress(threading.BrokenBarrierError):  # one left, but after this call
            self._barrier.wait()  # nobody goes on to the next call before all have read
        return values


def run_ranks(size: int, function: Callable[[ThreadRanks], ResultT]) -> list[ResultT]:
    """Call `function` with each rank of a group, in a thread each; the results, by rank.

    Raises the first error; the others are then woken up.
    """
    ranks = ThreadRanks.group(size)
    results: dict[int, ResultT] = {}
    errors: list[Exception] = []

    def run(rank: ThreadRanks) -> None:
        try:
            results[rank.rank] = function(rank)
        except Exception as error:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(error)
            rank.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]
