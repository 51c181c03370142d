"""Runs the real experiment and looks at one window of it, once it is steady.

Env steps are counted where they are learned, and the window begins and ends with a learned batch:
what is under way then is the same at both ends, however large a batch is.
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from srl.api import train_experiment
from srl.core.errors import WorkerError
from srl.core.experiment import Experiment, StopConfig
from srl.telemetry.view import Silent
from srl.tools.bench.report import num_cores
from srl.transport.control import Message, Ready, Report

STEADY_VERSION = 2
"""Batches learned before a run counts as steady."""
_CONTROLLER, _AGENT = "controller", "node-agent"


@dataclass(frozen=True)
class Window:
    """What was seen of a run in a window."""

    seconds: float
    env_steps: int
    """Learned from, of the first policy that learns."""
    versions: int
    """Batches it learned."""
    workers: Mapping[str, Mapping[str, float]]
    """Worker to what its time went to, as shares of the time that passed; `other` is the rest."""
    cpu: Mapping[str, float]
    """Process (workers, controller, node agent) to the cores it kept busy, on average."""
    elsewhere: float | None
    """Cores that other processes kept busy; None where that cannot be seen."""

    @property
    def env_steps_per_second(self) -> float:
        """The rate."""
        return self.env_steps / self.seconds


@dataclass
class _Snapshot:
    """Everything at one moment, when a batch was learned."""

    time: float
    version: int
    env_steps: int
    reports: dict[str, tuple[float, Mapping[str, float]]]
    cpu: dict[str, float]
    busy: float | None


@dataclass
class _Watch:
    """Waits until the run is steady, then for the end of the window; a `Watcher` of the run."""

    warm_up: float
    window: float
    start: _Snapshot | None = None
    end: _Snapshot | None = None
    pids: dict[str, int] = field(default_factory=dict)
    reports: dict[str, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    opened: float | None = None
    """When the first batch was learned."""
    leader: str | None = None
    """The trainer whose batches are counted: the first that learned one."""

    def hear(self, messages: Sequence[Message]) -> str | None:
        """Take messages in; ends the run with the window."""
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Ready):
                self.pids[message.worker] = message.pid
            elif isinstance(message, Report):
                if message.seconds:  # who guards a door has none
                    self.reports[message.worker] = now, dict(message.seconds)
                if message.updates:
                    self._learned(message.worker, now, message.updates[-1])
        return None if self.end is None else "the window is over"

    def _learned(self, worker: str, now: float, update: Mapping[str, float]) -> None:
        self.leader = self.leader or worker
        if self.end is not None or worker != self.leader:
            return
        self.opened = self.opened or now
        version, env_steps = int(update["version"]), int(update["consumed_env_steps"])
        if self.start is None:
            if now >= self.opened + self.warm_up and version >= STEADY_VERSION:
                self.start = self._look(now, version, env_steps)
        elif now >= self.start.time + self.window:
            self.end = self._look(now, version, env_steps)

    def _look(self, now: float, version: int, env_steps: int) -> _Snapshot:
        cpu = {_CONTROLLER: time.process_time()}
        for name, pid in self.pids.items():
            seconds, parent = _process(pid)
            cpu[name] = seconds
            if parent != os.getpid() and _AGENT not in cpu and parent:
                cpu[_AGENT] = _process(parent)[0]
        return _Snapshot(now, version, env_steps, dict(self.reports), cpu, _busy_seconds())

    def result(self) -> Window:
        """What happened between the two ends."""
        start, end = self.start, self.end
        assert start is not None
        assert end is not None
        seconds = end.time - start.time
        cpu = {
            name: (used - start.cpu[name]) / seconds
            for name, used in end.cpu.items()
            if name in start.cpu
        }
        elsewhere = None
        if start.busy is not None and end.busy is not None:
            elsewhere = max(0.0, (end.busy - start.busy) / seconds - sum(cpu.values()))
        workers = {
            name: _shares(start.reports[name], end.reports[name])
            for name in end.reports
            if name in start.reports
        }
        return Window(
            seconds=seconds,
            env_steps=end.env_steps - start.env_steps,
            versions=end.version - start.version,
            workers=workers,
            cpu=cpu,
            elsewhere=elsewhere,
        )


def run_window(experiment: Experiment[Any], *, warm_up: float, window: float) -> Window:
    """Run the experiment in processes of its own and look at a window of it.

    Args:
        experiment: what to run; it is neither evaluated nor saved while it runs.
        warm_up: seconds after the first learned batch.
        window: seconds; longer by up to a batch.

    Raises:
        WorkerError: the run failed, with its reason.
    """
    watch = _Watch(warm_up, window)
    with tempfile.TemporaryDirectory(prefix="srl-bench-") as folder:
        bare = replace(
            experiment,
            stop=StopConfig(),
            checkpoint=replace(experiment.checkpoint, seconds=1e9),
            evaluation=replace(experiment.evaluation, episodes=0, count=0),
            out=str(Path(folder) / "run"),
        )
        summary = train_experiment(bare, lambda _: Silent(), watch).summary
    if summary["status"] == "interrupted":
        raise KeyboardInterrupt
    if watch.end is None:
        raise WorkerError(f"the run ended before its window: {summary['reason']}")
    return watch.result()


def _shares(
    start: tuple[float, Mapping[str, float]], end: tuple[float, Mapping[str, float]]
) -> dict[str, float]:
    """Where a worker's time went between two of its reports."""
    seconds = end[0] - start[0]
    if seconds <= 0:
        return {}
    split = {name: (total - start[1].get(name, 0.0)) / seconds for name, total in end[1].items()}
    return {**split, "other": max(0.0, 1 - sum(split.values()))}


def _process(pid: int) -> tuple[float, int]:
    """CPU seconds of a process, all threads together, and its parent; zeros where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK"), int(text[1])


def _busy_seconds() -> float | None:
    """Seconds that the cores of this host were busy; None where others' cores are in it too."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    cores = [line for line in lines if line.startswith("cpu") and line[3].isdigit()]
    if len(cores) != num_cores():
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(n) for n in lines[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
