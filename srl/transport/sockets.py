"""ZeroMQ sockets that speak the codec: a server many clients connect to, and a client.

Receiving never blocks (a worker waits in one place, on all of its sockets together), and input
that is malformed or of a peer nobody knows is dropped and counted.
"""

from typing import NamedTuple

import zmq

from srl.core.errors import StreamError
from srl.transport.codec import Header, pack, unpack

# As plain numbers: operations on zmq's enums cost more than the calls they are for (and
# `send_multipart` does some).
_EVENTS, _READABLE, _DONTWAIT = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.DONTWAIT)
_MORE = _DONTWAIT | int(zmq.SNDMORE)


class Message(NamedTuple):
    """A received message; `peer` is where a server's answer goes (empty on a client)."""

    peer: bytes
    header: Header
    frames: list[bytes]


class Server:
    """ROUTER socket: answers each client by the identity its message came with."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(address)
        self.rejected = 0

    def send(self, peer: bytes, header: Header, *frames: bytes) -> bool:
        """Send to one client; False where it is gone or its queue is full."""
        try:
            parts = (peer, pack(header), *frames)
            for part in parts[:-1]:
                self.socket.send(part, _MORE)
            self.socket.send(parts[-1], _DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def recv_all(self) -> list[Message]:
        """Every message that is here now."""
        return _drain(self)

    def parse(self, parts: list[bytes]) -> Message:
        """The message of raw parts; raises StreamError where they are not one."""
        if len(parts) < 2:
            raise StreamError("a message without a header")
        return Message(parts[0], unpack(parts[1]), parts[2:])

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class Client:
    """DEALER socket: one connection to one server, found again when it restarts."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.connect(address)
        self.rejected = 0

    def send(self, header: Header, *frames: bytes) -> bool:
        """Queue a message for the server; False where the queue is full."""
        try:
            parts = (pack(header), *frames)
            for part in parts[:-1]:
                self.socket.send(part, _MORE)
            self.socket.send(parts[-1], _DONTWAIT)
        except zmq.Again:
            return False
        return True

    def recv_all(self) -> list[Message]:
        """Every message that is here now."""
        return _drain(self)

    def parse(self, parts: list[bytes]) -> Message:
        """The message of raw parts; raises StreamError where they are not one."""
        return Message(b"", unpack(parts[0]), parts[1:])

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def _drain(endpoint: Server | Client) -> list[Message]:
    socket, messages = endpoint.socket, []
    # Asked first, for mostly there is nothing: an exception would cost ten times as much.
    while socket.getsockopt(_EVENTS) & _READABLE:  # pyright: ignore[reportOperatorIssue] - a number
        try:
            parts = socket.recv_multipart(_DONTWAIT)
        except zmq.Again:  # only a part of it was here, or it was no message to us
            break
        try:
            messages.append(endpoint.parse(parts))
        except StreamError:
            endpoint.rejected += 1
    return messages
