"""The node agent: one process a host that starts, watches and sweeps up that host's workers.

    python -m srl.launch.node_agent CHANNEL_FD SOCKET_FOLDER

It owns the host's arenas (anonymous memory, handed to workers by descriptor) and its folder of
sockets. It starts workers again when the controller says so. When the controller is gone it has a
last checkpoint written, and ends its workers and itself.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from srl.core.errors import ConfigError, SrlError, WorkerError
from srl.launch.graph.env_factory import import_family
from srl.launch.graph.hosts import RELAY, actors_on, asked_ends, hosts_of, sent_from
from srl.launch.graph.plan import Plan, RoutePlan
from srl.launch.host.children import Child, can_fork, end_group, fork, start_anew
from srl.launch.host.gathering import Gathering
from srl.launch.host.limits import raise_descriptors
from srl.launch.host.memory import MemoryWatch
from srl.launch.host.owner import write_owner
from srl.launch.host.process import use_log
from srl.launch.host.stacks import Examiner, innermost
from srl.launch.saving import Saving
from srl.learning.checkpoint import remove_unfinished
from srl.streams.parameters.shm import ShmSubscriber
from srl.transport.arena import Arena
from srl.transport.control import (
    Accounts,
    Backup,
    Begin,
    Channel,
    Configure,
    Copied,
    Enlist,
    Examine,
    Examined,
    Failure,
    Message,
    Network,
    Preempted,
    Prepared,
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
from srl.transport.listener import address_of, listen
from srl.transport.slots import Ledger, SlotTable

log = logging.getLogger(__name__)

_POLL_MILLISECONDS = 200
_ACCOUNTS_SECONDS = 1.0
_STOP_ORDER = ("evaluator", "actor", "policy", "buffer", "trainer")
"""Reverse to the dataflow: who sends stops before who receives."""
_GRACE_SECONDS = {
    "evaluator": 15.0,
    "actor": 15.0,
    "policy": 10.0,
    "buffer": 10.0,
    "trainer": 15.0,
}
"""A healthy worker ends within a step, but an env may reset for seconds, on cores that are busy."""
_SAVE_GRACE_SECONDS = 60.0
_REAP_SECONDS = 10.0
_ALONE_GRACE_SECONDS = 1.0
"""Where the controller is gone, and the worker has nothing to save."""
_ALONE_SERIAL = 50_000_000
"""Of the checkpoint that is then written: the controller's orders are far below."""


_TIMED_OUT = "Timeout ("
"""What faulthandler says first where a watchdog's own thread could not."""


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
        self._listeners: dict[str, socket.socket] = {}
        """End of a stream to what listens there."""
        self._early: list[Message] = []
        """What the controller said before it said to begin."""
        self._addresses: dict[str, str] = {}
        """End of a stream to where it is found, on all hosts."""
        experiment = self._plan.experiment
        limit, env = experiment["actors"]["memory_limit_mb"], experiment["env"]["name"]
        self._memory = MemoryWatch(limit, env)
        self._gathering = Gathering(experiment["actors"]["count"])
        self._processes: dict[str, _Process] = {}
        self._relay: _Process | None = None
        self._is_only_host = len(hosts_of(self._plan)) == 1
        self._python_path = [*order.python_path, os.getcwd()]
        """What was shipped to this host is where its agent was started."""
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
            self._prepare()
            self._start()
            stop = self._watch()
            if stop is None:
                self._stop_alone()
            else:
                self._stop_workers(stop.save)
            self._say(*self._gathering.rest(), Stopped(self._ledgers()))
        finally:
            self._sweep()

    def _prepare(self) -> None:
        """Make what outlives every worker, and wait until all hosts have."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_owner(self._folder / "node-agent.json")
        for name, num_bytes in self._order.arenas.items():
            self._arenas[name] = Arena.create(name, num_bytes)
        for end in self._order.listeners:
            self._listeners[end] = self._listen(end)
        own = {end: address_of(listener) for end, listener in self._listeners.items()}
        self._controller.send(Prepared(own))
        self._addresses = own
        has_begun = False
        while not (has_begun or self._controller.closed):
            self._wait()
            for message in self._controller.recv_all():
                if isinstance(message, Begin) and not has_begun:
                    has_begun, self._addresses = True, message.addresses
                else:
                    self._early.append(message)
            has_begun |= any(isinstance(message, Stop) for message in self._early)

    def _listen(self, end: str) -> socket.socket:
        """Listen for an end of a stream: where it was before, or anywhere."""
        address, before = self._order.address, self._order.earlier.get(end, "")
        where, _, port = before.rpartition(":")
        if where.removeprefix("tcp://").strip("[]") == address:
            with contextlib.suppress(ConfigError):
                return listen(address, int(port))
        return listen(address)

    def _start(self) -> None:
        if self._order.is_late or any(isinstance(message, Stop) for message in self._early):
            return
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
            fds += self._listening(name).values()
            program = ["-m", "srl.workers.run", str(theirs.fileno())]
            popen = start_anew(program, log_file, [*fds, theirs.fileno()], threads)
        theirs.close()
        mine.send(
            Configure(
                plan=self._order.plan,
                worker=name,
                arenas={n: (a.fd or 0, a.buffer.nbytes) for n, a in self._arenas.items()},
                socket_folder=str(self._folder),
                python_path=self._python_path,
                incarnation=incarnation,
                state=state,
                network=self._network(name),
                host=self._order.host,
            )
        )
        return _Process(name, kind, incarnation, popen, mine)

    def _start_relay(self) -> None:
        """Start what brings parameters from host to host; again where it has ended."""
        if self._is_only_host:
            return
        if self._relay is not None:
            if self._relay.popen.poll() is None:
                return
            log.warning("%s", _describe_exit(RELAY, self._relay.popen.poll() or 0))
            self._relay.channel.close()
        mine, theirs = channel_pair()
        fds = [arena.fd for arena in self._arenas.values() if arena.fd is not None]
        fds += [*self._listening(RELAY).values(), theirs.fileno()]
        program = ["-m", "srl.launch.relay", str(theirs.fileno())]
        log_file = Path(self._order.log_folder) / f"{RELAY}-{self._order.host}.log"
        popen = start_anew(program, log_file, fds, 1)
        theirs.close()
        mine.send(
            Configure(
                plan=self._order.plan,
                worker=RELAY,
                arenas={n: (a.fd or 0, a.buffer.nbytes) for n, a in self._arenas.items()},
                socket_folder=str(self._folder),
                python_path=self._python_path,
                incarnation=uuid.uuid4().int
                >> 96,  # nobody counts its lives, but what each reports
                network=self._network(RELAY),
                host=self._order.host,
            )
        )
        self._relay = _Process(RELAY, RELAY, 1, popen, mine)

    def _network(self, name: str) -> Network | None:
        """What a worker needs to reach others over a network; None where nobody does."""
        keys = self._order.keys
        if keys is None:
            return None
        return Network(keys, self._addresses, self._listening(name), self._order.address)

    def _listening(self, name: str) -> dict[str, int]:
        """End of a stream, of a worker, to the descriptor that listens there."""
        ends = [end for end, worker in self._order.listeners.items() if worker == name]
        return {end: self._listeners[end].fileno() for end in ends}

    def _fork_actor(self, log_file: Path, mine: Channel, theirs: socket.socket) -> Child:
        from srl.workers import actor, run  # noqa: F401 - what every actor needs

        import_family(self._plan.experiment["env"]["name"])
        others = [self._controller, mine, *(p.channel for p in self._processes.values())]

        def work() -> int:
            for held in (*others, *self._listeners.values()):  # here, they would outlive the agent
                held.close()
            return run.main(theirs.detach())

        return fork(log_file, work)

    def _watch(self) -> Stop | None:
        """Forward messages until told to stop; None where nobody is left to tell."""
        accounts_at = 0.0
        while True:
            self._wait()
            early, self._early = self._early, []
            for message in (*early, *self._controller.recv_all()):
                if isinstance(message, Stop):
                    return message
                self._obey(message)
            if self._controller.closed:
                return None
            if self._is_preempted:
                self._is_preempted = False
                of = (
                    ""
                    if self._is_only_host
                    else f" of host {self._order.host} ({self._order.address})"
                )
                self._controller.send(Preempted(f"node-agent{of}"))
            self._forward()
            self._report_deaths()
            self._say(*self._gathering.due())
            self._start_relay()
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
        elif isinstance(message, Retire | Enlist):
            for process in (*self._of_kind("trainer"), *self._of_kind("buffer")):
                process.channel.send(message)
        elif isinstance(message, Backup):
            self._backup = message
        elif isinstance(message, Begin):
            self._move(message.addresses)
        elif isinstance(message, Examine):
            self._examiner.begin({name: p.popen.pid for name, p in self._living().items()})

    def _move(self, addresses: dict[str, str]) -> None:
        """Others are found elsewhere now: who asks them must begin anew."""
        before, self._addresses = self._addresses, addresses
        for name, process in self._living().items():
            asked = asked_ends(self._plan, name)
            if any(before.get(end) != addresses.get(end) for end in asked):
                process.popen.kill()
                process.has_reported_failure = True
                words = f"{name}: a policy worker that it asks is found on another host now"
                self._controller.send(Failure(name, words, "", process.incarnation))

    def _living(self) -> dict[str, _Process]:
        return {name: p for name, p in self._processes.items() if p.popen.poll() is None}

    def _restart(self, order: Restart) -> None:
        """End what is left of these workers, then begin their next lives."""
        mine = [name for name in order.workers if name in self._order.workers]
        for name in mine:
            if name in self._processes:
                self._end(self._processes[name])
        self._say(*self._gathering.rest(), Restarted(mine, self._ledgers()))
        for name in mine:
            log.info("%s begins its life number %d", name, order.incarnation)
            self._processes[name] = self._spawn(name, order.incarnation, order.state)

    def _end(self, process: _Process) -> None:
        """End a process at once, hear its last words, and close the channel to it."""
        _kill(process)
        for message in process.channel.recv_all():
            if not isinstance(message, Failure):  # it is ended on purpose
                self._say(*self._gathering.take(process.name, process.kind, message))
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
                self._say(*self._gathering.take(process.name, process.kind, message))
                forwarded.append(message)
        if self._relay is not None:
            self._say(*self._relay.channel.recv_all())
        return forwarded

    def _say(self, *messages: Message) -> None:
        """To the controller."""
        for message in messages:
            self._controller.send(message)

    def _report_deaths(self) -> None:
        for process in self._processes.values():
            code = process.popen.poll()
            if code is not None and not process.has_reported_failure:
                self._forward()  # its last words may have come just now
                if process.has_reported_failure:
                    continue
                process.has_reported_failure = True
                end_group(process.popen.pid)
                log_file = Path(self._order.log_folder) / f"{process.name}.log"
                words = self._memory.explain(process.name, process.popen.pid, code)
                said = _tail(log_file)
                words = words or _describe_exit(process.name, code, said)
                hung = self._plan.experiment["env"]["timeout_seconds"] if _TIMED_OUT in said else 0
                death = Failure(
                    process.name, words, said, process.incarnation, hung_seconds=float(hung or 0)
                )
                self._say(*self._gathering.take(process.name, process.kind, death))

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

    @property
    def _save_grace(self) -> float:
        """Seconds that writing a checkpoint may take."""
        return _SAVE_GRACE_SECONDS + self._plan.replay_seconds

    def _await_exit(
        self, processes: list[_Process], saving: set[tuple[str, int]], grace: float
    ) -> list[Message]:
        """Wait for the end of these workers, longer while some write their part; what they said."""
        heard: list[Message] = []
        deadline = time.monotonic() + (self._save_grace if saving else grace)
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
            _kill(process)
        return heard + self._forward()

    def _streams(self) -> tuple[dict[str, int], list[str]]:
        """Policy to blocks that wait for its trainers; what is in the streams, in words."""
        unread, words = {}, []
        for route in self._plan.learning:
            if f"samples/{route.policy}" not in self._arenas:
                continue
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
        return SlotTable(buffer, num_actors, route.slots, self._plan.num_takers)

    def _ledgers(self) -> dict[str, dict[str, int]]:
        ledgers = {}
        for route in self._plan.learning:
            # Of a block that goes over the network its producer's table says that it was sent.
            tables = {
                actor: SlotTable(
                    self._arenas[f"sending/{route.policy}/{actor}"].buffer, 1, route.slots
                )
                for actor in sent_from(self._plan, route, self._order.host)
            }
            sent = sum(table.sequence(0) for table in tables.values())
            inherited = sum(table.inherited(0) for table in tables.values())
            sent += max(0, self._order.sent.get(route.policy, 0) - inherited)  # they never arrived
            ledger = Ledger()
            if f"samples/{route.policy}" in self._arenas:
                table = self._table(route)
                ledger = table.ledger(consumer_lives=self._live_takers(route))
                sent += sum(table.sequence(actor) for actor in self._senders_in_place(route))
            ledgers[route.policy] = asdict(ledger.with_sent(sent))
        return ledgers

    def _live_takers(self, route: RoutePlan) -> list[bool]:
        """Whether each who takes blocks of a route holds what it took; those of other hosts took nothing here."""
        takers = self._plan.takers(route.policy)
        here = [self._processes.get(worker.name) for worker in takers]
        return [p is None or p.popen.poll() in (None, 0) for p in here]

    def _senders_in_place(self, route: RoutePlan) -> list[int]:
        """Actors of this host whose blocks stay where they write them."""
        host = self._order.host
        far = frozenset(sent_from(self._plan, route, host))
        return [a for a in actors_on(self._plan, host) if a not in far]

    def _of_kind(self, kind: str) -> list[_Process]:
        return [process for process in self._processes.values() if process.kind == kind]

    def _sweep(self) -> None:
        relay = () if self._relay is None else (self._relay,)
        for process in (*self._processes.values(), *relay):
            with contextlib.suppress(WorkerError):  # it ends when the kernel lets it
                _kill(process)
            process.channel.close()
        for owned in (*self._arenas.values(), *self._listeners.values()):
            owned.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _kill(process: _Process) -> None:
    """End a process and wait until it is reaped; raises WorkerError where the kernel does not let it go."""
    if process.popen.poll() is None:
        process.popen.kill()
    try:
        process.popen.wait(timeout=_REAP_SECONDS)
        end_group(process.popen.pid)
    except subprocess.TimeoutExpired as error:
        raise WorkerError(
            f"{process.name} (process {process.popen.pid}) was killed and is still there after "
            f"{_REAP_SECONDS:.0f} s: it waits for a disk or a device of its host; its memory cannot be "
            "taken back before"
        ) from error


def _describe_exit(name: str, code: int, log_tail: str = "") -> str:
    if code < 0:
        return f"{name} was killed by {signal.Signals(-code).name}"
    if (place := log_tail.rfind(_TIMED_OUT)) >= 0:
        where = innermost(log_tail[place:])
        return (
            f"{name} hung in a call that lets no Python code run (--env.timeout-seconds) and was "
            f"ended{': it was in ' + where if where else ''}"
        )
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
        where = f"host {order.host} ({order.address}): " if order.keys is not None else ""
        controller.send(Failure("node-agent", f"{where}{error}", "", is_user_error=True))
        controller.send(Stopped({}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
