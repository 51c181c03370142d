"""One size of the scale bench: the controller of a run with so many light clients, in this process.

python -m srl.tools.bench.scale_run ORDER.json RESULT.json
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from srl.api import find_experiment
from srl.core.errors import WorkerError
from srl.core.experiment import Experiment
from srl.launch.cluster import ClusterLauncher, Starter, SubprocessStarter
from srl.launch.controller import Controller, Interrupts, Launcher
from srl.launch.folder import RunFolder
from srl.launch.graph.plan import Plan, make_plan
from srl.launch.host.limits import raise_descriptors
from srl.launch.host.process import thread_environment
from srl.telemetry.view import Silent
from srl.tools.bench.replay import ReplayConfig
from srl.transport.control import Message, Ready, Report
from srl.workers.run import die_with_parent

_JOIN_SECONDS = 300.0
_WARM_VERSIONS = 2
"""That are published when all clients are there, before the window begins."""
_TICK = os.sysconf("SC_CLK_TCK")
_ADDRESS = "127.0.0.1"


class ScaleOrder(msgspec.Struct):
    """What is run, and where."""

    clients: int
    agents: int
    trainers: int
    crowds: int
    """Processes that the agents and their clients share."""
    seconds: float
    """Of the window."""
    seconds_a_block: float
    rows: int
    """Of a block."""
    megabytes: float
    """Of a version."""
    folder: str


def experiment_of(order: ScaleOrder) -> Experiment[Any]:
    """A batch is a block of every client, so a version comes as often as a client sends."""
    words = f"--actors.count {order.clients} --actors.envs 1 --actors.groups 1 --launcher ray"
    words += f" --inference shm --trainers.count {order.trainers} --evaluation.episodes 0"
    words += " --checkpoint.seconds 100000 --stop.env-steps 1000000000000 --stop.return None"
    found = find_experiment("toy/identity", words.split())
    algorithm = ReplayConfig(
        rollout=order.rows, batch_size=order.clients * order.rows, megabytes=order.megabytes
    )
    return replace(found, name="scale", algorithm=algorithm)


def plan_of(order: ScaleOrder, experiment: Experiment[Any], folder: Path) -> Plan:
    """Trainers and the policy worker on host 0, which is whole; clients on the others."""
    hosts = {f"actor-{i}": 1 + i * order.agents // order.clients for i in range(order.clients)}
    plan = make_plan(experiment)
    return msgspec.structs.replace(plan, hosts=hosts, folder=str(folder.resolve()))


class CrowdProcess:
    """A process that is some hosts."""

    def __init__(self, log: Path, seconds_a_block: float) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "srl.tools.bench.crowd", str(seconds_a_block)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=thread_environment(1),
                start_new_session=True,
            )

    def tell(self, order: bytes) -> None:
        """Have it be one more host."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + b"\n")
        self._process.stdin.flush()

    def failure(self) -> str | None:
        """Why it has ended; None while it has not."""
        if self._process.poll() is None:
            return None
        said = self._log.read_text(errors="replace").splitlines()
        return said[-1] if said else f"it ended with {self._process.returncode}"

    def close(self, grace_seconds: float) -> None:
        """Close its input, and kill it where that does not end it; may be called twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)


class CrowdStarter:
    """Starts a host as a part of a crowd."""

    address = _ADDRESS

    def __init__(self, crowd: CrowdProcess) -> None:
        self._crowd = crowd

    def start(self, order: bytes) -> None:
        """Have the crowd be this host."""
        self._crowd.tell(order)

    def failure(self) -> str | None:
        """Why the crowd has ended; None while it has not."""
        return self._crowd.failure()

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self.failure() is not None

    def close(self, grace_seconds: float) -> None:
        """End the crowd, and with it its other hosts."""
        self._crowd.close(grace_seconds)


class ScaleController(Controller):
    """The controller of every run, with hosts of the bench's own."""

    starters: Mapping[int, Starter]

    def _launch(self, interrupts: Interrupts) -> Launcher:
        return ClusterLauncher(self._plan, self._folder.path, self.starters, address=_ADDRESS)


class Usage(msgspec.Struct):
    """What the processes of a run have used at a moment."""

    at: float
    cpu: dict[str, float]
    """Kind of process to core-seconds."""
    megabytes: dict[str, float]
    """Kind to resident memory, what is shared counted with each."""

    def since(self, before: "Usage") -> dict[str, float]:
        """Kind to the cores that it kept busy."""
        seconds = self.at - before.at
        return {k: (cpu - before.cpu.get(k, 0.0)) / seconds for k, cpu in self.cpu.items()}


def usage() -> Usage:
    """Of this process and all that it has started."""
    parents, cpu, megabytes, kinds = {}, {}, {}, {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            head, _, tail = (path / "stat").read_text().rpartition(")")
            words = (path / "cmdline").read_bytes().split(b"\0")
            resident = int((path / "statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        pid, fields = int(path.name), tail.split()
        parents[pid] = int(fields[1])
        cpu[pid] = (int(fields[11]) + int(fields[12])) / _TICK
        megabytes[pid] = resident * os.sysconf("SC_PAGE_SIZE") / 1e6
        kinds[pid] = _kind(head.partition("(")[2], words)
    found = Usage(time.monotonic(), {}, {})
    for pid, seconds in cpu.items():
        if _descends(pid, parents):
            kind = "controller" if pid == os.getpid() else kinds[pid]
            found.cpu[kind] = found.cpu.get(kind, 0.0) + seconds
            found.megabytes[kind] = found.megabytes.get(kind, 0.0) + megabytes[pid]
    return found


def _kind(name: str, words: Sequence[bytes]) -> str:
    """Of a process: a worker calls itself by its name, others are known by their module."""
    worker = name.partition("-")[0]
    if worker in ("trainer", "policy"):
        return worker
    modules = [word.decode().rpartition(".")[2] for word in words if word.startswith(b"srl.")]
    return {"crowd": "agents"}.get(modules[0], modules[0]) if modules else "other"


def _descends(pid: int, parents: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False


class Window:
    """Hears what the controller hears; measures from when all is warm until the window ends."""

    def __init__(self, order: ScaleOrder) -> None:
        self._order = order
        self._started = time.monotonic()
        self._registered: set[str] = set()
        self.seconds_to_register = 0.0
        self._warm = 0
        self.beats = 0
        self.rows: list[tuple[float, float]] = []
        """When a batch was heard of, and the rows learned until then."""
        self.begun: Usage | None = None
        self.ended: Usage | None = None
        self.beats_before = 0
        self.is_late = False

    @property
    def registered(self) -> int:
        """Clients that have come."""
        return len(self._registered)

    def hear(self, messages: Sequence[Message]) -> str | None:
        """Take messages in; a reason ends the run."""
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Report):
                self._on_report(message, now)
            elif isinstance(message, Ready) and message.worker.startswith("actor-"):
                self._registered.add(message.worker)
                self.seconds_to_register = now - self._started
        is_full = self.registered == self._order.clients
        if not is_full and now - self._started > _JOIN_SECONDS:
            self.is_late = True
            return f"only {self.registered} clients came within {_JOIN_SECONDS:.0f} s"
        if self.begun is None and self._warm >= _WARM_VERSIONS:
            self.begun, self.beats_before = usage(), self.beats
        if self.begun is not None and now >= self.begun.at + self._order.seconds:
            self.ended = usage()
            return "the window is over"
        return None

    def _on_report(self, report: Report, now: float) -> None:
        if report.worker.startswith("actor-"):
            self.beats += 1
        for update in report.updates:
            self._warm += self.registered == self._order.clients
            self.rows.append((now, update["train_samples_total"]))


def run(order: ScaleOrder) -> dict[str, Any]:
    """Run one size; what was found."""
    raise_descriptors()
    path = Path(order.folder)
    experiment = experiment_of(order)
    folder = RunFolder.create(path)
    plan = plan_of(order, experiment, path)
    logs = path / "logs"
    crowds = [
        CrowdProcess(logs / f"crowd-{i}.log", order.seconds_a_block) for i in range(order.crowds)
    ]
    window = Window(order)
    try:
        controller = ScaleController(
            experiment, plan, folder, Silent(), checkpoint=None, watcher=window
        )
        controller.starters = {
            0: SubprocessStarter(_ADDRESS),
            **{1 + i: CrowdStarter(crowds[i % order.crowds]) for i in range(order.agents)},
        }
        summary = controller.run()
    finally:
        for crowd in crowds:
            crowd.close(10.0)
    if window.begun is None or window.ended is None:
        raise WorkerError(f"{order.clients} clients were not measured: {summary['reason']}")
    hosts = [json.loads((logs / f"scale-{1 + i}.json").read_text()) for i in range(order.agents)]
    return found_of(order, window, hosts, summary)


def found_of(
    order: ScaleOrder,
    window: Window,
    hosts: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """All that was measured, as plain values."""
    assert window.begun is not None
    assert window.ended is not None
    begun, ended = window.begun, window.ended
    cores = ended.since(begun)
    seconds = ended.at - begun.at
    delays = delays_of(hosts, order.clients, begun.at, ended.at)
    inside = [(at, rows) for at, rows in window.rows if begun.at <= at <= ended.at]
    before = [(at, rows) for at, rows in window.rows if at < begun.at][-1:]
    learned = before + inside
    rate = 0.0
    if len(learned) > 1:
        rate = (learned[-1][1] - learned[0][1]) / (learned[-1][0] - learned[0][0])
    sent = sum(host["sent"] for host in hosts)
    return {
        "clients": order.clients,
        "agents": order.agents,
        "trainers": order.trainers,
        "registered": window.registered,
        "seconds_to_register": round(window.seconds_to_register, 1),
        "seconds": round(seconds, 1),
        "heartbeats_to_agents": sum(host["beats"] for host in hosts),
        "heartbeats_heard_per_second": round((window.beats - window.beats_before) / seconds, 1),
        "versions": len(delays),
        "version_to_last_client_seconds": {
            "median": round(median(delays), 3) if delays else None,
            "max": round(max(delays), 3) if delays else None,
        },
        "rows_per_second": round(rate, 1),
        "requests_answered": sum(host["answers"] for host in hosts),
        "blocks": {
            "sent": sent,
            "received": sum(host["received"] for host in hosts),
            "resent": sum(host["resent"] for host in hosts),
            **{
                name: summary[f"blocks_{name}"]
                for name in ("consumed", "dropped", "lost", "in_flight", "duplicated")
            },
        },
        "cores": {kind: round(n, 4) for kind, n in sorted(cores.items())},
        "megabytes": {kind: round(n, 1) for kind, n in sorted(ended.megabytes.items())},
        "core_microseconds_per_client_second": {
            kind: round(n / order.clients * 1e6, 2) for kind, n in sorted(cores.items())
        },
        "status": summary["status"],
        "reason": summary["reason"],
    }


def delays_of(
    hosts: Sequence[Mapping[str, Any]], clients: int, begin: float, end: float
) -> list[float]:
    """Of every version that all clients had within a time: seconds until the last one had it."""
    versions = {version for host in hosts for version in host["seen"]}
    delays = []
    for version in versions:
        seen = [host["seen"].get(version, (0, 0.0, 0.0)) for host in hosts]
        is_whole = sum(count for count, _, _ in seen) == clients
        if is_whole and all(begin <= at <= end for _, _, at in seen):
            delays.append(max(delay for _, delay, _ in seen))
    return delays


def main() -> int:
    """Entry point of the process."""
    die_with_parent()
    order = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ScaleOrder)
    Path(sys.argv[2]).write_text(json.dumps(run(order)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
