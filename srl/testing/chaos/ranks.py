"""Trainers that meet, though all run in one thread at a time: who waits for the others lets them run.

A rank's calls run in a thread of their own, to which the simulation hands over and which hands back when
its call ends or waits: there is no moment in which two run, so that a schedule stays its seed.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from srl.core.errors import StreamError
from srl.testing.chaos.network import KilledError, Process


class Fiber:
    """Runs calls that may wait inside."""

    def __init__(self) -> None:
        self.is_busy = False
        """A call waits."""
        self._do: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._until: Callable[[], bool] = lambda: True
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._work, name="fiber", daemon=True)
        self._thread.start()

    def run(self, do: Callable[[], Any]) -> Any:
        """Begin a call, or go on with the one that waits; its result, or False while it waits."""
        if not self.is_busy:
            self._do, self.is_busy = do, True
        elif not self._until():
            return False
        self._go.release()
        self._back.acquire()
        if self.is_busy:
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result

    def wait(self, until: Callable[[], bool]) -> None:
        """From inside of a call: let the others run, and go on in a later turn in which that holds."""
        self._until = until
        self._back.release()
        self._go.acquire()

    def close(self) -> None:
        """End the thread; no call may wait."""
        assert not self.is_busy
        self._do = None
        self._go.release()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._go.acquire()
            if self._do is None:
                return
            try:
                self._result = self._do()
            except BaseException as error:  # noqa: BLE001 - it is raised where it was called
                self._error = error
            self.is_busy = False
            self._back.release()


class SimulatedGroup:
    """One life of the trainers of a policy: who of them live, and what they told each other."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self.size = size
        self.rng = rng
        self.processes: list[Process] = []
        self.rounds: dict[int, dict[int, list[float]]] = {}
        """Number of a meeting to what each rank said there."""

    @property
    def is_broken(self) -> bool:
        """Whether one of them is dead, so that the others cannot go on."""
        return any(process.is_dead for process in self.processes)

    def join(self, rank: int, process: Process) -> "SimulatedRank":
        """The place of one of them; all join before any of them speaks."""
        self.processes.append(process)
        return SimulatedRank(self, rank, process)


class SimulatedRank:
    """One rank's place: a Group, and the Collective of both its uses."""

    def __init__(self, group: SimulatedGroup, rank: int, process: Process) -> None:
        self.group = group
        self.rank = rank
        self.size = group.size
        self.fiber = Fiber()
        self._process = process
        self._meetings = 0

    @property
    def learner(self) -> "SimulatedRank":
        """Itself."""
        return self

    @property
    def meeting(self) -> "SimulatedRank":
        """Itself."""
        return self

    def sum_(self, tensor: Any) -> None:
        """Nobody computes with tensors here."""
        raise NotImplementedError

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """What all say, when all have; raises StreamError where one of them is dead.

        One that died after it spoke was heard, or was not: by the group's generator.
        """
        self._process.call()
        said = self.group.rounds.setdefault(self._meetings, {})
        self._meetings += 1
        said[self.rank] = list(values)
        if not self._is_over(said):
            self.fiber.wait(lambda: self._is_over(said))
            self._process.call()
        is_heard = len(said) == self.size
        if self.group.is_broken and not (is_heard and self.group.rng.random() < 0.5):
            raise StreamError(f"rank {self.rank} has lost another")
        return [said[rank] for rank in range(self.size)]

    def _is_over(self, said: Mapping[int, list[float]]) -> bool:
        return len(said) == self.size or self.group.is_broken

    def close(self) -> None:
        """Leave, also out of the middle of a call: its process is dead then."""
        if self.fiber.is_busy:
            self._process.is_dead = True
            with contextlib.suppress(KilledError):
                self.fiber.run(lambda: None)
        self.fiber.close()
