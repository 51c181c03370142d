"""Whether this host can hold a run, said before anything is started.

`needs` adds up what a plan takes, `read_host` what there is, and `check` compares the two: what
cannot work is an error that names both numbers, what is tight is a note. The numbers of worker
processes are least ones, measured with small networks and envs; those of shared memory are exact.
"""

import os
import resource
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from srl.core.collective import shared_bytes, shared_sockets
from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.launch.graph.hosts import arenas
from srl.launch.graph.plan import Plan, RoutePlan, WorkerPlan, shared_memory_in_words
from srl.launch.host import cgroup
from srl.launch.host.socket_folder import check_sockets

MB = 1_000_000
_AGENT, _SMALL, _TORCH, _CUDA = 25 * MB, 10 * MB, 150 * MB, 400 * MB
"""Memory of its own of the node agent, of a worker without torch, with it, and what a GPU adds."""
_ADDRESSES = 900 * MB
"""Addresses that a process with torch takes besides arenas."""
_ROOM = 1.25
"""How much more than needed is not tight."""
_BASE_DESCRIPTORS = 32
"""Of any process: its log, channel, event and signal descriptors; measured: 19 to 27."""
_LOG_BYTES = 20 * MB
_LEAST_FILES = 64
"""Names that a run writes at least."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run takes; bytes where it does not say otherwise."""

    shared: int
    """Shared memory, exactly."""
    workers: int
    """Memory of the worker processes, at least."""
    replay: int = 0
    """Of that, for replay buffers in memory, and for what of them is being saved."""
    disk: int
    """A checkpoint, and what the run writes besides, at least."""
    much_disk: int
    """All of the checkpoints and versions that are kept."""
    addresses: int = 0
    """Address space of the largest process, at least."""
    descriptors: int = 0
    """Open files of the process that has most of them."""
    processes: int = 0
    """Processes and their threads, at least."""

    @property
    def memory(self) -> int:
        """All of the memory."""
        return self.shared + self.workers


@dataclass(frozen=True, kw_only=True)
class Host:
    """What there is; None: it is not limited, or nobody says."""

    memory: int | None = None
    """Bytes that can still be taken."""
    memory_limit: int | None = None
    """Bytes the control group may have, where that is what limits `memory`."""
    addresses: int | None = None
    """Bytes of address space a process may have."""
    descriptors: int | None = None
    """Files a process may open, after its limit was raised as far as it may."""
    processes: int | None = None
    """Processes and threads that can still be started."""
    disk: int | None = None
    """Free bytes where the run folder is."""
    files: int | None = None
    """Free names (inodes) there."""


def needs(plan: Plan, experiment: Experiment[Any], *, is_new: bool = True) -> Need:
    """Add up what a run takes; of one that goes on, old checkpoints are there already."""
    # trainers of one host make what they add up in themselves
    shared = sum(arenas(plan).values()) + shared_bytes(plan.num_ranks) * len(plan.learning)
    weights = sum(_weights_bytes(route) for route in plan.learning)
    replays = [route.replay for route in plan.learning if route.replay]
    saved = sum(replay.nbytes for replay in replays if replay.config.saved)
    checkpoint = 3 * weights + saved + (shared if experiment.launcher == "inline" else 0)
    in_memory = sum(replay.nbytes for replay in replays if not replay.is_file)
    kept = (experiment.checkpoint.keep + 2) * checkpoint + (
        experiment.evaluation.keep + 2
    ) * weights
    need = Need(
        shared=shared,
        workers=sum(_learner_bytes(route) for route in plan.learning) + in_memory + saved,
        replay=in_memory + saved,
        disk=checkpoint + MB,
        much_disk=(kept if is_new else 2 * checkpoint) + _LOG_BYTES,
    )
    if experiment.launcher == "inline":  # in this process, which has all that it needs
        return need
    return replace(
        need,
        workers=need.workers + _AGENT + sum(_own_memory(plan, w) for w in plan.workers),
        addresses=shared + _ADDRESSES,  # a trainer's
        descriptors=_descriptors(plan),
        processes=1 + sum(2 + plan.threads(worker.kind) for worker in plan.workers),
    )


def _learner_bytes(route: RoutePlan) -> int:
    """Of a trainer: weights, gradients and two moments; the batch it learns and the one staged."""
    return 4 * _weights_bytes(route) + 2 * route.batch * route.layout().nbytes


def _weights_bytes(route: RoutePlan) -> int:
    return sum(field.nbytes for field in route.weights_spec())


def _own_memory(plan: Plan, worker: WorkerPlan) -> int:
    if not _uses_torch(plan, worker):
        return _SMALL
    return _TORCH + (_CUDA if plan.device(worker).startswith("cuda") else 0)


def _uses_torch(plan: Plan, worker: WorkerPlan) -> bool:
    if worker.kind in ("trainer", "evaluator"):
        return True
    if worker.kind == "buffer":
        return False
    if worker.kind == "policy":
        on_cpu = plan.device(worker) == "cpu"
        return not (on_cpu and plan.route(worker.policy).small)
    return plan.answers_itself(worker.index) and not all(route.small for route in plan.routes)


def _descriptors(plan: Plan) -> int:
    """Of the process with most: each has every arena, and a connection to each that it talks to."""
    actors, others = len(plan.of_kind("actor")), len(plan.workers) - len(plan.of_kind("actor"))
    ranks = shared_sockets(plan.num_ranks)
    return _BASE_DESCRIPTORS + len(arenas(plan)) + max(len(plan.workers), actors, 2 * others, ranks)


def read_host(folder: Path) -> Host:
    """What this host has left for a run in `folder`."""
    memory, limit = available_memory(), None
    left = cgroup.memory_left()
    if left is not None and (memory is None or left <= memory):
        memory, limit = left, cgroup.memory_limit()
    disk, files = _disk(folder)
    return Host(
        memory=memory,
        memory_limit=limit,
        addresses=_known(resource.getrlimit(resource.RLIMIT_AS)[0]),
        descriptors=_known(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        processes=_processes_left(),
        disk=disk,
        files=files,
    )


def check(need: Need, host: Host, shared_in_words: str, folder: Path) -> list[str]:
    """Compare; notes of what is tight. Raises ConfigError for what cannot work."""
    return [
        *_check_memory(need, host, shared_in_words),
        *_check_numbers(need, host),
        *_check_disk(need, host, folder),
    ]


def check_host(
    plan: Plan, experiment: Experiment[Any], folder: Path, *, is_new: bool = True
) -> list[str]:
    """Notes of what is tight for a run in `folder`; raises ConfigError for what cannot work."""
    if experiment.launcher == "local":
        check_sockets()
    need = needs(plan, experiment, is_new=is_new)
    if experiment.launcher != "ray":  # there, trainers are on other hosts
        _check_replay(plan, folder, need.disk)
    if experiment.launcher == "ray":  # of this host it needs the run folder only
        return _check_disk(need, read_host(folder), folder)
    return check(need, read_host(folder), shared_memory_in_words(plan, experiment), folder)


def raise_descriptors() -> None:
    """Let this process, and those it starts, open as many files as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_memory(need: Need, host: Host, shared_in_words: str) -> list[str]:
    words = (
        f"about {_mb(need.memory)} of memory: {_mb(need.shared)} shared ({shared_in_words}) and at "
        f"least {_mb(need.workers)} for the workers"
    )
    advice = (
        "use fewer --actors.count or --actors.envs, a shorter --algorithm.rollout or a lower "
        "--max-staleness"
    )
    if need.replay:
        words += f" ({_mb(need.replay)} of it for replay buffers)"
        advice = "use a smaller --algorithm.replay.capacity, or --algorithm.replay.storage file"
    if host.memory is not None:
        there = f"{_mb(host.memory)} are available"
        if host.memory_limit is not None:
            there += (
                f" (the control group, a container's or a job's, may have {_mb(host.memory_limit)})"
            )
        if need.memory > host.memory:
            raise ConfigError(f"this run needs {words}; but only {there}: {advice}")
        if need.memory * _ROOM > host.memory:
            return [f"memory is tight: this run needs {words}, envs not counted; {there}"]
    if host.addresses is not None and need.addresses > host.addresses:
        raise ConfigError(
            f"a worker of this run needs about {_mb(need.addresses)} of address space, and a "
            f"process may have {_mb(host.addresses)}: raise it ('ulimit -v unlimited'), or {advice}"
        )
    return []


def _check_numbers(need: Need, host: Host) -> list[str]:
    if host.descriptors is not None and need.descriptors > host.descriptors:
        raise ConfigError(
            f"a process of this run opens about {need.descriptors} files and sockets, and may open "
            f"{host.descriptors}: raise the limit ('ulimit -n {need.descriptors}', which here only "
            "an administrator may), or use fewer --actors.count"
        )
    if host.processes is not None and need.processes > host.processes:
        raise ConfigError(
            f"this run starts about {need.processes} processes and threads, and only "
            f"{host.processes} more are allowed ('ulimit -u', or pids.max of the control group): "
            "raise that, or use fewer --actors.count"
        )
    return []


def _check_replay(plan: Plan, folder: Path, run_bytes: int) -> None:
    """Raise ConfigError where the file of a replay buffer cannot be, or has no room beside what the run writes."""
    for route in plan.learning:
        replay = route.replay
        if replay is None or not replay.is_file:
            continue
        place = Path(replay.config.folder) if replay.config.folder else folder
        if replay.config.folder:
            try:
                place.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=place):
                    pass
            except OSError as error:
                raise ConfigError(
                    f"algorithm.replay.folder {place} cannot have the file of a replay buffer: {error}"
                ) from error
        free, _ = _disk(place)
        needed = replay.nbytes + (0 if replay.config.folder else run_bytes)
        if free is not None and needed > free:
            raise ConfigError(
                f"the replay buffer of policy {route.policy!r} needs {_mb(replay.nbytes)} in a file of "
                f"{place}, whose disk has {_mb(free)} left: use a smaller --algorithm.replay.capacity, or "
                "another --algorithm.replay.folder"
            )


def _check_disk(need: Need, host: Host, folder: Path) -> list[str]:
    if host.files is not None and host.files < _LEAST_FILES:
        raise ConfigError(
            f"the disk of {folder} can hold only {host.files} more files (inodes): remove some, or "
            "choose another --out"
        )
    if host.disk is None:
        return []
    if need.disk > host.disk:
        raise ConfigError(
            f"the disk of {folder} has {_mb(host.disk)} left, and one checkpoint needs "
            f"{_mb(need.disk)}: make room, or choose another --out"
        )
    if need.much_disk > host.disk:
        return [
            f"the disk of {folder} has {_mb(host.disk)} left, and this run may write "
            f"{_mb(need.much_disk)}: make room, or use a lower --checkpoint.keep"
        ]
    return []


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that can still be allocated on this host, swap included; None where it does not say."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return sum(int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None


def _known(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _processes_left() -> int | None:
    left = [cgroup.processes_left()]
    allowed = _known(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    if allowed is not None and os.geteuid() != 0:  # root may start any number
        left.append(max(0, allowed - _threads_of(os.getuid())))
    return min((n for n in left if n is not None), default=None)


def _threads_of(user: int, processes: Path = Path("/proc")) -> int:
    """Threads of all processes of a user, which is what the kernel counts."""
    found = 0
    for path in processes.glob("[0-9]*/status"):
        try:
            facts = _facts(path.read_text())
        except OSError:  # it has ended meanwhile
            continue
        if facts.get("Uid", "").split()[:1] == [str(user)]:
            found += int(facts.get("Threads", "0"))
    return found


def _facts(status: str) -> Mapping[str, str]:
    return dict(line.split(":", 1) for line in status.splitlines() if ":" in line)


def _disk(folder: Path) -> tuple[int | None, int | None]:
    """Free bytes and free names of the disk that `folder` is on, or will be."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        disk = os.statvfs(place)
    except OSError:
        return None, None
    free = disk.f_bavail * disk.f_frsize if disk.f_blocks else None  # some disks do not say
    return free, disk.f_favail if disk.f_files else None


def _mb(num_bytes: int) -> str:
    """Bytes, in words that say enough."""
    mb = num_bytes / MB
    return f"{mb / 1000:.1f} GB" if mb >= 10_000 else f"{mb:.0f} MB" if mb >= 10 else f"{mb:.2f} MB"
