"""How much memory each process takes, and which of them does not stop growing."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SETTLE_SECONDS = 20.0
"""After its start a worker makes its envs and fills its buffers: that is not growth."""
_MUCH_MEGABYTES = 64.0
_STEADY = 0.4
"""Share of all growth that the later half of the time must have: less, and it comes to an end."""
_MOST_SAMPLES = 64


def own_megabytes(pid: int | str = "self", processes: Path = Path("/proc")) -> float | None:
    """Resident memory of a process without arenas and libraries; None: unknown.

    What a forked actor has in common with its agent is counted with both.
    """
    try:
        _, resident, shared, *_ = (processes / str(pid) / "statm").read_text().split()
    except (OSError, ValueError):  # it has ended, or this is not Linux
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES / 1e6


class Growth:
    """The memory of one process over its life."""

    def __init__(self, expected: float = 0.0) -> None:
        """Of one that is to grow by so many megabytes, as replay is filled."""
        self._expected = expected
        self._started: float | None = None
        self._samples: list[tuple[float, float]] = []
        """Seconds and megabytes, about evenly over its life."""
        self._next = 0.0
        self._seconds_between = 0.0

    def add(self, now: float, megabytes: float) -> None:
        """Take in a sample."""
        if self._started is None:
            self._started = now
        if now - self._started < _SETTLE_SECONDS or now < self._next:
            return
        if len(self._samples) == _MOST_SAMPLES:
            self._seconds_between = 2 * (now - self._samples[0][0]) / _MOST_SAMPLES
            del self._samples[1::2]
        self._samples.append((now, megabytes))
        self._next = now + self._seconds_between

    @property
    def rate(self) -> float | None:
        """Megabytes a second, where it has grown by much and goes on doing so."""
        if len(self._samples) < 3:
            return None
        (first, least), (last, most) = self._samples[0], self._samples[-1]
        grown = most - least
        if grown < _MUCH_MEGABYTES + self._expected:
            return None
        middle = (first + last) / 2
        _, then = min(self._samples, key=lambda sample: abs(sample[0] - middle))
        return grown / (last - first) if most - then >= _STEADY * grown else None


class Memory:
    """The memory of all processes of a run."""

    def __init__(self) -> None:
        self.expected: Mapping[str, float] = {}
        """Kind of worker to megabytes that each of them is to grow by."""
        self._now: dict[str, float] = {}
        self._growths: dict[str, Growth] = {}
        self.growing: dict[str, float] = {}
        """Worker to megabytes a second, of those that grew and grew in one of their lives."""

    def forget(self, worker: str) -> None:
        """A new life of a worker begins."""
        self._now.pop(worker, None)
        self._growths.pop(worker, None)

    def take(self, now: float, megabytes: Mapping[str, float]) -> list[str]:
        """Take in samples, in megabytes; workers that are now known to grow."""
        new = []
        for worker, size in megabytes.items():
            self._now[worker] = size
            expected = self.expected.get(worker.partition("-")[0], 0.0)
            growth = self._growths.setdefault(worker, Growth(expected))
            growth.add(now, size)
            if (rate := growth.rate) is not None:
                if worker not in self.growing:
                    new.append(worker)
                self.growing[worker] = rate
        return new

    def of(self, worker: str) -> float:
        """Megabytes of a worker, when last seen."""
        return self._now.get(worker, 0.0)

    @property
    def total(self) -> float:
        """Megabytes of all processes, arenas not counted."""
        return sum(self._now.values())

    def largest(self) -> dict[str, tuple[str, float]]:
        """Kind of worker to the largest of it, and its megabytes."""
        found: dict[str, tuple[str, float]] = {}
        for worker, size in self._now.items():
            kind = worker.partition("-")[0]
            if kind not in found or size > found[kind][1]:
                found[kind] = (worker, size)
        return found

    def summary(self) -> dict[str, Any]:
        """The facts of `summary.json`."""
        return {
            "megabytes": round(self.total, 1),
            "largest": {
                kind: {"worker": worker, "megabytes": round(size, 1)}
                for kind, (worker, size) in self.largest().items()
            },
            "growing": {worker: round(rate, 2) for worker, rate in self.growing.items()},
        }
