"""The node agent: one process a host that starts, watches and sweeps up that host's workers.

    python -m srl.launch.node_agent CHANNEL_FD SOCKET_FOLDER

It owns the host's arenas (anonymous memory, handed to workers by descriptor) and its folder of
sockets. It starts workers again when the controller says so. When the controller is gone it has a
last checkpoint written, and ends its workers and itself.
"""

import logging
import shutil
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from srl.core.errors import SrlError
from srl.launch.graph.env_factory import import_family
from srl.launch.graph.plan import Plan, RoutePlan, worker_name
from srl.launch.host.children import Child, can_fork, fork, start_anew
from srl.launch.host.limits import raise_descriptors
from srl.launch.host.memory import MemoryWatch
from srl.launch.host.owner import write_owner
from srl.launch.host.process import use_log
from srl.launch.host.stacks import Examiner
from srl.launch.saving import Saving
from srl.learning.checkpoint import remove_unfinished
from srl.streams.parameters.shm import ShmSubscriber
from srl.transport.arena import Arena
from srl.transport.control import (
    Accounts,
    Backup,
    Channel,
    Configure,
    Copied,
    Examine,
    Examined,
    Failure,
    Message,
    Preempted,
    Restart,
    Restarted,
    Retire,
    Save,
    Saved,
    SaveFailed,
    StartNode,
    Stop,
    Stopped,
    channel_pair,
)
from srl.transport.slots import SlotTable

log = logging.getLogger(__name__)

_POLL_MILLISECONDS = 200
_ACCOUNTS_SECONDS = 1.0
_STOP_ORDER = ("evaluator", "actor", "policy", "trainer")
"""Reverse to the dataflow: who sends stops before who receives."""
_GRACE_SECONDS = {"evaluator": 15.0, "actor": 15.0, "policy": 10.0, "trainer": 15.0}
"""A healthy worker ends within a step, but an env may reset for seconds, on cores that are busy."""
_SAVE_GRACE_SECONDS = 60.0
_ALONE_GRACE_SECONDS = 1.0
"""Where the controller is gone, and the worker has nothing to save."""
_ALONE_SERIAL = 50_000_000
"""Of the checkpoint that is then written: the controller's orders are far below."""


class _Process:
    """A worker's process and the channel to it."""

    def __init__(
        self, name: str, kind: str, incarnation: int, popen: Child, channel: Channel
    ) -> None:
        self.name = name
        self.kind = kind
        self.incarnation = incarnation
        self.popen = popen
        self.channel = channel
        self.has_reported_failure = False


class NodeAgent:
    """Starts the workers of one host and forwards what they say."""

    def __init__(self, controller: Channel, order: StartNode) -> None:
        self._controller = controller
        self._order = order
        self._plan = msgspec.json.decode(order.plan, type=Plan)
        self._arenas: dict[str, Arena] = {}
        experiment = self._plan.experiment
        limit, env = experiment["actors"]["memory_limit_mb"], experiment["env"]["name"]
        self._memory = MemoryWatch(limit, env)
        self._processes: dict[str, _Process] = {}
        self._folder = Path(order.socket_folder)
        self._writers = frozenset(self._plan.writers()) & frozenset(order.workers)
        self._backup: Backup | None = None
        self._examiner = Examiner(self._folder)
        self._is_preempted = False
        self._is_alone = False
        """The controller is gone, and what it would have done is this agent's to do."""

    def run(self) -> None:
        """Run until the controller says stop, or is gone."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            self._start()
            stop = self._watch()
            if stop is None:
                self._stop_alone()
            else:
                self._stop_workers(stop.save)
            self._controller.send(Stopped(self._ledgers()))
        finally:
            self._sweep()

    def _start(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_owner(self._folder / "node-agent.json")
        for name, num_bytes in self._order.arenas.items():
            self._arenas[name] = Arena.create(name, num_bytes)
        # Actors first: they are ready at once, and others import for seconds.
        for name in sorted(self._order.workers, key=lambda n: self._plan.worker(n).kind != "actor"):
            self._processes[name] = self._spawn(name, 1, self._order.state)

    def _spawn(self, name: str, incarnation: int, state: str | None) -> _Process:
        self._examiner.forget(name)
        mine, theirs = channel_pair()
        kind = self._plan.worker(name).kind
        log_file = Path(self._order.log_folder) / f"{name}.log"
        threads = self._plan.threads(kind)
        if kind == "actor" and threads == 1 and can_fork():
            popen = self._fork_actor(log_file, mine, theirs)
        else:
            fds = [arena.fd for arena in self._arenas.values() if arena.fd is not None]
            program = ["-m", "srl.workers.run", str(theirs.fileno())]
            popen = start_anew(program, log_file, [*fds, theirs.fileno()], threads)
        theirs.close()
        mine.send(
            Configure(
                plan=self._order.plan,
                worker=name,
                arenas={n: (a.fd or 0, a.buffer.nbytes) for n, a in self._arenas.items()},
                socket_folder=str(self._folder),
                python_path=self._order.python_path,
                incarnation=incarnation,
                state=state,
            )
        )
        return _Process(name, kind, incarnation, popen, mine)

    def _fork_actor(self, log_file: Path, mine: Channel, theirs: socket.socket) -> Child:
        from srl.workers import actor, run  # noqa: F401 - what every actor needs

        import_family(self._plan.experiment["env"]["name"])
        others = [self._controller, mine, *(p.channel for p in self._processes.values())]

        def work() -> int:
            for channel in others:  # held here, they would outlive the agent
                channel.close()
            return run.main(theirs.detach())

        return fork(log_file, work)

    def _watch(self) -> Stop | None:
        """Forward messages until told to stop; None where nobody is left to tell."""
        accounts_at = 0.0
        while True:
            self._wait()
            for message in self._controller.recv_all():
                if isinstance(message, Stop):
                    return message
                self._obey(message)
            if self._controller.closed:
                return None
            if self._is_preempted:
                self._is_preempted = False
                self._controller.send(Preempted("node-agent"))
            self._forward()
            self._report_deaths()
            if (found := self._examiner.finish()) is not None:
                self._controller.send(Examined(found, *self._streams()))
            if time.monotonic() >= accounts_at:
                accounts_at = time.monotonic() + _ACCOUNTS_SECONDS
                self._controller.send(Accounts(self._ledgers(), self._look_at_memory()))

    def _look_at_memory(self) -> dict[str, float]:
        """Megabytes of the workers that live; those that take too much are ended."""
        living = self._living()
        found = self._memory.look({name: p.popen.pid for name, p in living.items()})
        for name in found:
            process = living[name]
            if self._memory.is_too_large(name, process.kind, process.popen.pid):
                process.popen.kill()
        return found

    def _obey(self, message: Message) -> None:
        """Do what the controller orders while the run goes on."""
        if isinstance(message, Save):
            for name in self._writers:
                self._processes[name].channel.send(message)
        elif isinstance(message, Restart):
            self._restart(message)
        elif isinstance(message, Retire):
            for process in self._of_kind("trainer"):
                process.channel.send(message)
        elif isinstance(message, Backup):
            self._backup = message
        elif isinstance(message, Examine):
            self._examiner.begin({name: p.popen.pid for name, p in self._living().items()})

    def _living(self) -> dict[str, _Process]:
        return {name: p for name, p in self._processes.items() if p.popen.poll() is None}

    def _restart(self, order: Restart) -> None:
        """End what is left of these workers, then begin their next lives."""
        mine = [name for name in order.workers if name in self._processes]
        for name in mine:
            self._end(self._processes[name])
        self._controller.send(Restarted(mine, self._ledgers()))
        for name in mine:
            log.info("%s begins its life number %d", name, order.incarnation)
            self._processes[name] = self._spawn(name, order.incarnation, order.state)

    def _end(self, process: _Process) -> None:
        """End a process at once, hear its last words, and close the channel to it."""
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait(timeout=10)
        for message in process.channel.recv_all():
            if not isinstance(message, Failure):  # it is ended on purpose
                self._controller.send(message)
        process.channel.close()

    def _on_sigterm(self, _: int, __: FrameType | None) -> None:
        self._is_preempted = True

    def _wait(self) -> None:
        poller = zmq.Poller()
        if not self._controller.closed:
            poller.register(self._controller.fileno(), zmq.POLLIN)
        for process in self._processes.values():
            if not process.channel.closed:
                poller.register(process.channel.fileno(), zmq.POLLIN)
        poller.poll(_POLL_MILLISECONDS)

    def _forward(self) -> list[Message]:
        forwarded: list[Message] = []
        for process in self._processes.values():
            for message in process.channel.recv_all():
                process.has_reported_failure |= isinstance(message, Failure)
                self._controller.send(message)
                forwarded.append(message)
        return forwarded

    def _report_deaths(self) -> None:
        for process in self._processes.values():
            code = process.popen.poll()
            if code is not None and not process.has_reported_failure:
                self._forward()  # its last words may have come just now
                if process.has_reported_failure:
                    continue
                process.has_reported_failure = True
                log_file = Path(self._order.log_folder) / f"{process.name}.log"
                words = self._memory.explain(process.name, process.popen.pid, code)
                words = words or _describe_exit(process.name, code)
                self._controller.send(
                    Failure(process.name, words, _tail(log_file), process.incarnation)
                )

    def _stop_alone(self) -> None:
        """The controller is gone: have a last checkpoint written as it would have been."""
        log.warning("the controller is gone: ending all workers")
        self._is_alone = True
        backup, saving = self._backup, None
        if backup is not None and self._writers == frozenset(self._plan.writers()):
            saving = Saving(Path(backup.folder), backup.keep, first=_ALONE_SERIAL)
        order = None if saving is None else saving.order(self._writers)
        heard = self._stop_workers(order)
        if saving is None or backup is None:
            return
        for message in heard:
            if isinstance(message, Copied):
                saving.copied(message, msgspec.json.decode(backup.manifest))
            elif isinstance(message, Saved | SaveFailed):
                saving.add(message)
        for note in saving.take_notes():
            log.warning("%s", note)
        remove_unfinished(Path(backup.folder))

    def _stop_workers(self, save: Save | None) -> list[Message]:
        """Stop in order; returns what the workers said meanwhile."""
        heard: list[Message] = []
        if any(process.popen.poll() is not None for process in self._of_kind("trainer")):
            save = None  # one rank is gone, and with it its group: the last checkpoint counts
        for kind in _STOP_ORDER:
            processes, saving = self._of_kind(kind), set[tuple[str, int]]()
            for process in processes:
                order = save if process.name in self._writers else None
                process.channel.send(Stop(order))
                if order is not None:
                    saving.add((process.name, order.serial))
            heard += self._await_exit(processes, saving, _GRACE_SECONDS[kind])
        return heard

    def _await_exit(
        self, processes: list[_Process], saving: set[tuple[str, int]], grace: float
    ) -> list[Message]:
        """Wait for the end of these workers, longer while some write their part; what they said."""
        heard: list[Message] = []
        deadline = time.monotonic() + (_SAVE_GRACE_SECONDS if saving else grace)
        while any(p.popen.poll() is None for p in processes) and time.monotonic() < deadline:
            self._controller.recv_all()  # nothing but its end matters now
            if self._controller.closed and not (saving and self._is_alone):
                deadline = min(deadline, time.monotonic() + _ALONE_GRACE_SECONDS)
            self._wait()
            now = self._forward()
            heard += now
            saved = {(m.worker, m.serial) for m in now if isinstance(m, Saved | SaveFailed)}
            if saved and not (saving := saving - saved):
                deadline = min(deadline, time.monotonic() + grace)
        for process in processes:
            if process.popen.poll() is None:
                log.warning("%s did not stop in time: killing it", process.name)
                process.popen.kill()
            process.popen.wait(timeout=10)
        return heard + self._forward()

    def _streams(self) -> tuple[dict[str, int], list[str]]:
        """Policy to blocks that wait for its trainers; what is in the streams, in words."""
        unread, words = {}, []
        for route in self._plan.learning:
            table, ledger = self._table(route), self._ledgers()[route.policy]
            waiting = [len(table.waiting(actor)) for actor in range(table.num_producers)]
            unread[route.policy] = sum(waiting)
            told = ", ".join(f"{count} {name}" for name, count in ledger.items())
            shares = ", ".join(f"{n} of actor-{actor}" for actor, n in enumerate(waiting))
            words.append(f"samples/{route.policy}: {told}; of {route.slots} slots full: {shares}")
            parameters = self._arenas[f"parameters/{route.policy}"].buffer
            version = ShmSubscriber(parameters, route.weights_spec()).latest()
            words.append(f"parameters/{route.policy}: version {version} is the newest")
        return unread, words

    def _table(self, route: RoutePlan) -> SlotTable:
        num_actors = self._plan.experiment["actors"]["count"]
        buffer = self._arenas[f"samples/{route.policy}"].buffer
        return SlotTable(buffer, num_actors, route.slots, self._plan.num_ranks)

    def _ledgers(self) -> dict[str, dict[str, int]]:
        ledgers = {}
        for route in self._plan.learning:
            names = [worker_name("trainer", route.policy, i) for i in range(self._plan.num_ranks)]
            lives = [self._processes[name].popen.poll() in (None, 0) for name in names]
            ledgers[route.policy] = asdict(self._table(route).ledger(consumer_lives=lives))
        return ledgers

    def _of_kind(self, kind: str) -> list[_Process]:
        return [process for process in self._processes.values() if process.kind == kind]

    def _sweep(self) -> None:
        for process in self._processes.values():
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait(timeout=10)
            process.channel.close()
        for arena in self._arenas.values():
            arena.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _describe_exit(name: str, code: int) -> str:
    if code < 0:
        return f"{name} was killed by {signal.Signals(-code).name}"
    return f"{name} exited with code {code} without a report (did env code end the process?)"


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""


def main() -> int:
    """Entry point of the agent's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    use_log()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    raise_descriptors()
    controller = Channel.from_fd(int(sys.argv[1]))
    poller = zmq.Poller()
    poller.register(controller.fileno(), zmq.POLLIN)
    while not controller.closed:
        poller.poll(_POLL_MILLISECONDS)
        order = controller.recv_first(StartNode)
        if order is not None:
            return _run(controller, order)
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    return 1


def _run(controller: Channel, order: StartNode) -> int:
    try:
        NodeAgent(controller, order).run()
    except SrlError as error:
        controller.send(Failure("node-agent", str(error), "", is_user_error=True))
        controller.send(Stopped({}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
