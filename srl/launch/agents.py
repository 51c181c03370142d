"""What every launcher with node agents shares: one agent a host, of which it makes one voice."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import msgspec

from srl.launch.graph.hosts import arenas, listeners, workers_of
from srl.launch.graph.plan import Plan
from srl.learning.checkpoint import Checkpoint
from srl.transport.control import (
    Accounts,
    Backup,
    Begin,
    Enlist,
    Examination,
    Examine,
    Examined,
    Failure,
    Message,
    Prepared,
    Reports,
    Restart,
    Restarted,
    Retire,
    Save,
    Saved,
    StartNode,
    Stop,
    Stopped,
)
from srl.transport.keys import Keys
from srl.transport.slots import Ledger

Ledgers = dict[str, dict[str, int]]


class HostLine(Protocol):
    """A way to talk to a node agent."""

    @property
    def closed(self) -> bool:
        """Whether the agent is gone."""
        ...

    def send(self, message: Message) -> None:
        """Send; nothing happens where the agent is gone."""
        ...

    def recv_all(self) -> list[Message]:
        """Every message that is here now."""
        ...


class Agents:
    """The node agents of a run: orders to all of them, and what they say as if they were one."""

    def __init__(self, plan: Plan, lines: Mapping[int, HostLine]) -> None:
        """Talk to the agents of a plan's hosts, each over its line."""
        self._plan = plan
        self._lines = lines
        self._start: StartNode | None = None
        """What all are told, but for what differs by host."""
        self._hosts = frozenset[int]()
        self._has_begun = False
        self._addresses: dict[int, dict[str, str]] = {}
        self._accounts: dict[int, Accounts] = {}
        """Host to what it said last."""
        self._ledgers: Ledgers = {}
        """Their sum."""
        self._examined: dict[int, Examined] = {}
        self._examines = False
        """An examination was asked for, and is not answered yet."""
        self._stopped: dict[int, Stopped] = {}
        self._stop: Stop | None = None
        self._absent: dict[int, list[Restart]] = {}
        """Hosts that are lost and come again, to whom they are to start then."""
        self._lives: dict[str, int] = {}
        """Worker to the number of its life, if it is not the first."""
        self._is_lossy = False
        """A host died, and what was in flight with it."""

    def start(
        self,
        checkpoint: Checkpoint | None,
        *,
        folder: Path,
        keys: Keys | None,
        places: Mapping[int, tuple[str, str]],
    ) -> None:
        """Have all agents prepare; they begin when all have.

        Args:
            checkpoint: to go on from.
            folder: of the run; of hosts that do not see it, the links know.
            keys: of the run; None where everything stays on one host.
            places: host to its folder of sockets and the address where it listens.
        """
        self._hosts = frozenset(places)
        self._start = StartNode(
            plan=msgspec.json.encode(self._plan),
            arenas={},
            workers=[],
            listeners={},
            log_folder=str(folder.resolve() / "logs"),
            socket_folder="",
            python_path=[path or os.getcwd() for path in sys.path],
            state=None if checkpoint is None else str(checkpoint.path.resolve()),
            keys=keys,
        )
        for host, place in places.items():
            self._prepare(host, place)

    def welcome(self, host: int, place: tuple[str, str]) -> None:
        """Have a host take part again that was lost."""
        self._prepare(host, place, is_late=True)

    def join(self, plan: Plan, host: int, place: tuple[str, str]) -> None:
        """Have a host take part that has joined; `plan` says who is there.

        Others need not know: for them its workers are on some other host, as before.
        """
        assert self._start is not None, "not started"
        self._plan, self._hosts = plan, self._hosts | {host}
        self._start = msgspec.structs.replace(self._start, plan=msgspec.json.encode(plan))
        self._prepare(host, place)

    def _prepare(self, host: int, place: tuple[str, str], *, is_late: bool = False) -> None:
        assert self._start is not None, "not started"
        sockets, address = place
        order = msgspec.structs.replace(
            self._start,
            arenas=arenas(self._plan, host),
            workers=workers_of(self._plan, host),
            listeners=listeners(self._plan, host),
            socket_folder=sockets,
            host=host,
            address=address,
            earlier=self._addresses.get(host, {}),
            sent=self._sent_by(host),
            is_late=is_late,
        )
        self._lines[host].send(order)

    def _sent_by(self, host: int) -> dict[str, int]:
        """Policy to blocks that the actors of a host have sent, by what it said last."""
        last = self._accounts.get(host)
        return {} if last is None else {p: one["sent"] for p, one in last.ledgers.items()}

    def tell(self, order: Restart | Retire | Enlist | Backup | Examine | Save) -> None:
        """Pass an order on to all; each does what is for its workers."""
        if isinstance(order, Examine):
            self._examined.clear()
            self._examines = True
        if isinstance(order, Restart):
            self._lives |= dict.fromkeys(order.workers, order.incarnation)
            for orders in self._absent.values():
                orders.append(order)
        for line in self._present():
            line.send(order)

    def _present(self) -> list[HostLine]:
        """Lines to hosts that take part."""
        there = self._hosts - self._absent.keys()
        return [line for host, line in self._lines.items() if host in there]

    def stop(self, order: Save | None) -> None:
        """Stop in order: hosts that only send first, those of the trainers when these have."""
        self._stop = Stop(order)
        self._stopped |= {host: self._last_word(host) for host in self._absent}
        self._go_on_stopping()

    def hear(self) -> list[Message]:
        """What the agents have said."""
        heard: list[Message] = []
        for host, line in self._lines.items():
            for message in line.recv_all():
                heard += self._on_message(host, message)
        return heard

    @property
    def has_stopped(self) -> bool:
        """Whether all agents have said that they have."""
        return len(self._stopped) == len(self._hosts)

    def lost(self) -> list[int]:
        """Hosts whose line is closed and that have not stopped."""
        there = self._hosts - self._stopped.keys()
        return [host for host, line in self._lines.items() if line.closed and host in there]

    def give_up(self, host: int) -> list[Message]:
        """Expect nothing more of a host, whose arenas are gone; what follows from that."""
        self._is_lossy = True
        return self._on_message(host, self._last_word(host))

    def _last_word(self, host: int) -> Stopped:
        """What a host that is gone would say: what it said last."""
        last = self._accounts.get(host)
        return Stopped({} if last is None else last.ledgers)

    def may_lose(self, host: int) -> bool:
        """Whether the run can go on without a host until it comes again: trainers are not there."""
        trainers = [worker.name for worker in self._plan.of_kind("trainer")]
        is_needed = any(self._plan.host_of(name) == host for name in trainers)
        return self._has_begun and not is_needed

    @property
    def is_stopping(self) -> bool:
        """Whether they were told to stop."""
        return self._stop is not None

    def lose(self, host: int, reason: str, *, is_missed: bool = False) -> list[Message]:
        """A host is gone, and may come again: what follows for its workers; `is_missed`: it did not, until now."""
        self._is_lossy = True
        if not self.is_stopping:
            self._absent[host] = []
        deaths = [
            Failure(name, reason, "", self._lives.get(name, 1), is_homeless=is_missed)
            for name in workers_of(self._plan, host)
        ]
        return [*deaths, *self._examination()]  # which waits for it no more

    def is_wanted(self, host: int) -> bool:
        """Whether a host that is lost has somebody to start when it comes again; the others were given up."""
        there = set(workers_of(self._plan, host))
        return any(there.intersection(order.workers) for order in self._absent.get(host, ()))

    def _on_message(self, host: int, message: Message) -> list[Message]:
        if isinstance(message, Prepared):
            return self._on_prepared(host, message)
        if isinstance(message, Accounts):
            return [self._on_accounts(host, message)]
        if isinstance(message, Reports):
            return [*message.reports]
        if isinstance(message, Saved):
            return [self._with_others(host, message)]
        if isinstance(message, Restarted):
            others = [one.ledgers for h, one in self._accounts.items() if h != host]
            ledgers = _sum([message.ledgers, *others])
            return [Restarted(message.workers, ledgers)] if message.workers else []
        if isinstance(message, Examined):
            return self._on_examined(host, message)
        if isinstance(message, Stopped):
            self._stopped[host] = message
            self._go_on_stopping()
            if not self.has_stopped:
                return []
            ledgers = _sum([one.ledgers for one in self._stopped.values()])
            if self._is_lossy:
                ledgers = {p: asdict(Ledger(**one).ended()) for p, one in ledgers.items()}
            return [Stopped(ledgers)]
        return [message]

    def _with_others(self, host: int, saved: Saved) -> Saved:
        """With what trainers of the same policy on other hosts have done with their blocks."""
        others = [
            {
                policy: _settled(one.ledgers[policy])
                for policy in saved.ledgers
                if policy in one.ledgers
            }
            for h, one in self._accounts.items()
            if h != host
        ]
        return msgspec.structs.replace(saved, ledgers=_sum([saved.ledgers, *others]))

    def _on_accounts(self, host: int, message: Accounts) -> Accounts:
        """The ledger of all hosts, and what is new of the workers of this one."""
        before = self._accounts.get(host)
        self._accounts[host] = message
        for policy, ledger in message.ledgers.items():
            total = self._ledgers.setdefault(policy, {})
            last = {} if before is None else before.ledgers.get(policy, {})
            for name, count in ledger.items():
                total[name] = total.get(name, 0) + count - last.get(name, 0)
        ledgers = {policy: dict(total) for policy, total in self._ledgers.items()}
        return Accounts(ledgers, message.megabytes)

    def _on_prepared(self, host: int, message: Prepared) -> list[Message]:
        """Have all begin when all are prepared; later, the one that came again."""
        is_moved = message.addresses != self._addresses.get(host)
        self._addresses[host] = message.addresses
        if not self._has_begun and len(self._addresses) < len(self._hosts):
            return []
        every = {end: at for found in self._addresses.values() for end, at in found.items()}
        if not self._has_begun or is_moved:
            for line in self._present():
                line.send(Begin(every))
        if host in self._absent:
            self._lines[host].send(Begin(every))
            for order in self._absent.pop(host):
                self._lines[host].send(order)
        self._has_begun = True
        return []

    def _on_examined(self, host: int, message: Examined) -> list[Message]:
        """Take in what one host has seen."""
        self._examined[host] = message
        return self._examination()

    def _examination(self) -> list[Message]:
        """One of all hosts, once all were looked at that can be; none where nobody asked."""
        if not self._examines or len(self._examined) < sum(
            not line.closed for line in self._present()
        ):
            return []
        self._examines = False
        workers: dict[str, Examination] = {}
        unread: dict[str, int] = {}
        streams: list[str] = []
        for one in self._examined.values():
            workers |= one.workers
            unread |= one.unread
            streams += one.streams
        return [Examined(workers, unread, streams)]

    def _go_on_stopping(self) -> None:
        if self._stop is None:
            return
        trainers = {self._plan.host_of(w.name) for w in self._plan.of_kind("trainer")}
        senders = [host for host in self._hosts if host not in trainers]
        if all(host in self._stopped for host in senders):
            turn: Sequence[int] = sorted(trainers)
        else:
            turn = senders
        for host in turn:
            if host not in self._stopped:
                self._lines[host].send(self._stop)


def _settled(ledger: Mapping[str, int]) -> dict[str, int]:
    """Of a host's ledger what has become of blocks that arrived there; who sent them may be elsewhere."""
    ended = {name: ledger[name] for name in ("consumed", "dropped", "lost")}
    return asdict(Ledger(sent=sum(ended.values()), **ended))


def _sum(found: Sequence[Ledgers]) -> Ledgers:
    """Policy to what became of its blocks, over all hosts."""
    total: dict[str, Ledger] = {}
    for ledgers in found:
        for policy, ledger in ledgers.items():
            total[policy] = total.get(policy, Ledger()) + Ledger(**ledger)
    return {policy: asdict(ledger) for policy, ledger in total.items()}


def contract(plan: Plan) -> tuple[list[str], list[str]]:
    """What a checkpoint brings back where workers are processes, and what it does not."""
    parallel = plan.num_ranks > 1
    whose = "the first trainer of every policy" if parallel else "every trainer"
    anew = "actors, policies and other trainers" if parallel else "actors and policies"
    kept, lost = plan.replay_contract()
    return [f"weights, optimiser, schedules, counters and random state of {whose}", *kept], [
        "envs: episodes under way are not restored; actors begin new ones",
        f"blocks in flight, and the random state of {anew}",
        *lost,
        *plan.unfinished_evaluation(),
    ]
