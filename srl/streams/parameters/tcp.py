"""Parameters between hosts: each host fetches a version once, however many of its workers use it.

A source stands beside the trainer: it reads the host's parameters and tells every other host of a new
version. A sink on each of these asks for it when it is ready to, and publishes it there. Tensors that
have not changed since the version that a sink has are not sent.
"""

import time
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Block, Layout
from srl.core.errors import StreamError
from srl.core.spec import Spec
from srl.core.streams import ParameterPublisher, ParameterSubscriber
from srl.transport.codec import Header, Kind
from srl.transport.sockets import Client, Message, Server, join_into, part_sizes

_HELLO_SECONDS = 0.5
_NONE = -1


class ParameterSource:
    """Serves the parameters of its host to others.

    waits for: versions of the trainer, requests of sinks
    unblocked by: the trainer; FETCH messages
    """

    def __init__(self, parameters: ParameterSubscriber, spec: Spec, server: Server) -> None:
        self._parameters = parameters
        self._spec = spec
        self._digest = spec.digest()
        self._server = server
        self._peers: dict[bytes, int] = {}
        """Sink to the number of its last hello."""
        self._version = _NONE
        self._weights: Arrays = {}
        self._changed: dict[str, int] = {}
        """Tensor to the version that changed it."""
        self.tensors_sent = 0

    def step(self) -> bool:
        """Look for a new version, and answer; whether there was anything to do."""
        is_new = self._look()
        messages = self._server.recv_all()
        for message in messages:
            self._on_message(message)
        if is_new:
            for peer in [*self._peers]:
                self._tell(peer)
        return is_new or bool(messages)

    def pollables(self) -> Sequence[Any]:
        """The socket that sinks connect to."""
        return (self._server.socket, *self._parameters.pollables())

    @property
    def rejected(self) -> int:
        """Messages that were none of this stream."""
        return self._server.rejected

    def close(self) -> None:
        """Leave both streams."""
        self._server.close()
        self._parameters.close()

    def _look(self) -> bool:
        if self._parameters.latest() == self._version:
            return False
        self._version, weights = self._parameters.fetch()
        # A copy that nobody writes again: it may still be on its way to a slow host.
        kept = {name: array.copy(order="C") for name, array in weights.items()}
        for name, array in kept.items():
            before = self._weights.get(name)
            if before is None or not np.array_equal(_bytes_of(before), _bytes_of(array)):
                self._changed[name] = self._version
        self._weights = kept
        return True

    def _on_message(self, message: Message) -> None:
        header = message.header
        if header.digest != self._digest:
            self._server.rejected += 1
            if header.kind is Kind.HELLO:
                reason = "the parameters of the two hosts differ"
                self._server.send(message.peer, self._answer(Kind.REFUSED), reason.encode())
        elif header.kind is Kind.HELLO:
            self._peers[message.peer] = header.a
            self._tell(message.peer)
        elif header.kind is Kind.FETCH and self._version != _NONE:
            self._send_weights(message.peer, header.a)
        else:
            self._server.rejected += 1

    def _tell(self, peer: bytes) -> None:
        if self._version == _NONE:
            return
        news = self._answer(Kind.NEWS, a=self._version, c=self._peers[peer])
        if not self._server.send(peer, news):
            del self._peers[peer]  # it is gone; where it is not, it says hello again

    def _send_weights(self, peer: bytes, base: int) -> None:
        knows_base = 0 <= base <= self._version
        fields = [
            (number, field)
            for number, field in enumerate(self._spec)
            if field.nbytes and not (knows_base and self._changed[field.name] <= base)
        ]
        which = np.array([number for number, _ in fields], np.int64).tobytes()
        tensors = [_bytes_of(self._weights[field.name]).data for _, field in fields]
        header = self._answer(Kind.WEIGHTS, a=self._version, b=base if knows_base else _NONE)
        if self._server.send(peer, header, which, *tensors):
            self.tensors_sent += len(tensors)

    def _answer(self, kind: Kind, a: int = 0, b: int = 0, c: int = 0) -> Header:
        return Header(kind, 0, 0, 0, a, b, c, digest=self._digest)


class ParameterSink:
    """Publishes on its host what another host's trainer has learned.

    waits for: news from the source
    unblocked by: NEWS and WEIGHTS messages; what was lost is asked for again after a hello
    """

    def __init__(self, target: ParameterPublisher, spec: Spec, client: Client) -> None:
        self._target = target
        self._spec = tuple(spec)
        self._digest = spec.digest()
        self._client = client
        block = Block.allocate(Layout(spec, rows=1, lanes=1, envs=1))
        self._weights = {f.name: block[f.name].reshape(f.shape) for f in spec}
        self._version = _NONE
        self._asked: int | None = None
        """Number of the last hello before weights were asked for; None: they are not."""
        self._hellos = 0
        self._hello_at = 0.0

    @property
    def version(self) -> int:
        """The version that this host has; -1: none."""
        return self._version

    def step(self) -> bool:
        """Take in what has arrived; whether there was anything.

        Raises StreamError where the two hosts' parameters are not alike.
        """
        messages = self._client.recv_all()
        for message in messages:
            self._on_message(message)
        now = time.monotonic()
        if now >= self._hello_at:
            self._hello_at = now + _HELLO_SECONDS
            self._hellos += 1
            self._client.send(self._header(Kind.HELLO, self._hellos))
        return bool(messages)

    def pollables(self) -> Sequence[Any]:
        """The connection to the source."""
        return (self._client.socket,)

    @property
    def rejected(self) -> int:
        """Messages that were none of this stream."""
        return self._client.rejected

    def close(self) -> None:
        """Leave both streams."""
        self._client.close()
        self._target.close()

    def _on_message(self, message: Message) -> None:
        header = message.header
        if header.kind is Kind.REFUSED:
            reason = b" ".join(message.frames).decode(errors="replace")
            raise StreamError(f"parameter stream refused: {reason}")
        if header.digest != self._digest:
            self._client.rejected += 1
        elif header.kind is Kind.NEWS:
            is_lost = self._asked is not None and header.c > self._asked
            if header.a != self._version and (self._asked is None or is_lost):
                self._ask()
        elif header.kind is Kind.WEIGHTS:
            self._asked = None
            self._lay_over(message)
        else:
            self._client.rejected += 1

    def _ask(self) -> None:
        if self._client.send(self._header(Kind.FETCH, self._version)):
            self._asked = self._hellos

    def _lay_over(self, message: Message) -> None:
        """Take over tensors, if they are for the version this host has, whole and alike."""
        header, parts = message.header, message.frames[1:]
        which = np.frombuffer(message.frames[0] if message.frames else b"", np.uint8)
        numbers = which.view(np.int64).tolist() if not which.nbytes % 8 else [_NONE]
        is_sound = bool(message.frames) and len({*numbers}) == len(numbers)
        is_sound &= header.b in (_NONE, self._version)
        is_sound &= all(0 <= n < len(self._spec) for n in numbers)
        sizes = [part_sizes(self._spec[n].nbytes) for n in numbers] if is_sound else []
        if not is_sound or [len(part) for part in parts] != [*chain.from_iterable(sizes)]:
            self._client.rejected += 1
            return
        rest = iter(parts)
        for n, of_tensor in zip(numbers, sizes, strict=True):
            target = _bytes_of(self._weights[self._spec[n].name]).data
            join_into(target, islice(rest, len(of_tensor)))
        self._version = header.a
        self._target.publish(self._weights, self._version)

    def _header(self, kind: Kind, a: int) -> Header:
        return Header(kind, 0, 0, 0, a, digest=self._digest)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The bits of a contiguous array: as a number, NaN would not even equal itself."""
    return array.reshape(-1).view(np.uint8)
