"""Sockets within one process that lose, repeat and delay messages, and processes that die in a call.

As much of ZeroMQ's ROUTER and DEALER as `srl/transport/sockets.py` uses, under a clock of its own. A
DEALER's messages wait while nobody has bound the address; a ROUTER cannot reach a peer that is gone.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import zmq

_MORE = int(zmq.SNDMORE)


class KilledError(BaseException):
    """The process ends here, and runs nothing more."""


@dataclass
class Process:
    """Who owns sockets: it may die at any of its calls."""

    name: str
    calls_left: int | None = None
    """Calls until it dies; None: it lives on."""
    is_dead: bool = False

    def call(self) -> None:
        """Note a call that others can see the effect of."""
        if self.is_dead:
            raise KilledError
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                self.is_dead = True
                raise KilledError


@dataclass
class Clock:
    """Time that goes by when it is told to; looks like the module `time`."""

    now: float = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@dataclass(frozen=True)
class Weather:
    """What befalls messages."""

    lost: float = 0.0
    """Share of them."""
    repeated: float = 0.0
    delay_seconds: float = 0.0
    """At most; drawn anew for each, so that they overtake each other."""


class Network:
    """All sockets, and the messages on their way."""

    def __init__(self, rng: random.Random, clock: Clock) -> None:
        self.weather = Weather()
        self._rng = rng
        self._clock = clock
        self._serial = 0
        self._bound: dict[str, Socket] = {}
        self._peers: dict[bytes, Socket] = {}
        self._under_way: list[tuple[float, int, str | bytes, list[bytes]]] = []
        self._waiting: dict[str, list[list[bytes]]] = {}

    def context(self, process: Process) -> "Context":
        """What a process makes its sockets with."""
        return Context(self, process)

    def open_sockets(self) -> list[str]:
        """Sockets that nobody closed, of processes that live."""
        found = [*self._bound.items(), *self._peers.items()]
        return [str(key) for key, socket in found if not socket.process.is_dead]

    def deliver(self) -> None:
        """Hand over what is due."""
        while self._under_way and self._under_way[0][0] <= self._clock.now:
            _, _, target, parts = heapq.heappop(self._under_way)
            self._arrive(target, parts)

    def next_at(self) -> float | None:
        """When the next message is due."""
        return self._under_way[0][0] if self._under_way else None

    def bury(self, process: Process) -> None:
        """Close the sockets of a dead process; what was queued in them is gone."""
        process.is_dead = True
        self._bound = {a: s for a, s in self._bound.items() if s.process is not process}
        self._peers = {i: s for i, s in self._peers.items() if s.process is not process}

    def bind(self, address: str, socket: "Socket") -> None:
        """Make a ROUTER the one behind an address."""
        self._bound[address] = socket
        for parts in self._waiting.pop(address, []):
            socket.inbox.append(parts)

    def connect(self, socket: "Socket") -> bytes:
        """A DEALER's identity."""
        self._serial += 1
        identity = b"peer-%d" % self._serial
        self._peers[identity] = socket
        return identity

    def reaches(self, identity: bytes) -> bool:
        """Whether a ROUTER can send to a peer."""
        return identity in self._peers

    def send(self, target: str | bytes, parts: list[bytes]) -> None:
        """Take a message, for an address or a peer; what becomes of it is the weather's."""
        weather, rng = self.weather, self._rng
        copies = 0 if rng.random() < weather.lost else 1 + (rng.random() < weather.repeated)
        for _ in range(copies):
            delay = rng.random() * weather.delay_seconds
            self._serial += 1
            due = (self._clock.now + delay, self._serial, target, parts)
            heapq.heappush(self._under_way, due)

    def close(self, socket: "Socket") -> None:
        """Forget a socket."""
        self._bound = {a: s for a, s in self._bound.items() if s is not socket}
        self._peers = {i: s for i, s in self._peers.items() if s is not socket}

    def _arrive(self, target: str | bytes, parts: list[bytes]) -> None:
        if isinstance(target, bytes):
            if target in self._peers:
                self._peers[target].inbox.append(parts)
        elif target in self._bound:
            self._bound[target].inbox.append(parts)
        else:
            self._waiting.setdefault(target, []).append(parts)


class Context:
    """Makes the sockets of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def socket(self, kind: int) -> "Socket":
        """A ROUTER or a DEALER."""
        return Socket(self._network, self._process, is_router=kind == zmq.ROUTER)


class Socket:
    """One end."""

    def __init__(self, network: Network, process: Process, *, is_router: bool) -> None:
        self.process = process
        self.inbox: deque[list[bytes]] = deque()
        self.closed = False
        self._network = network
        self._is_router = is_router
        self._address = ""
        self._identity = b""
        self._parts: list[bytes] = []
        self._unread: deque[bytes] = deque()

    def setsockopt(self, option: int, value: int) -> None:
        """Options are about real networks."""

    def getsockopt(self, option: int) -> int:
        """EVENTS is all that is asked for."""
        assert option == int(zmq.EVENTS)
        self._network.deliver()
        return int(zmq.POLLIN) if self.inbox else 0

    def bind(self, address: str) -> None:
        """As a ROUTER, be reached by this address."""
        self.process.call()
        self._network.bind(address, self)

    def connect(self, address: str) -> None:
        """As a DEALER, speak to this address."""
        self.process.call()
        self._address = address
        self._identity = self._network.connect(self)

    def send(self, part: bytes, flags: int, *, copy: bool = True) -> None:
        """One part, always copied; the last one (no SNDMORE) sends the message."""
        self.process.call()
        if self._is_router and not self._parts and not self._network.reaches(part):
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        self._parts.append(bytes(part))
        if flags & _MORE:
            return
        parts, self._parts = self._parts, []
        if self._is_router:
            self._network.send(parts[0], parts[1:])
        else:
            self._network.send(self._address, [self._identity, *parts])

    def recv(self, flags: int, copy: bool = True) -> "Part | bytes":
        """The next part of the next message, its bytes with `copy`; raises zmq.Again where there is none."""
        if not self._unread:
            if not self.inbox:
                raise zmq.Again
            self.process.call()
            self._unread.extend(self.inbox.popleft())
        part = self._unread.popleft()
        return part if copy else Part(part, more=bool(self._unread))

    def close(self, linger: Any = None) -> None:
        """Be gone."""
        self.closed = True
        self._network.close(self)


class Part:
    """A received part of a message, like `zmq.Frame`."""

    def __init__(self, data: bytes, *, more: bool) -> None:
        self.bytes = self.buffer = data
        self.more = more

    def __len__(self) -> int:
        return len(self.bytes)
