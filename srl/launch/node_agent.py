"""The node agent: one process a host that starts, watches and sweeps up that host's workers.

    python -m srl.launch.node_agent CHANNEL_FD SOCKET_FOLDER

It owns the host's arenas (anonymous memory, handed to workers by descriptor) and its folder of
sockets. When the controller is gone it ends its workers and itself.
"""

import logging
import shutil
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path

import msgspec
import zmq

from srl.core.errors import SrlError
from srl.launch.children import Child, can_fork, fork, start_anew
from srl.launch.env_factory import import_family
from srl.launch.limits import raise_descriptors
from srl.launch.owner import write_owner
from srl.launch.plan import Plan, worker_name
from srl.launch.process import use_log
from srl.transport.arena import Arena
from srl.transport.control import (
    Accounts,
    Channel,
    Configure,
    Failure,
    Message,
    Save,
    Saved,
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
"""Where the controller is gone."""


class _Process:
    """A worker's process and the channel to it."""

    def __init__(self, name: str, kind: str, popen: Child, channel: Channel) -> None:
        self.name = name
        self.kind = kind
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
        self._processes: list[_Process] = []
        self._folder = Path(order.socket_folder)
        self._writers = frozenset(self._plan.writers())

    def run(self) -> None:
        """Run until the controller says stop, or is gone."""
        try:
            self._start()
            save = self._watch()
            self._stop_workers(save)
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
            self._processes.append(self._spawn(name))

    def _spawn(self, name: str) -> _Process:
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
                incarnation=1,
                state=self._order.state,
            )
        )
        return _Process(name, kind, popen, mine)

    def _fork_actor(self, log_file: Path, mine: Channel, theirs: socket.socket) -> Child:
        from srl.workers import actor, run  # noqa: F401 - what every actor needs

        import_family(self._plan.experiment["env"]["name"])
        others = [self._controller, mine, *(process.channel for process in self._processes)]

        def work() -> int:
            for channel in others:  # held here, they would outlive the agent
                channel.close()
            return run.main(theirs.detach())

        return fork(log_file, work)

    def _watch(self) -> Save | None:
        """Forward messages until told to stop; returns the checkpoint to write while stopping."""
        accounts_at = 0.0
        while True:
            self._wait()
            for message in self._controller.recv_all():
                if isinstance(message, Stop):
                    return message.save
                if isinstance(message, Save):
                    for process in self._processes:
                        if process.name in self._writers:
                            process.channel.send(message)
            if self._controller.closed:
                log.warning("the controller is gone: ending all workers")
                return None
            self._forward()
            self._report_deaths()
            if time.monotonic() >= accounts_at:
                accounts_at = time.monotonic() + _ACCOUNTS_SECONDS
                self._controller.send(Accounts(self._ledgers()))

    def _wait(self) -> None:
        poller = zmq.Poller()
        if not self._controller.closed:
            poller.register(self._controller.fileno(), zmq.POLLIN)
        for process in self._processes:
            if not process.channel.closed:
                poller.register(process.channel.fileno(), zmq.POLLIN)
        poller.poll(_POLL_MILLISECONDS)

    def _forward(self) -> list[Message]:
        forwarded: list[Message] = []
        for process in self._processes:
            for message in process.channel.recv_all():
                process.has_reported_failure |= isinstance(message, Failure)
                self._controller.send(message)
                forwarded.append(message)
        return forwarded

    def _report_deaths(self) -> None:
        for process in self._processes:
            code = process.popen.poll()
            if code is not None and not process.has_reported_failure:
                self._forward()  # its last words may have come just now
                if process.has_reported_failure:
                    continue
                process.has_reported_failure = True
                log_file = Path(self._order.log_folder) / f"{process.name}.log"
                self._controller.send(
                    Failure(process.name, _describe_exit(process.name, code), _tail(log_file))
                )

    def _stop_workers(self, save: Save | None) -> None:
        if any(process.popen.poll() is not None for process in self._of_kind("trainer")):
            save = None  # one rank is gone, and with it its group: the last checkpoint counts
        for kind in _STOP_ORDER:
            processes, saving = self._of_kind(kind), set[tuple[str, int]]()
            for process in processes:
                order = save if process.name in self._writers else None
                process.channel.send(Stop(order))
                if order is not None:
                    saving.add((process.name, order.serial))
            self._await_exit(processes, saving, _GRACE_SECONDS[kind])

    def _await_exit(
        self, processes: list[_Process], saving: set[tuple[str, int]], grace: float
    ) -> None:
        """Wait for the end of these workers; longer while some of them write their part."""
        deadline = time.monotonic() + (_SAVE_GRACE_SECONDS if saving else grace)
        while any(p.popen.poll() is None for p in processes) and time.monotonic() < deadline:
            self._controller.recv_all()  # nothing but its end matters now
            if self._controller.closed:
                deadline = min(deadline, time.monotonic() + _ALONE_GRACE_SECONDS)
            self._wait()
            saved = {(m.worker, m.serial) for m in self._forward() if isinstance(m, Saved)}
            if saved and not (saving := saving - saved):
                deadline = min(deadline, time.monotonic() + grace)
        for process in processes:
            if process.popen.poll() is None:
                log.warning("%s did not stop in time: killing it", process.name)
                process.popen.kill()
            process.popen.wait(timeout=10)
        self._forward()

    def _ledgers(self) -> dict[str, dict[str, int]]:
        num_actors = self._plan.experiment["actors"]["count"]
        processes = {process.name: process for process in self._processes}
        ledgers = {}
        for route in self._plan.learning:
            buffer = self._arenas[f"samples/{route.policy}"].buffer
            table = SlotTable(buffer, num_actors, route.slots, self._plan.num_ranks)
            names = [worker_name("trainer", route.policy, i) for i in range(self._plan.num_ranks)]
            lives = [processes[name].popen.poll() in (None, 0) for name in names]
            ledgers[route.policy] = asdict(table.ledger(consumer_lives=lives))
        return ledgers

    def _of_kind(self, kind: str) -> list[_Process]:
        return [process for process in self._processes if process.kind == kind]

    def _sweep(self) -> None:
        for process in self._processes:
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
