"""The connection between the controller and a host: bytes both ways, in order, until it is lost.

It is one TCP connection that is never made anew: what is sent arrives, also after the network was cut for a
while, or the line is lost, and the host with it. Both sides send something every second; who hears nothing
for `SILENCE_SECONDS` counts the other as lost.
"""

import contextlib
import time
from collections.abc import Collection
from typing import Any

import zmq

from srl.core.errors import StreamError
from srl.transport.control import MAX_BYTES, Framing, Message
from srl.transport.keys import Doorkeeper, Keys, use_keys
from srl.transport.sockets import limit_frames

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 30.0
_SEND_MILLISECONDS = 20_000
_QUEUE = 100_000
"""Messages that may wait to be sent, or received."""
CHUNK_BYTES = 1 << 20
"""A host sends no more at once."""
_LAST = b"last"
"""Of a host: it ends the line, and nothing comes after this."""


class Line:
    """A host's end.

    waits for: the controller
    unblocked by: its messages and beats
    """

    def __init__(
        self, context: "zmq.Context[Any]", address: str, keys: Keys, *, host: int, life: int = 1
    ) -> None:
        """Connect to the controller at `address` as host number `host`, in one of its lives."""
        self.socket = context.socket(zmq.DEALER)
        use_keys(self.socket, keys, serves=False)
        limit_frames(self.socket, MAX_BYTES)
        self.socket.setsockopt(zmq.ROUTING_ID, f"host-{host}.{life}".encode())
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.socket.setsockopt(zmq.IPV6, int("[" in address))
        self.socket.setsockopt(zmq.SNDHWM, _QUEUE)
        self.socket.setsockopt(zmq.RCVHWM, _QUEUE)
        self.socket.setsockopt(zmq.SNDTIMEO, _SEND_MILLISECONDS)
        self.socket.setsockopt(zmq.LINGER, 2000)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        """Readable when the connection has ended."""
        self.socket.connect(address)
        self.lost: str | None = None
        """Why it is; None: it is not."""
        self._heard_at = time.monotonic()
        self._beat_at = 0.0

    def send(self, data: bytes) -> None:
        """Send bytes; marks the line as lost where they cannot be."""
        if self.lost is not None:
            return
        self._beat_at = time.monotonic() + BEAT_SECONDS
        try:
            for start in range(0, max(1, len(data)), CHUNK_BYTES):
                self.socket.send(data[start : start + CHUNK_BYTES])
        except zmq.Again:
            self.lost = f"nothing could be sent for {_SEND_MILLISECONDS / 1000:.0f} s"

    def recv(self) -> bytes:
        """All bytes that have arrived."""
        found = bytearray()
        now = time.monotonic()
        while int(self.socket.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN):
            found += self.socket.recv(zmq.DONTWAIT)
            self._heard_at = now
        if now >= self._beat_at:
            self.send(b"")
        if self.lost is None and now - self._heard_at > SILENCE_SECONDS:
            self.lost = f"nothing was heard for {SILENCE_SECONDS:.0f} s"
        if self.lost is None and self.monitor.poll(0):
            self.lost = "the connection ended"
        return bytes(found)

    def close(self) -> None:
        """Say that nothing comes any more; may be called twice."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close()
            with contextlib.suppress(zmq.Again):  # where it never came about
                self.socket.send(_LAST, zmq.DONTWAIT)
            self.socket.close()


class Switchboard:
    """The controller's end of all lines."""

    def __init__(
        self,
        context: "zmq.Context[Any]",
        address: str,
        keeper: Doorkeeper,
        listener: int,
        *,
        known: Collection[int] | None = None,
    ) -> None:
        """Be found at `address`, where the descriptor `listener` listens already, by hosts that are `known` (None: all).

        `known` is looked at anew for every message: hosts may be added to it.
        """
        self.socket = context.socket(zmq.ROUTER)
        keeper.guard(self.socket)
        limit_frames(self.socket, CHUNK_BYTES)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.IPV6, int("[" in address))
        self.socket.setsockopt(zmq.SNDHWM, _QUEUE)
        self.socket.setsockopt(zmq.RCVHWM, _QUEUE)
        self.socket.setsockopt(zmq.LINGER, 2000)
        self.socket.setsockopt(zmq.USE_FD, listener)
        self.socket.bind(address)
        self.hosts: dict[int, HostChannel] = {}
        """Those that have connected, in the life they have."""
        self.rejected = 0
        """Messages dropped because they were malformed or foreign."""
        self._known = known
        self._lives: dict[int, int] = {}
        self._beat_at = 0.0

    def replace(self, host: int) -> int:
        """Forget a host that is lost; the number of its next life, which alone is heard from now on."""
        self.hosts.pop(host, None)
        self._lives[host] = self._lives.get(host, 1) + 1
        return self._lives[host]

    def poll(self, timeout_seconds: float) -> None:
        """Wait for bytes at most so long, and give them to the hosts' channels."""
        self.socket.poll(int(timeout_seconds * 1000))
        while int(self.socket.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN):
            identity, *parts = self.socket.recv_multipart(zmq.DONTWAIT)
            number = self._host_of(identity)
            if number is None:
                self.rejected += 1
                continue
            host = self.hosts.get(number)
            if host is None:
                host = self.hosts[number] = HostChannel(self, identity)
            host.take(b"".join(parts))
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_SECONDS
            for host in self.hosts.values():
                host.beat(now)

    def _host_of(self, identity: bytes) -> int | None:
        """The host that a message is from; None where it is of none, or of an earlier life of one."""
        kind, _, place = identity.partition(b"-")
        number, _, life = place.partition(b".")
        if kind != b"host" or not (number.isdigit() and life.isdigit()):
            return None
        host = int(number)
        is_known = self._known is None or host in self._known
        return host if is_known and int(life) == self._lives.get(host, 1) else None

    def send(self, identity: bytes, data: bytes) -> str | None:
        """Send to one host; why that is not possible, None where it is."""
        try:
            self.socket.send(identity, zmq.SNDMORE | zmq.DONTWAIT)
            self.socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            return "it does not read what is sent to it"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return "its connection ended"
        return None

    def close(self) -> None:
        """Hang up; may be called twice."""
        self.socket.close()


class HostChannel:
    """Messages to and from one host, as over a socket pair."""

    def __init__(self, board: Switchboard, identity: bytes) -> None:
        self._board = board
        self._identity = identity
        self._framing = Framing()
        self._heard_at = time.monotonic()
        self.greeting: str | None = None
        """What the host said first, a line of text; None before that."""
        self.lost: str | None = None
        """Why the host is; None: it is not."""
        self._is_foreign = False
        """It sent what no host sends, and is not heard any more."""

    @property
    def closed(self) -> bool:
        """Whether the host is gone."""
        return self.lost is not None

    def send(self, message: Message) -> None:
        """Send; a host that is gone is noted."""
        if self.lost is None:
            self.lost = self._board.send(self._identity, self._framing.bytes_of(message))

    def recv_all(self) -> list[Message]:
        """Every message that is here now; a host that sends anything else is lost."""
        if not self._is_foreign:
            try:
                return self._framing.parse()
            except StreamError as error:
                self._refuse(f"it sent no message of SRL: {error}")
        return []

    def take(self, data: bytes) -> None:
        """Bytes have come."""
        self._heard_at = time.monotonic()
        if data == _LAST:
            self.lost = "it ended"
        elif self.greeting is None and data:
            greeting, _, data = data.partition(b"\n")
            try:
                self.greeting = greeting.decode()
            except UnicodeDecodeError:
                self._refuse("it did not greet as a host of SRL does")
                return
            self._framing.feed(data)
        elif not self._is_foreign:
            self._framing.feed(data)

    def beat(self, now: float) -> None:
        """Show that the controller lives, and look whether the host does."""
        if self.lost is None:
            self.lost = self._board.send(self._identity, b"")
        if self.lost is None and now - self._heard_at > SILENCE_SECONDS:
            self.lost = f"nothing was heard of it for {SILENCE_SECONDS:.0f} s"

    def _refuse(self, why: str) -> None:
        self._is_foreign = True
        self._board.rejected += 1
        self.lost = why

    def close(self) -> None:
        """The line is the board's."""
