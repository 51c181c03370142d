"""Real runs with real faults: processes are killed, stopped and slowed down by a seeded schedule.

Everything a run is known by, is read from outside: its folder, its exit code, and /proc.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srl.testing.chaos.checker import SILENT_SECONDS, Checker, Violation
from srl.transport.slots import Ledger

_READY_SECONDS = 90.0
_END_SECONDS = 90.0
_FAULT_SECONDS = 2.5
"""Between two faults, on average."""
_MORE_DESCRIPTORS = 4
_MORE_MEGABYTES = 20.0
_MAX_STALENESS = 1
_EXPERIMENT = (
    *("toy/identity", "--launcher", "local", "--stop.env-steps", "1000000000"),
    *(
        "--actors.envs",
        "8",
        "--actors.count",
        "2",
        "--algorithm.batch-size",
        "256",
        "--algorithm.rollout",
        "16",
        "--algorithm.hidden",
        "16",
    ),
    *("--algorithm.minibatch-size", "128", "--evaluation.episodes", "0"),
    *(
        "--max-staleness",
        str(_MAX_STALENESS),
        "--checkpoint.seconds",
        "2",
        "--restarts.wait-seconds",
        "0.2",
    ),
)
TOPOLOGIES = {
    "inline inference": (),
    "one policy worker": ("--inference", "shm", "--actors.groups", "2"),
    "two policy workers": ("--inference", "shm", "--policies.count", "2"),
    "two trainers": ("--trainers.count", "2"),
}


@dataclass
class RealOutcome:
    """What became of one run."""

    seed: int
    topology: str
    seconds: float
    faults: list[str] = field(default_factory=list)
    versions: int = 0
    restarts: int = 0
    violations: list[Violation] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)


def run_real(seed: int, *, seconds: float = 20.0, faults: int = 4) -> RealOutcome:
    """One run of so many seconds and faults; nothing of it is left, whatever happens."""
    rng = random.Random(seed)
    name = sorted(TOPOLOGIES)[seed % len(TOPOLOGIES)]
    outcome = RealOutcome(seed, name, seconds)
    checker = Checker(max_staleness=_MAX_STALENESS)
    place = Path(tempfile.mkdtemp(prefix="srlc-"))
    run = _Run(place, ["train", *_EXPERIMENT, *TOPOLOGIES[name], "--seed", str(seed)])
    shared = set(os.listdir("/dev/shm"))
    try:
        _disturb(run, checker, rng, outcome, faults)
        code = run.end()
        checker.must("ends", code == 0, f"exit code {code}: {run.output[-800:]}")
        _judge(run, checker, outcome)
        checker.left("processes", run.wait_gone())
        checker.left("sockets", [path.name for path in place.glob("tmp/srl-*")])
        checker.left("shared memory", set(os.listdir("/dev/shm")) - shared)
    finally:
        run.kill_all()
        shutil.rmtree(place, ignore_errors=True)
    outcome.violations, outcome.seen = checker.violations, dict(checker.seen)
    return outcome


class _Run:
    """`srl` as a process, in a place of its own; its processes are known by their TMPDIR."""

    def __init__(self, place: Path, arguments: list[str]) -> None:
        self.folder = place / "run"
        self._log = place / "log"
        self._mark = f"TMPDIR={place / 'tmp'}".encode()
        (place / "tmp").mkdir()
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "srl.cli", *arguments, "--out", str(self.folder)],
                env={**os.environ, "TMPDIR": str(place / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def output(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace")

    def rows(self) -> list[dict[str, Any]]:
        """Whole lines of its metrics."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def workers(self) -> dict[str, int]:
        """Worker to pid, of those that live."""
        found = {}
        for path in sorted(self.folder.glob("logs/*.json")):
            try:
                pid = int(json.loads(path.read_text())["pid"])
            except (OSError, ValueError, KeyError):
                continue
            if pid in self.pids():
                found[path.stem] = pid
        return found

    def pids(self) -> list[int]:
        """Every live process of it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    marks = (entry / "environ").read_bytes().split(b"\0")
                    is_dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                except OSError:
                    continue
                if self._mark in marks and not is_dead:
                    found.append(int(entry.name))
        return found

    def overseers(self) -> Iterator[tuple[str, int]]:
        """The controller and the node agent, which live as long as the run."""
        yield "controller", self.popen.pid
        for pid in self.pids():
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == self.popen.pid:
                yield "node-agent", pid

    def end(self) -> int | None:
        """Stop it as a pre-emption would; its exit code, None where it does not end."""
        for pid in self.workers().values():
            _signal(pid, signal.SIGCONT)
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def wait_gone(self) -> list[int]:
        """Processes that are left ten seconds after the end."""
        deadline = time.monotonic() + 10
        while (left := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def kill_all(self) -> None:
        """End what is left, by pid."""
        for pid in self.pids():
            _signal(pid, signal.SIGKILL)
        self.popen.wait(10)


def _disturb(
    run: _Run, checker: Checker, rng: random.Random, outcome: RealOutcome, faults: int
) -> None:
    """Let it run, and do it harm."""
    seconds = outcome.seconds
    if not _wait(lambda: len(run.rows()) >= 3, run, _READY_SECONDS):
        checker.must("ends", False, f"it did not begin: {run.output[-800:]}")
        return
    before = {name: _size(pid) for name, pid in run.overseers()}
    start = time.monotonic()
    fault_at = start + rng.uniform(0.2, 2.0)
    wake_at: list[tuple[float, int]] = []
    while time.monotonic() - start < seconds and run.popen.poll() is None:
        now = time.monotonic()
        for moment, pid in [wake for wake in wake_at if wake[0] <= now]:
            wake_at.remove((moment, pid))
            _signal(pid, signal.SIGCONT)
        if now >= fault_at and (len(outcome.faults) < faults or rng.random() < 0.3):
            fault_at = now + min(rng.expovariate(1 / _FAULT_SECONDS), seconds / faults)
            outcome.faults.append(_harm(run, rng, wake_at, now))
        time.sleep(0.05)
    for _, pid in wake_at:
        _signal(pid, signal.SIGCONT)
    learned = len(run.rows())
    goes_on = _wait(lambda: len(run.rows()) > learned + 2, run, SILENT_SECONDS + 30)
    checker.must("silent", goes_on, f"nothing was learned after the last fault: {outcome.faults}")
    for name, pid in run.overseers():
        if name in before:
            descriptors, megabytes = (b - a for a, b in zip(before[name], _size(pid), strict=True))
            checker.left(f"descriptors of {name}", max(0, descriptors - _MORE_DESCRIPTORS))
            checker.left(f"MB of {name}", max(0.0, megabytes - _MORE_MEGABYTES))


def _harm(run: _Run, rng: random.Random, wake_at: list[tuple[float, int]], now: float) -> str:
    workers = run.workers()
    if not workers:
        return "nobody to harm"
    name = rng.choice(sorted(workers))
    pid = workers[name]
    kind = rng.choice(["kill", "kill", "sleep", "slow"])
    if kind == "kill":
        _signal(pid, signal.SIGKILL)
    elif kind == "sleep":
        _signal(pid, signal.SIGSTOP)
        wake_at.append((now + rng.uniform(0.5, 4.0), pid))
    else:
        try:
            os.setpriority(os.PRIO_PROCESS, pid, 19)
        except OSError:
            return f"too late to slow {name}"
    return f"{kind} {name}"


def _judge(run: _Run, checker: Checker, outcome: RealOutcome) -> None:
    """What its folder says of it."""
    rows = run.rows()
    for before, row in zip([None, *rows], rows, strict=False):
        checker.published(int(row["version"]), float(row["time"]["seconds"]))
        checker.learned(int(row["staleness_max"]))
        if before is not None:
            gap = row["time"]["seconds"] - before["time"]["seconds"]
            checker.must("silent", gap <= SILENT_SECONDS, f"nothing was learned for {gap:.0f} s")
    summary = json.loads((run.folder / "summary.json").read_text())
    names = ("sent", "consumed", "dropped", "lost", "in_flight", "duplicated")
    checker.ledger(Ledger(**{name: summary[f"blocks_{name}"] for name in names}), "at the end")
    outcome.versions, outcome.restarts = summary["version"], summary["worker_restarts"]


def _wait(is_done: Callable[[], bool], run: _Run, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline or run.popen.poll() is not None:
            return False
        time.sleep(0.1)
    return True


def _size(pid: int) -> tuple[float, float]:
    """Descriptors and resident megabytes of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return float(len(os.listdir(f"/proc/{pid}/fd"))), pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0, 0.0


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
