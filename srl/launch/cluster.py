"""A run on several hosts: a node agent on each, tied to this process by a link."""

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import zmq

from srl.core.errors import ConfigError, WorkerError
from srl.launch.agents import Agents, contract
from srl.launch.graph.hosts import hosts_of, workers_of
from srl.launch.graph.plan import LATE, Plan
from srl.launch.host.process import thread_environment
from srl.launch.host_files import HostFiles
from srl.launch.link import Greeting, LinkOrder
from srl.learning.checkpoint import Checkpoint
from srl.transport.control import (
    Backup,
    Enlist,
    Examine,
    Failure,
    Message,
    Report,
    Restart,
    Retire,
    Save,
    Stop,
)
from srl.transport.keys import Doorkeeper, make_keys
from srl.transport.line import Switchboard
from srl.transport.listener import address_of, listen

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 120.0
_RETURN_SECONDS = 60.0
"""For a host that was lost to come again; then it counts as lost again."""
_LOOK_SECONDS = 1.0
_RECRUIT_SECONDS = 3.0
_REPORT_SECONDS = 1.0
_END_SECONDS = 10.0


class Starter(Protocol):
    """Starts the link of one host, wherever that is."""

    address: str
    """Where the host listens."""

    def start(self, order: bytes) -> None:
        """Start it and give it its order; what is left of an earlier one ends."""
        ...

    def failure(self) -> str | None:
        """Why the link has ended; None while it has not."""
        ...

    def is_gone(self) -> bool:
        """Whether what was started will not come any more: it has ended, or its node has."""
        ...

    def close(self, grace_seconds: float) -> None:
        """End it if it still runs."""
        ...


class Recruiter(Protocol):
    """Finds hosts for workers that have none."""

    def recruit(self, workers: Sequence[str]) -> Sequence[tuple[Starter, Sequence[str]]]:
        """Hosts that have joined since, each with those of the workers that it has room for."""
        ...

    def withdraw(self) -> None:
        """Hold no room that a host could want that comes again."""
        ...


class SubprocessStarter:
    """A link on this host: for tests, and for hosts that are network namespaces."""

    def __init__(self, address: str, prefix: Sequence[str] = ()) -> None:
        """Start by `prefix` (a command that runs another, elsewhere), and have it listen at `address`."""
        self.address = address
        self._prefix = prefix
        self._said: IO[bytes] | None = None
        """What it says before it has a log."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, order: bytes) -> None:
        """Start it; its order goes through a pipe."""
        self.close(0.0)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` does
        self._process = subprocess.Popen(
            [*self._prefix, sys.executable, "-P", "-m", "srl.launch.link"],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            env=thread_environment(1) | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: `failure` says why
            self._process.stdin.write(order + b"\n")
            self._process.stdin.flush()

    def failure(self) -> str | None:
        """Why the link has ended; None while it has not."""
        if self._process is None or self._process.poll() is None or self._said is None:
            return None
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").splitlines()
        return said[-1] if said else f"it ended with {self._process.returncode}"

    def is_gone(self) -> bool:
        """Whether the link has ended."""
        return self._process is not None and self._process.poll() is not None

    def close(self, grace_seconds: float) -> None:
        """Close its input, and kill it where that does not end it."""
        if self._process is None or self._said is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it was not told
            self._process.stdin.close()
        self._said.close()
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)


class ClusterLauncher:
    """Talks to the node agents of several hosts; the workers are theirs."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        starters: Mapping[int, Starter],
        *,
        address: str = "127.0.0.1",
        recruiter: Recruiter | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run on the hosts of `starters`, which find this process at `address`; `start` ends by SystemExit when it `is_stopped`."""
        self.writers = frozenset(plan.writers())
        self._plan = plan
        self._folder = folder.resolve()
        self._mark = self._folder / f".seen-{uuid.uuid4().hex}"
        """By which hosts know whether they see the folder."""
        self._starters = dict(starters)
        self._recruiter = recruiter
        self._is_stopped = is_stopped
        self._joining: dict[int, float] = {}
        """Hosts that have joined and were started, to how long they may take."""
        self._recruit_at = 0.0
        self._keys = make_keys()
        self._context: zmq.Context[Any] = zmq.Context()
        self._doorkeeper = Doorkeeper(self._context, self._keys)
        self._listener = listen(address)
        at = address_of(self._listener)
        listener = os.dup(self._listener.fileno())
        known = self._starters
        self._board = Switchboard(self._context, at, self._doorkeeper, listener, known=known)
        self._files = HostFiles(plan, self._folder, self._board.hosts)
        self._agents: Agents | None = None
        self._awaited: dict[int, float] = {}
        """Lost hosts that were started again, to how long they may take."""
        self._look_at = 0.0
        self._report_at = 0.0
        self._reported: dict[str, int] = {}
        missing = set(hosts_of(plan)) - {LATE, *starters}
        if missing:
            raise WorkerError(
                f"the plan has workers on hosts {sorted(missing)}, which are not there"
            )

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Tie all hosts to this one, then have their agents start every worker."""
        self._mark.touch()
        for host in self._starters:
            self._start_link(host, 1)
        self._await(lambda: all(self._has_greeted(host) for host in self._starters))
        places = {host: self._place(host) for host in self._starters}
        self._agents = Agents(self._plan, self._board.hosts)
        self._agents.start(checkpoint, folder=self._folder, keys=self._keys, places=places)

    def _start_link(self, host: int, life: int) -> None:
        order = LinkOrder(
            controller=address_of(self._listener),
            keys=self._keys,
            host=host,
            folder=str(self._folder),
            mark=self._mark.name,
            life=life,
        )
        self._starters[host].start(msgspec.json.encode(order))

    def _has_greeted(self, host: int) -> bool:
        channel = self._board.hosts.get(host)
        return channel is not None and channel.greeting is not None

    def _place(self, host: int) -> tuple[str, str]:
        """Where a host has its sockets, and where it listens; raises where it cannot take part."""
        address = self._starters[host].address
        try:
            greeting = msgspec.json.decode(self._board.hosts[host].greeting or "", type=Greeting)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"host {host} ({address}) did not greet as a host of SRL does: install the same on both"
            ) from error
        greeting.check(host, address)
        self._files.far.discard(host)
        if not greeting.sees_folder:
            self._files.far.add(host)
        return greeting.sockets, address

    def poll(self, timeout_seconds: float) -> Sequence[Message]:
        """What workers and agents have said; waits for it at most this long."""
        assert self._agents is not None
        self._board.poll(timeout_seconds)
        messages = self._files.hear(self._agents.hear())
        for host in self._agents.lost():
            self._files.forget(host)
            address, why = self._starters[host].address, self._board.hosts[host].lost
            messages += self._lose(host, f"host {host} ({address}) is lost: {why}")
        messages += self._await_lost()
        self._await_joining()
        return [*messages, *self._report()]

    def _report(self) -> list[Message]:
        """Who came to the door of this process, where that has changed."""
        if time.monotonic() < self._report_at:
            return []
        self._report_at = time.monotonic() + _REPORT_SECONDS
        counters = self._doorkeeper.counters() | {"messages_refused": self._board.rejected}
        if counters == self._reported:
            return []
        self._reported = counters
        return [Report("controller", counters=counters)]

    def _lose(self, host: int, reason: str, *, is_missed: bool = False) -> list[Message]:
        """A host is gone: start it again, or end the run where it cannot go on without."""
        assert self._agents is not None
        if not self._agents.may_lose(host):
            words = f"{reason}; the run does not go on without it, `srl resume` does from its last checkpoint"
            return [Failure("node-agent", words, ""), *self._agents.give_up(host)]
        deaths = self._agents.lose(host, reason, is_missed=is_missed)
        if self._agents.is_stopping:
            return [*deaths, *self._agents.give_up(host)]
        if self._recruiter is not None:  # before what the host had is free
            self._recruiter.withdraw()
        self._start_link(host, self._board.replace(host))
        self._awaited[host] = time.monotonic() + _RETURN_SECONDS
        return deaths

    def _await_lost(self) -> list[Message]:
        """Have lost hosts take part again that are back."""
        assert self._agents is not None
        messages: list[Message] = []
        if self._agents.is_stopping:
            self._awaited.clear()
        looks = time.monotonic() > self._look_at
        if looks:
            self._look_at = time.monotonic() + _LOOK_SECONDS
        for host, deadline in [*self._awaited.items()]:
            if self._has_greeted(host):
                del self._awaited[host]
                try:
                    place = self._place(host)
                except ConfigError as error:  # budgets say how often it may come in vain
                    messages += self._lose(host, str(error))
                    continue
                self._agents.welcome(host, place)
            elif time.monotonic() > deadline and not self._agents.is_wanted(host):
                del self._awaited[host]
                self._starters[host].close(0.0)
                messages += self._agents.give_up(host)
            elif time.monotonic() > deadline:
                words = f"host {host} did not come again within {_RETURN_SECONDS:.0f} s"
                messages += self._lose(host, words, is_missed=True)
            elif looks and self._starters[host].is_gone():
                self._start_link(host, self._board.replace(host))
        return messages

    def _await_joining(self) -> None:
        """Have hosts take part that have joined; look for more of them while workers have none."""
        assert self._agents is not None
        now = time.monotonic()
        if self._agents.is_stopping:
            self._joining.clear()
        for host, deadline in [*self._joining.items()]:
            if now > deadline:
                self._turn_away(host, "it did not connect in time")
            elif self._has_greeted(host):
                try:
                    place = self._place(host)
                except ConfigError as error:
                    self._turn_away(host, str(error))
                    continue
                del self._joining[host]
                self._agents.join(self._plan, host, place)
        if self._recruiter is None or self._agents.is_stopping or self._awaited:
            return
        late = workers_of(self._plan, LATE)
        if late and now >= self._recruit_at:
            self._recruit_at = now + _RECRUIT_SECONDS
            for starter, workers in self._recruiter.recruit(late):
                host = max(self._starters) + 1
                self._starters[host] = starter
                self._assign(workers, host)
                self._joining[host] = now + _RETURN_SECONDS
                self._start_link(host, 1)

    def _turn_away(self, host: int, reason: str) -> None:
        """A host that has joined cannot take part: its workers wait for another."""
        log.warning("host %d (%s) takes no part: %s", host, self._starters[host].address, reason)
        del self._joining[host]
        self._assign(workers_of(self._plan, host), LATE)
        self._starters[host].close(_END_SECONDS)
        self._board.hosts.pop(host, None)

    def _assign(self, workers: Sequence[str], host: int) -> None:
        hosts = self._plan.hosts | dict.fromkeys(workers, host)
        self._plan = msgspec.structs.replace(self._plan, hosts=hosts)

    def save(self, order: Save) -> None:
        """Have every trainer write its part between two batches."""
        self.tell(order)

    def tell(self, order: Restart | Retire | Enlist | Backup | Examine | Save) -> None:
        """Pass an order on to the agents."""
        assert self._agents is not None
        self._agents.tell(order)

    def stop(self, order: Save | None) -> None:
        """Stop in order, with a last checkpoint; `Stopped` follows by `poll`."""
        assert self._agents is not None
        self._agents.stop(order)

    def close(self) -> None:
        """End all links (and so agents and workers) that still run."""
        for host in self._board.hosts.values():
            host.send(Stop())  # they are not lost, and want no checkpoint
        self._board.poll(0.0)
        self._take_rest(_END_SECONDS if self._agents and self._agents.has_stopped else 0.0)
        for starter in self._starters.values():
            starter.close(_END_SECONDS)
        self._take_rest(0.0)
        self._files.close()
        self._mark.unlink(missing_ok=True)
        self._board.close()
        self._doorkeeper.close()
        self._context.destroy(linger=0)
        self._listener.close()

    def _take_rest(self, seconds: float) -> None:
        """Take the last lines of logs, from hosts that have stopped and do not see the folder."""
        deadline = time.monotonic() + seconds
        while True:
            lines = {host: self._board.hosts.get(host) for host in self._files.far}
            if not self._board.socket.closed:
                self._board.poll(0.1 if seconds else 0.0)
            for line in filter(None, lines.values()):
                self._files.hear(line.recv_all())
            if all(line is None or line.closed for line in lines.values()):
                return
            if time.monotonic() >= deadline:
                return

    def contract(self) -> tuple[list[str], list[str]]:
        """What a checkpoint of this launcher brings back, and what it does not."""
        return contract(self._plan)

    def _await(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _CONNECT_SECONDS
        while not is_done():
            if self._is_stopped():
                raise SystemExit
            for host, starter in self._starters.items():
                if (reason := starter.failure()) is not None:
                    raise WorkerError(f"host {host} could not be started: {reason}")
            if time.monotonic() > deadline:
                silent = sorted(set(self._starters) - set(self._board.hosts))
                raise WorkerError(
                    f"hosts {silent} did not connect within {_CONNECT_SECONDS:.0f} s: can they reach "
                    f"{address_of(self._listener)}, and were they started in that time (a runtime_env that takes long, cores that "
                    "others have taken)?"
                )
            self._board.poll(0.1)
