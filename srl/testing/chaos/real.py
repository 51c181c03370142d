"""Real runs with real faults: processes are killed, stopped and slowed down, and envs are broken.

All by a schedule that is drawn from a seed. Everything a run is known by, is read from outside, and is
its own: several can go on at once.
"""

import json
import os
import random
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srl.api import find_experiment
from srl.core.env import Box
from srl.core.replay import Replays
from srl.launch.graph.env_factory import env_spec
from srl.testing.chaos import broken, replays
from srl.testing.chaos.checker import SILENT_SECONDS, Checker, Violation
from srl.testing.chaos.run import Run, send_signal, size_of

_READY_SECONDS = 90.0
_FAULT_SECONDS = 2.5
"""Between two faults, on average."""
_TICK_SECONDS = 0.05
_LOOK_SECONDS = 0.5
_MORE_DESCRIPTORS = 4
_MORE_MEGABYTES = 20.0
_MAX_STALENESS = 1
_HANG_SECONDS = 3.0
"""What a call of an env may take: less than a person would choose."""
_TOLD_SECONDS = 10.0
"""More than it takes until a hang that was noticed is told."""
_OPTIONS = (
    *("--launcher", "local", "--stop.env-steps", "1000000000"),
    *("--actors.envs", "8", "--actors.count", "2", "--env.timeout-seconds", str(_HANG_SECONDS)),
    *("--evaluation.episodes", "0", "--checkpoint.seconds", "2", "--restarts.wait-seconds", "0.2"),
    *("--max-staleness", str(_MAX_STALENESS)),
)
_PPO = (
    *("--algorithm.batch-size", "256", "--algorithm.rollout", "16", "--algorithm.hidden", "16"),
    *("--algorithm.minibatch-size", "128"),
)
"""What learns where nothing else is asked for."""
TOPOLOGIES = {
    "inline inference": (),
    "one policy worker": ("--inference", "shm", "--actors.groups", "2"),
    "two policy workers": ("--inference", "shm", "--policies.count", "2"),
    "two trainers": ("--trainers.count", "2"),
    "over tcp": ("--samples", "tcp", "--inference", "tcp", "--policies.count", "2"),
    "replay": (),
    "replay in two buffers": ("--buffers.count", "2"),
    "replay over tcp": ("--buffers.count", "2", "--samples", "tcp", "--trainers.count", "2"),
}
"""Name to options; those called replay are for algorithms that have it, or else for `replays`."""


@dataclass
class RealOutcome:
    """What became of one run."""

    seed: int
    topology: str
    envs: str
    """`single` or `batch`: what of them breaks."""
    seconds: float
    faults: list[str] = field(default_factory=list)
    broken: int = 0
    """Envs that were to break, and did."""
    versions: int = 0
    restarts: int = 0
    took: float = 0.0
    """Seconds from its start until nothing was left of it."""
    violations: list[Violation] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)


def run_real(
    seed: int, *, seconds: float = 20.0, faults: int = 4, experiment: str | None = None
) -> RealOutcome:
    """One run of so many seconds and faults; nothing of it is left, whatever happens.

    Of an `experiment` it has all but the env, and the algorithm must be a small one; None: PPO.
    """
    started = time.monotonic()
    found = None if experiment is None else find_experiment(experiment)
    names = sorted(TOPOLOGIES)
    if found is not None and not isinstance(found.algorithm, Replays):
        names = [name for name in names if not name.startswith("replay")]
    name = names[seed % len(names)]
    envs = sorted(broken.ENVS)[seed // len(names) % len(broken.ENVS)]
    outcome = RealOutcome(seed, name, envs, seconds)
    options: dict[str, Any] = {}
    is_replayed = name.startswith("replay")
    whose = (f"{replays.__name__}:{envs}",) if is_replayed else (broken.ENVS[envs], *_PPO)
    if found is not None:
        is_replayed = isinstance(found.algorithm, Replays)
        options["real"] = isinstance(next(iter(env_spec(found.env).agents.values())).action, Box)
        whose = (f"{experiment}", "--env.name", broken.ENVS[envs])
    place = Path(tempfile.mkdtemp(prefix="srlc-"))
    levers = place / "levers"
    levers.mkdir()
    options["folder"] = str(levers)
    checker = Checker(max_staleness=None if is_replayed else _MAX_STALENESS)
    words = [*whose, "--env.options", json.dumps(options), *_OPTIONS, *TOPOLOGIES[name]]
    run = Run(place, ["train", *words, "--seed", str(seed)])
    chaos = _Chaos(run, broken.Lever(levers), checker, random.Random(seed), outcome)
    try:
        chaos.disturb(faults)
        ending = time.time()
        code = run.end()
        checker.must("ends", code == 0, f"exit code {code}: {run.output[-800:]}")
        if outcome.faults:  # else it did not even begin, which is noted
            chaos.judge(ending)
        checker.left("processes", run.wait_gone())
        checker.left("sockets", [path.name for path in run.temporary.glob("srl-*")])
        checker.left("shared memory", run.shared_left())
    finally:
        run.kill_all()
        shutil.rmtree(place, ignore_errors=True)
    outcome.violations, outcome.seen = checker.violations, dict(checker.seen)
    outcome.took = time.monotonic() - started
    return outcome


class _Chaos:
    """What is done to one run."""

    def __init__(
        self,
        run: Run,
        lever: broken.Lever,
        checker: Checker,
        rng: random.Random,
        outcome: RealOutcome,
    ) -> None:
        self._run = run
        self._lever = lever
        self._checker = checker
        self._rng = rng
        self._outcome = outcome
        self._wake_at: list[tuple[float, int]] = []
        """When to wake which process."""
        self._killed = set[int]()

    def disturb(self, faults: int) -> None:
        """Let it run, and do it harm."""
        run, checker, outcome = self._run, self._checker, self._outcome
        if not run.wait_until(lambda: len(run.rows()) >= 3, _READY_SECONDS):
            checker.must("ends", False, f"it did not begin: {run.output[-800:]}")
            return
        before = {name: size_of(pid) for name, pid in run.overseers()}
        self._play(outcome.seconds, faults)
        learned = len(run.rows())
        goes_on = run.wait_until(
            lambda: len(run.rows()) > learned + 2 and not self._lever.is_pulled,
            SILENT_SECONDS + 30,
        )
        words = f"nothing was learned after the last fault: {outcome.faults}"
        checker.must("silent", goes_on, words)
        for name, pid in run.overseers():
            if name in before:
                more = size_of(pid).descriptors - before[name].descriptors
                checker.left(f"descriptors of {name}", max(0, more - _MORE_DESCRIPTORS))
                more = size_of(pid).megabytes - before[name].megabytes
                checker.left(f"MB of {name}", max(0.0, more - _MORE_MEGABYTES))

    def judge(self, ended: float) -> None:
        """What its folder says of it; `ended` is when it was told to stop, as Unix time."""
        summary, outcome = self._run.summary, self._outcome
        self._checker.told(self._run.rows(), summary)
        outcome.versions, outcome.restarts = summary["version"], summary["worker_restarts"]
        self._judge_envs(int(summary["env_failures"]), ended)

    def _judge_envs(self, failures: int, ended: float) -> None:
        """Every env that broke is counted, and every hang is told, unless its process was killed."""
        pulled = self._lever.pulled()
        self._outcome.broken = len(pulled)
        sure = [lever for lever in pulled if lever.pid not in self._killed]
        hangs = [p for p in sure if p.way.endswith("hang") and p.at < ended - _TOLD_SECONDS]
        raised = sum(not lever.way.endswith("hang") for lever in sure)
        words = f"{raised} envs broke, {failures} were counted"
        self._checker.must("silent", failures >= raised, words)
        notes = self._run.folder / "errors" / "notes.txt"
        told = notes.read_text().count("did not come back") if notes.exists() else 0
        words = f"{len(hangs)} envs hung, {told} were told"
        self._checker.must("silent", told >= len(hangs), words)

    def _play(self, seconds: float, faults: int) -> None:
        rng, outcome = self._rng, self._outcome
        start = time.monotonic()
        fault_at, look_at = start + rng.uniform(0.2, 2.0), start
        while time.monotonic() - start < seconds and self._run.is_alive:
            now = time.monotonic()
            self._wake(now)
            if now >= look_at:
                look_at = now + _LOOK_SECONDS
                self._run.look_at_shared()
            if now >= fault_at and (len(outcome.faults) < faults or rng.random() < 0.3):
                fault_at = now + min(rng.expovariate(1 / _FAULT_SECONDS), seconds / faults)
                if (fault := self._harm(now)) is None:
                    fault_at = now  # soon again
                else:
                    outcome.faults.append(fault)
            time.sleep(_TICK_SECONDS)
        self._wake(float("inf"))

    def _wake(self, now: float) -> None:
        for moment, pid in [wake for wake in self._wake_at if wake[0] <= now]:
            self._wake_at.remove((moment, pid))
            send_signal(pid, signal.SIGCONT)

    def _harm(self, now: float) -> str | None:
        """One fault, of any kind; None where there was nobody to harm."""
        rng, workers = self._rng, self._run.workers()
        kind = rng.choice(["kill", "kill", "sleep", "slow", "break", "break"])
        name = rng.choice(sorted(workers)) if workers else ""
        if kind == "break":
            way = rng.choice(broken.WAYS[self._outcome.envs])
            self._lever.pull(way)
            return f"break env in {way}"
        if not name:
            return None
        pid = workers[name]
        if kind == "kill":
            self._killed.add(pid)
            is_done = send_signal(pid, signal.SIGKILL)
        elif kind == "sleep":
            is_done = send_signal(pid, signal.SIGSTOP)
            self._wake_at.append((now + rng.uniform(0.5, 4.0), pid))
        else:
            is_done = _slow(pid)
        return f"{kind} {name}" if is_done else None


def _slow(pid: int) -> bool:
    try:
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    except OSError:
        return False
    return True
