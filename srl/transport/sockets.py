"""ZeroMQ sockets that speak the codec: a server many clients connect to, and a client.

Receiving never blocks (a worker waits in one place, on all of its sockets together), and input
that is malformed or of a peer nobody knows is dropped and counted. Over a network everybody needs the
run's keys.

What is large travels in parts. Only a part that is there as a whole is a sign of life, and one that takes
longer than the silence after which a connection counts as lost would never arrive.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import zmq

from srl.core.errors import StreamError
from srl.transport.codec import HEADER, Header, pack, unpack
from srl.transport.keys import Doorkeeper, Keys, use_keys

# As plain numbers: operations on zmq's enums cost more than the calls they are for (and
# `send_multipart` does some).
_EVENTS, _READABLE, _DONTWAIT = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.DONTWAIT)
_MORE = _DONTWAIT | int(zmq.SNDMORE)
_HEARTBEAT_MILLISECONDS = 2000
_SILENCE_MILLISECONDS = 5000
"""A connection over a network counts as lost, and is made anew, when for so long what is sent is not received by the
other's kernel, or a server hears nothing."""
_PATIENCE_MILLISECONDS = 30_000
"""For so long a client waits for an answer: over a slow link its question is behind all that the kernel still sends."""
_HANDSHAKE_MILLISECONDS = 30_000
"""Thousands that connect in one moment wait for each other; who gives up soon and begins anew makes it worse."""
PART_BYTES = 512 << 10
"""Of a larger frame, so many are sent at once, and over a network nobody may send more: a connection that moves
one part in the time of silence is fast enough. While one is decrypted the next is encrypted, so that a few parts are faster, too."""
_SEAL_BYTES = 64
"""What CURVE adds to a frame, and more."""
_COPIED_BYTES = 64 << 10
"""Frames up to this size are copied: to keep track of one that is not costs more."""
_MOST_AT_ONCE = 1000
"""Messages that are received before those are looked at."""

Frame = bytes | memoryview


class Message(NamedTuple):
    """A received message; `peer` is where a server's answer goes (empty on a client).

    A frame of more than `PART_BYTES` is several in `frames`: its parts, one after another.
    """

    peer: bytes
    header: Header
    frames: Sequence[Frame]


class Server:
    """ROUTER socket: answers each client by the identity its message came with."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        *,
        keeper: Doorkeeper | None = None,
        listener: int | None = None,
        thread: int | None = None,
    ) -> None:
        """Be found at `address`, over a network by those whom the doorkeeper lets in.

        `listener` is a descriptor that listens there already, and is used up; `thread` the number of the
        context's thread that receives (None: any). Over a network a part of more than `PART_BYTES` ends its
        connection.
        """
        self.is_remote = _is_remote(address, has_keys=keeper is not None)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if keeper is not None and self.is_remote:
            keeper.guard(self.socket)
            _use_network(self.socket, address)
        if thread is not None:
            self.socket.setsockopt(zmq.AFFINITY, 1 << thread)
        if listener is not None:
            self.socket.setsockopt(zmq.USE_FD, listener)
        self.socket.bind(address)
        self.rejected = 0

    def send(self, peer: bytes, header: Header, *frames: Any) -> bool:
        """Send to one client; False where it is gone or its queue is full.

        Large frames (bytes, or a memoryview of such) are not copied, and must not change until they are there.
        """
        try:
            _send(self.socket, header, frames, peer=peer)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def recv_all(self) -> list[Message]:
        """Every message that is here now."""
        return _drain(self)

    def parse(self, parts: Sequence[Frame]) -> Message:
        """The message of raw parts; raises StreamError where they are not one."""
        if len(parts) < 2:
            raise StreamError("a message without a header")
        return _message(bytes(parts[0]), parts[1], parts[2:])

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class Client:
    """DEALER socket: one connection to one server, found again when it restarts."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        *,
        keys: Keys | None = None,
    ) -> None:
        """Connect to the server at `address`, over a network by the keys."""
        self.is_remote = _is_remote(address, has_keys=keys is not None)
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        if keys is not None and self.is_remote:
            use_keys(self.socket, keys, serves=False)
            _use_network(self.socket, address)
            # one side asks, and by its asking the other knows, too
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MILLISECONDS)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PATIENCE_MILLISECONDS)
            self.socket.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE_MILLISECONDS)
            self.socket.setsockopt(zmq.TCP_MAXRT, _SILENCE_MILLISECONDS)
            self.socket.setsockopt(zmq.CONNECT_TIMEOUT, _SILENCE_MILLISECONDS)
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self.socket.connect(address)
        self.rejected = 0

    def send(self, header: Header, *frames: Any) -> bool:
        """Queue a message for the server; False where the queue is full.

        Large frames (bytes, or a memoryview of such) are not copied, and must not change until they are there.
        """
        try:
            _send(self.socket, header, frames)
        except zmq.Again:
            return False
        return True

    def recv_all(self) -> list[Message]:
        """Every message that is here now."""
        return _drain(self)

    def parse(self, parts: Sequence[Frame]) -> Message:
        """The message of raw parts; raises StreamError where they are not one."""
        return _message(b"", parts[0], parts[1:])

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def _is_remote(address: str, *, has_keys: bool) -> bool:
    """Whether the address is one of a network, for which keys are needed."""
    if not address.startswith("tcp://"):
        return False
    if not has_keys:
        raise StreamError(f"{address} is of a network: nothing is opened there without keys")
    return True


def limit_frames(socket: "zmq.Socket[Any]", most_bytes: int) -> None:
    """Have a socket end connections that bring larger parts, before there is memory for them."""
    socket.setsockopt(zmq.MAXMSGSIZE, most_bytes + _SEAL_BYTES)


def part_sizes(num_bytes: int) -> list[int]:
    """How large the parts are in which a frame of so many bytes travels."""
    whole, rest = divmod(num_bytes, PART_BYTES)
    return [PART_BYTES] * whole + ([rest] if rest or not whole else [])


def join(parts: Sequence[Frame]) -> Frame:
    """The frame that came in these parts; a copy where it is more than one."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def join_into(target: memoryview, parts: Iterable[Frame]) -> None:
    """Lay the parts of a frame into memory for as many bytes."""
    start = 0
    for part in parts:
        target[start : start + len(part)] = part
        start += len(part)


def _cut(frame: Any) -> list[memoryview]:
    """The parts of a large frame, which are in its memory."""
    whole = memoryview(frame)
    return [whole[at : at + PART_BYTES] for at in range(0, len(whole), PART_BYTES)]


def _use_network(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Have a socket refuse what is too large, and not wait for ever for who connects."""
    limit_frames(socket, PART_BYTES)
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MILLISECONDS)


def _message(peer: bytes, head: Frame, frames: Sequence[Frame]) -> Message:
    """The message of the parts that `_send` makes; who knows how large a frame is joins its own."""
    if len(head) > HEADER.size:
        frames = [head[HEADER.size :], *frames]
        head = head[: HEADER.size]
    return Message(peer, unpack(head), frames)


def _send(
    socket: "zmq.Socket[bytes]", header: Header, frames: Sequence[Any], *, peer: bytes = b""
) -> None:
    """Send a message; a frame that is copied anyhow follows its header in one part, and a large one is cut.

    Each part costs both ends as much as to copy some kilobytes does, more where it is encrypted.
    """
    if peer:
        socket.send(peer, _MORE)
    head = pack(header)
    if len(frames) == 1 and 0 < len(frames[0]) <= _COPIED_BYTES:
        head, frames = b"".join((head, frames[0])), ()
    socket.send(head, _MORE if frames else _DONTWAIT)
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        flags = _DONTWAIT if number == last else _MORE
        if len(frame) > PART_BYTES:
            *parts, frame = _cut(frame)  # noqa: PLW2901 - its end
            for part in parts:
                socket.send(part, _MORE, copy=False)
        socket.send(frame, flags, copy=len(frame) <= _COPIED_BYTES)


def _drain(endpoint: Server | Client) -> list[Message]:
    socket, messages, parse = endpoint.socket, list[Message](), endpoint.parse
    is_router = isinstance(endpoint, Server)
    # Asked first, for mostly there is nothing: an exception costs as much as two messages.
    if not socket.getsockopt(_EVENTS) & _READABLE:  # pyright: ignore[reportOperatorIssue] - a number
        return messages
    try:
        for _ in range(_MOST_AT_ONCE):
            try:
                # ZeroMQ itself puts who it is from in front of what comes to a router
                parts: list[Frame] = [socket.recv(_DONTWAIT)] if is_router else []
                _recv(socket, parts)
                messages.append(parse(parts))
            except StreamError:
                endpoint.rejected += 1
    except zmq.Again:  # that was all, or only a part of one is here
        pass
    return messages


def _recv(socket: "zmq.Socket[bytes]", parts: list[Frame]) -> None:
    """Add the parts of a message; large ones where ZeroMQ has put them.

    Not by `recv_multipart`, which asks the socket after each part whether there is more.
    """
    has_more = True
    while has_more:
        frame: zmq.Frame = socket.recv(_DONTWAIT, False)
        parts.append(frame.bytes if len(frame) <= HEADER.size else frame.buffer)
        has_more = frame.more
