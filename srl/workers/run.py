"""The only main loop: runs one worker in a process of its own.

    python -m srl.workers.run CHANNEL_FD

It is told what to be over its channel to the node agent, reports over it several times a second,
and ends when it is told to, when the worker raises, or when the agent is gone.
"""

import contextlib
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType

import msgspec
import numpy as np
import zmq

from srl.core.collective import Alone, Group
from srl.core.errors import CheckpointError, SrlError, StreamError
from srl.core.worker import Worker
from srl.launch.graph.connect import ProcessConnector, build_worker
from srl.launch.graph.hosts import ranks_end
from srl.launch.graph.plan import Plan, WorkerPlan, worker_name
from srl.launch.host.process import offer_to_oom_killer, use_allocator, use_log, use_threads
from srl.launch.host.stacks import offer_stacks
from srl.streams.parameters.shm import ShmSubscriber
from srl.transport.arena import Arena
from srl.transport.control import (
    Channel,
    Configure,
    Enlist,
    Evaluated,
    Failure,
    Message,
    Noted,
    Preempted,
    Ready,
    Report,
    Retire,
    Save,
    Stop,
)
from srl.transport.slots import SlotTable
from srl.workers.saving import Ledgers, Saver
from srl.workers.watchdog import Hang, Watched, watch

log = logging.getLogger(__name__)

_CONFIGURE_SECONDS = 60.0
_REPORT_SECONDS = 0.25
_WAIT_MILLISECONDS = 200
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_GO_ON = ("trainer", "buffer")
"""Kinds of workers that go on from a checkpoint."""
_LIFE_BITS = 48
"""Above the versions of a run."""
HUNG = 4
"""Exit code of a worker whose env did not come back."""
_ACTOR_NICENESS = 5
"""Where actors keep every core busy, who answers all of them must not wait its turn for one."""


def main(fd: int) -> int:
    """Be the worker that is described over the channel `fd`; the exit code."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    die_with_parent()
    use_log()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _preemption.on_signal)
    channel = Channel.from_fd(fd)
    configure = wait_for_configure(channel)
    _call_itself(configure.worker)
    offer_stacks(Path(configure.socket_folder), configure.worker)
    sys.path += [path for path in configure.python_path if path not in sys.path]
    plan = msgspec.json.decode(configure.plan, type=Plan)
    use_allocator(plan.experiment["allocator"])
    if plan.worker(configure.worker).kind in ("actor", "evaluator"):
        offer_to_oom_killer()
    try:
        arenas = {name: Arena.attach(fd, size) for name, (fd, size) in configure.arenas.items()}
        buffers = {name: arena.buffer for name, arena in arenas.items()}
        published = _published(plan, configure.worker, buffers)  # before any rank may publish more
        with contextlib.closing(_join_group(configure, plan)) as group:
            worker, connector = _build(configure, plan, buffers, group)
            if published is not None:
                # a host that is not the first rank's may not have its last version yet
                published = max(int(known) for (known,) in group.meeting.gather([published]))
                worker.follow(published)  # pyright: ignore[reportAttributeAccessIssue] - a trainer's
            with _watched(configure, worker, plan, channel):
                ledgers = partial(_ledgers, plan, worker.name, buffers)
                return _run(configure, worker, ledgers, connector.refused, channel)
    except Exception as error:  # noqa: BLE001 - the one place that reports a worker's error
        return _fail(configure, error, channel)


class _Preemption:
    """Whether the host's owner told this process to go, and nobody heard of it yet."""

    def __init__(self) -> None:
        self.is_news = False

    def on_signal(self, _: int, __: FrameType | None) -> None:
        """SIGTERM came; the loop sees to it between two steps."""
        self.is_news = True


_preemption = _Preemption()


def _run(
    configure: Configure,
    worker: Worker,
    ledgers: Callable[[], Ledgers],
    refused: Callable[[], dict[str, int]],
    channel: Channel,
) -> int:
    loop = _Loop(worker, configure.incarnation, ledgers, refused, channel)
    try:
        try:
            loop.run()
        finally:
            loop.finish()
    except Exception as error:  # noqa: BLE001 - before `close`, where a rank waits for the others
        return _fail(configure, error, channel)
    finally:
        worker.close()
    return 0


def _watched(
    configure: Configure, worker: Worker, plan: Plan, channel: Channel
) -> contextlib.AbstractContextManager[object]:
    """End this process, with a last word, where an env does not come back."""

    def on_hang(hang: Hang) -> None:
        report = report_of(worker, configure.incarnation)
        for message in (report, *notes_of(worker), *hang.messages(configure.incarnation)):
            channel.send(message)
        os._exit(HUNG)

    has_envs = plan.worker(worker.name).kind in ("actor", "evaluator")
    seconds = plan.experiment["env"]["timeout_seconds"] if has_envs else None
    return watch([Watched(worker.name, worker.telemetry)], seconds, on_hang, is_alone=True)


def _fail(configure: Configure, error: Exception, channel: Channel) -> int:
    traceback.print_exc()
    channel.send(failure_of(configure.worker, error, configure.incarnation))
    return 1


def failure_of(worker: str, error: Exception, incarnation: int = 1) -> Failure:
    """The report of an error that a worker raised."""
    return Failure(
        worker=worker,
        incarnation=incarnation,
        message=f"{error}" if isinstance(error, SrlError) else f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        is_user_error=isinstance(error, SrlError),
        is_raised=not isinstance(error, StreamError),  # that is another's doing, or the network's
        is_final=isinstance(error, SrlError) and not isinstance(error, StreamError),
    )


def report_of(worker: Worker, incarnation: int = 1, waits_in: str = "") -> Report:
    """What the worker has to say since the last report."""
    return Report(
        worker=worker.name,
        incarnation=incarnation,
        counters=dict(worker.telemetry.counters),
        seconds=dict(worker.telemetry.seconds),
        episodes=[(e.agent_return, e.length, e.policy) for e in worker.telemetry.take_episodes()],
        updates=worker.telemetry.take_updates(),
        waits_in=waits_in,
    )


def evaluations_of(worker: Worker) -> list[Evaluated]:
    """What the worker has evaluated since it was last asked."""
    return [Evaluated(worker.name, result) for result in worker.telemetry.take_evaluations()]


def notes_of(worker: Worker) -> list[Noted]:
    """What went wrong with the worker, and was dealt with, since it was last asked."""
    return [Noted(worker.name, note) for note in worker.telemetry.take_notes()]


def wait_for_configure(channel: Channel) -> Configure:
    """What the node agent says this process is to be; ends it where that does not come."""
    deadline = time.monotonic() + _CONFIGURE_SECONDS
    poller = zmq.Poller()
    poller.register(channel.fileno(), zmq.POLLIN)
    while time.monotonic() < deadline and not channel.closed:
        poller.poll(_WAIT_MILLISECONDS)
        configure = channel.recv_first(Configure)
        if configure is not None:
            return configure
    sys.exit("the node agent sent no configuration")


def _join_group(configure: Configure, plan: Plan) -> Group:
    """Of a trainer, its place among those of its policy; waits until all have come."""
    worker = plan.worker(configure.worker)
    if worker.kind != "trainer" or plan.num_ranks == 1:
        return Alone()
    from srl.learning.parallel import BetweenHosts, OnOneHost, TrainerGroup

    end = ranks_end(plan, worker.policy)
    if end is None:
        # by the policy's number: names may be long, and paths of sockets may not
        number = [route.policy for route in plan.routes].index(worker.policy)
        name = f"ranks-{number}-{configure.incarnation}"
        point = OnOneHost(Path(configure.socket_folder) / name)
    else:
        network = configure.network
        assert network is not None, "trainers on several hosts without a network"
        point = BetweenHosts(
            network.addresses[end],
            network.own,
            plan.experiment["network"]["interface"],
            network.listeners.get(end),
        )
    return TrainerGroup(
        point,
        life=configure.incarnation,
        policy=worker.policy,
        rank=worker.index,
        size=plan.num_ranks,
        device=plan.device(worker),
    )


def _published(plan: Plan, worker: str, buffers: dict[str, np.ndarray]) -> int | None:
    """Of a trainer, the last version that earlier lives have published; -1: none."""
    planned = plan.worker(worker)
    if planned.kind != "trainer":
        return None
    arena = buffers[f"parameters/{planned.policy}"]
    return ShmSubscriber(arena, plan.route(planned.policy).weights_spec()).latest()


def _build(
    configure: Configure, plan: Plan, buffers: dict[str, np.ndarray], group: Group
) -> tuple[Worker, ProcessConnector]:
    planned = plan.worker(configure.worker)
    if configure.incarnation > 1 and planned.kind not in _GO_ON:
        # another life draws other numbers, or it would play the same episodes again
        begun = plan.restarted_at + (configure.incarnation << _LIFE_BITS)
        plan = msgspec.structs.replace(plan, restarted_at=begun)
    if plan.device(planned).startswith("cuda"):
        import_module("srl.learning.gpu").use(plan.device(planned))
    connector = ProcessConnector(
        plan,
        buffers,
        configure.socket_folder,
        configure.incarnation,
        group,
        host=plan.host_of(configure.worker),
        network=configure.network,
    )
    worker = build_worker(plan, configure.worker, connector)
    use_threads(plan.threads(planned.kind))
    if planned.kind == "actor" and not plan.answers_itself(planned.index):
        os.nice(_ACTOR_NICENESS)
    if configure.state is not None and planned.kind in _GO_ON:
        _load(worker, planned, Path(configure.state))
    return worker, connector


def _load(worker: Worker, planned: WorkerPlan, state: Path) -> None:
    """Bring a worker's state back; a buffer that was not saved begins empty."""
    from srl.learning.checkpoint import read_section

    # of trainers rank 0's is everyone's
    index = 0 if planned.kind == "trainer" else planned.index
    section = read_section(state, worker_name(planned.kind, planned.policy, index))
    if section is not None:
        worker.load(section)
    elif planned.kind == "trainer":
        raise CheckpointError(f"{state} has nothing of the trainers of policy {planned.policy!r}")


def _ledgers(plan: Plan, worker: str, buffers: dict[str, np.ndarray]) -> Ledgers:
    """Policy of a trainer to what has become of its blocks, at this moment."""
    planned = plan.worker(worker)
    if planned.kind != "trainer":
        return {}
    route = plan.route(planned.policy)
    num_actors = plan.experiment["actors"]["count"]
    shape = num_actors, route.slots, plan.num_takers
    table = SlotTable(buffers[f"samples/{route.policy}"], *shape)
    return {route.policy: asdict(table.ledger(consumer_lives=True))}


class _Loop:
    """Steps a worker until it is told to stop, or nobody is left to tell it."""

    def __init__(
        self,
        worker: Worker,
        incarnation: int,
        ledgers: Callable[[], Ledgers],
        refused: Callable[[], dict[str, int]],
        channel: Channel,
    ) -> None:
        self._worker = worker
        self._refused = refused
        self._incarnation = incarnation
        self._channel = channel
        self._waits_in = ""
        self._saver = Saver(worker, channel, ledgers=ledgers, report=self._new_report)

    def run(self) -> None:
        """Step, report, and wait where there is nothing to do."""
        worker, channel = self._worker, self._channel
        worker.open()
        channel.send(_ready(worker, self._incarnation))
        poller = zmq.Poller()
        poller.register(channel.fileno(), zmq.POLLIN)
        for pollable in worker.pollables():
            poller.register(pollable, zmq.POLLIN)
        report_at = 0.0
        while True:
            moved = worker.step()
            now = time.monotonic()
            self._waits_in = "" if moved else worker.waiting
            if now >= report_at:
                report_at = now + _REPORT_SECONDS
                self.report()
                if self._is_over():
                    break
            if not moved:
                with worker.telemetry.time(worker.waiting):
                    ready = dict(poller.poll(_WAIT_MILLISECONDS))
                if channel.fileno() in ready:
                    report_at = 0.0

    def report(self) -> None:
        """Say what is new."""
        if _preemption.is_news:
            _preemption.is_news = False
            self._channel.send(Preempted(self._worker.name))
        self._channel.send(self._new_report())
        for message in (*evaluations_of(self._worker), *notes_of(self._worker)):
            self._channel.send(message)

    def finish(self) -> None:
        """Say the last words: what was copied of a sound state is sound, whatever came after."""
        self._saver.finish()
        self.report()

    def _new_report(self) -> Report:
        self._worker.telemetry.counters.update(self._refused())
        return report_of(self._worker, self._incarnation, self._waits_in)

    def _is_over(self) -> bool:
        """Do what the agent asks for; True when that is to stop, or when it is gone."""
        self._saver.report()
        messages: list[Message] = self._channel.recv_all()
        for message in messages:
            if isinstance(message, Save):
                self._saver.save(message)
            elif isinstance(message, Retire):
                self._worker.retire(message.actor)  # pyright: ignore[reportAttributeAccessIssue] - a taker's
            elif isinstance(message, Enlist):
                self._worker.enlist(message.actor)  # pyright: ignore[reportAttributeAccessIssue] - a taker's
            elif isinstance(message, Stop):
                if message.save is not None:
                    self._saver.save(message.save)
                return True
        return self._channel.closed


def _ready(worker: Worker, incarnation: int) -> Ready:
    return Ready(
        worker=worker.name,
        incarnation=incarnation,
        pid=os.getpid(),
        cpu_seconds=time.process_time(),
        resident_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        has_torch="torch" in sys.modules,
    )


def die_with_parent() -> None:
    """Ask the kernel to end this process with its agent, even inside a call that never returns."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _call_itself(worker: str) -> None:
    """Have `top` and `ps -c` show the worker's name: forked ones have the agent's command line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, worker.encode()[:15])


def _end(code: int) -> None:
    """End this process as a forked actor ends: all is said, and what is left are threads of libraries.

    Of several trainers one may have a thread of gloo's that has not ended yet, on which the interpreter's own
    end aborts: the worker would count as dead, and what it held as lost.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main(int(sys.argv[1])))
