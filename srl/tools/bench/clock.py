"""Measures what code costs: time on the wall, and time of all cores together."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from srl.core.telemetry import Telemetry


class Spent(NamedTuple):
    """Seconds that something took."""

    wall: float
    cpu: float
    """Of all threads of the process, native ones included."""


class _Timer:
    """Adds what a `with` takes to one name."""

    def __init__(self, clock: "Clock", name: str) -> None:
        self._clock = clock
        self._name = name
        self._start = Spent(0.0, 0.0)

    def __enter__(self) -> None:
        self._start = Spent(time.perf_counter(), time.process_time())

    def __exit__(self, *_: object) -> None:
        wall, cpu = time.perf_counter() - self._start.wall, time.process_time() - self._start.cpu
        clock, name = self._clock, self._name
        clock.seconds[name] += wall
        clock.cpu_seconds[name] += cpu
        clock.calls[name] += 1


class Clock(Telemetry):
    """A worker's telemetry that also reads the cores' time, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu_seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._core_timers: dict[str, _Timer] = {}

    def time(self, name: str) -> _Timer:  # pyright: ignore[reportIncompatibleMethodOverride] - a richer timer
        """A `with` block whose time counts as `name`; not for use inside itself."""
        timer = self._core_timers.get(name)
        if timer is None:
            timer = self._core_timers[name] = _Timer(self, name)
        return timer

    def take(self) -> tuple[dict[str, Spent], dict[str, int]]:
        """What was spent, by name, and the counters, since the last call."""
        spent = {name: Spent(self.seconds[name], self.cpu_seconds[name]) for name in self.calls}
        counted = {**self.counters, **{f"calls.{name}": n for name, n in self.calls.items()}}
        for numbers in (self.seconds, self.cpu_seconds, self.calls, self.counters):
            numbers.clear()
        return spent, counted


def repeat(
    call: Callable[[], object], seconds: float, *, most: int = 30, warms_up: bool = False
) -> list[Spent]:
    """Call again and again for about so long.

    The first call is a warm-up and does not count, unless it takes all of the time and `warms_up`
    does not say that it cost more than others (networks are compiled, graphs captured).
    """
    samples: list[Spent] = []
    until = time.perf_counter() + seconds
    while len(samples) < 2 or (time.perf_counter() < until and len(samples) <= most):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        samples.append(Spent(time.perf_counter() - wall, time.process_time() - cpu))
        if len(samples) == 1 and time.perf_counter() >= until and not warms_up:
            return samples
    return samples[1:]


def cost(samples: Sequence[Spent], rows: float, *, threads: int = 1) -> dict[str, float]:
    """Microseconds a row: the median of samples that did `rows` rows each, and their spread.

    `core_us` is what counts: the cores' time, but no more than the wall time of the threads that
    work: a thread that spins while another works is not a cost, nor are other processes.
    """
    cores = [min(s.cpu, s.wall * threads) / rows * 1e6 for s in samples]
    return {
        "core_us": statistics.median(cores),
        "lowest_us": min(cores),
        "highest_us": max(cores),
        "cpu_us": statistics.median(s.cpu for s in samples) / rows * 1e6,
        "wall_us": statistics.median(s.wall for s in samples) / rows * 1e6,
        "samples": len(samples),
    }
