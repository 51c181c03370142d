"""The two ends of an inference stream between processes: requests, answers, and who is asked next.

What a substrate adds is how the row of a request comes to the policy worker, and its answer back: both
lie in memory that both sides have (`shm`), or are sent along (`tcp`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Stack
from srl.core.errors import SpecError, StreamError
from srl.core.spec import Spec
from srl.core.streams import Grant, Request
from srl.transport.codec import Header, Kind
from srl.transport.sockets import Client, Message, Server, join

HELLO_SECONDS = 0.5
"""Between two greetings of a worker that has not answered one, or a request, for so long."""
_QUIET_SECONDS = 4.0
"""Of one that has: thousands of actors greet."""


class Pending:
    """One group's open request."""

    __slots__ = ("asked", "asked_at", "grant", "posted_at", "row", "sequence")

    def __init__(self, sequence: int, grant: Grant, row: int, now: float) -> None:
        self.sequence = sequence
        self.grant = grant
        self.row = row
        self.posted_at = now
        self.asked_at = now
        self.asked: set[int] = set()


class RequestClient(ABC):
    """An actor's end: one connection a policy worker.

    writes: outputs and version into its own rows
    waits for: any policy worker
    unblocked by: REPLY messages; a request unanswered for `resend_seconds` goes to another worker
    """

    def __init__(
        self,
        outputs: Spec,
        clients: Sequence[Client],
        *,
        index: int,
        incarnation: int,
        num_slots: int,
        digest: bytes,
        resend_seconds: float = 1.0,
        timeout_seconds: float = 60.0,
    ) -> None:
        self._outputs = outputs
        self._clients = clients
        self._index = index
        self._incarnation = incarnation
        self._num_slots = num_slots
        self._digest = digest
        self._welcomed: dict[int, int] = {}
        self._outstanding = [0] * len(clients)
        self._pending: dict[int, Pending] = {}
        self._sequence = 0
        self._look_at = self._hello_at = 0.0
        self._check_at = 0.0
        self._resend_seconds = resend_seconds
        self._timeout_seconds = timeout_seconds
        self.resent = 0
        self.late = 0
        self.poll()

    def post(self, group: int, grant: Grant, row: int) -> None:
        """Ask the live policy worker with the fewest open requests."""
        self._sequence += 1
        self._pending[group] = Pending(self._sequence, grant, row, time.monotonic())
        self._prepare(group)
        self._ask(group)

    def poll(self) -> Sequence[int]:
        """Groups whose row has just been completed."""
        answered: list[int] = []
        for worker, client in enumerate(self._clients):
            for message in client.recv_all():
                answered += self._on_message(worker, message)
        now = time.monotonic()
        if now >= self._look_at or now >= self._hello_at:
            self._look_at = now + HELLO_SECONDS
            if now >= self._hello_at or self._waits(now):
                self._hello_at = now + _QUIET_SECONDS
                self._say_hello()
        if now >= self._check_at:
            self._check_at = now + self._resend_seconds / 4
            self._ask_again(now)
        return answered

    @property
    def rejected(self) -> int:
        """Messages dropped because they were malformed or foreign."""
        return sum(client.rejected for client in self._clients)

    def save(self) -> Arrays:
        """No policy lives here."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:  # noqa: B027 - nothing to do is right
        """No policy lives here."""

    def pollables(self) -> Sequence[Any]:
        """The connections to all policy workers."""
        return tuple(client.socket for client in self._clients)

    def close(self) -> None:
        """Disconnect."""
        for client in self._clients:
            client.close()

    def _prepare(self, group: int) -> None:  # noqa: B027 - nothing to do is right
        """Make what goes along with a group's request."""

    def _frames(self, group: int) -> Sequence[Any]:
        """What goes along with a group's request, each time it is sent."""
        return ()

    @abstractmethod
    def _read(self, worker: int, message: Message, pending: Pending) -> Mapping[str, Any] | None:
        """The answer that a message brings, whole and unchanged; None: it does not."""

    def _on_message(self, worker: int, message: Message) -> list[int]:
        header = message.header
        if header.kind is Kind.REFUSED:
            reason = b" ".join(message.frames).decode(errors="replace")
            raise StreamError(f"inference stream refused: {reason}")
        if header.digest != self._digest:
            self._clients[worker].rejected += 1
        elif header.kind is Kind.WELCOME:
            self._on_welcome(worker, header.incarnation)
        elif header.kind is Kind.REPLY and worker in self._welcomed:
            self._outstanding[worker] = max(0, self._outstanding[worker] - 1)
            if self._copy_answer(worker, message):
                return [header.c]
            self.late += 1
        else:
            self._clients[worker].rejected += 1
        return []

    def _on_welcome(self, worker: int, incarnation: int) -> None:
        if self._welcomed.get(worker) == incarnation:
            return
        self._welcomed[worker] = incarnation
        self._outstanding[worker] = 0  # what an earlier life of it was asked will not be answered
        for group, pending in self._pending.items():
            pending.asked.discard(worker)
            if not pending.asked:
                self._ask(group)

    def _copy_answer(self, worker: int, message: Message) -> bool:
        """Copy the answer into the row if it is the one waited for."""
        header = message.header
        pending = self._pending.get(header.c)
        if pending is None or header.sequence != pending.sequence:
            return False
        answer = self._read(worker, message, pending)
        if answer is None:
            return False
        block, row = pending.grant.block, pending.row
        block.answer(answer, row)
        block["version"][row] = header.a
        del self._pending[header.c]
        return True

    def _ask(self, group: int) -> None:
        pending = self._pending[group]
        untried = [w for w in self._welcomed if w not in pending.asked]
        if not untried:
            return
        num_workers = len(self._clients)  # of equals, actors begin with different ones
        worker = min(untried, key=lambda w: (self._outstanding[w], (w - self._index) % num_workers))
        header = Header(
            Kind.REQUEST,
            self._index,
            self._incarnation,
            pending.sequence,
            self._index * self._num_slots + pending.grant.slot,
            pending.row,
            group,
            pending.grant.min_version,
            self._digest,
        )
        if self._clients[worker].send(header, *self._frames(group)):
            self.resent += bool(pending.asked)
            pending.asked.add(worker)
            pending.asked_at = time.monotonic()
            self._outstanding[worker] += 1

    def _ask_again(self, now: float) -> None:
        for group, pending in self._pending.items():
            waited = now - pending.posted_at
            if waited > self._timeout_seconds:
                raise StreamError(
                    f"no policy worker answered for {waited:.0f} s "
                    f"(asked {len(pending.asked)} of {len(self._clients)}, "
                    f"{len(self._welcomed)} connected)"
                )
            if now - pending.asked_at > self._resend_seconds:
                if pending.asked.issuperset(self._welcomed):
                    pending.asked.clear()  # all were asked: request or answer may have been lost
                self._ask(group)

    def _waits(self, now: float) -> bool:
        """Whether somebody has not answered: it may be another by now."""
        return len(self._welcomed) < len(self._clients) or any(
            now - pending.asked_at > HELLO_SECONDS for pending in self._pending.values()
        )

    def _say_hello(self) -> None:
        """Greet every worker again and again: a restarted one answers with a new incarnation."""
        hello = Header(Kind.HELLO, self._index, self._incarnation, 0, digest=self._digest)
        for client in self._clients:
            client.send(hello, self._outputs.to_json().encode())


class RequestServer(ABC):
    """A policy worker's end.

    waits for: requests
    unblocked by: actors that wrote an observation
    """

    def __init__(self, outputs: Spec, server: Server, *, digest: bytes, incarnation: int) -> None:
        self._outputs = outputs
        self._server = server
        self._digest = digest
        self._incarnation = incarnation
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._notices: dict[tuple[int, int], tuple[Header, Sequence[Any]]] = {}
        """Of the last answer to each (client, group)."""
        self.repeated = 0

    @property
    def rejected(self) -> int:
        """Messages dropped because they were malformed or foreign."""
        return self._server.rejected

    def recv(self) -> list[Request]:
        """Requests that have arrived, each once."""
        requests = []
        for message in self._server.recv_all():
            kind = message.header.kind
            if kind is Kind.HELLO:
                self._on_hello(message)
            elif (
                kind is Kind.REQUEST
                and message.header.digest == self._digest
                and self._is_sound(message)
            ):
                requests += self._on_request(message)
            else:
                self._server.rejected += 1
        return requests

    def reply(self, request: Request, outputs: Mapping[str, np.ndarray], version: int) -> None:
        """Send the answer, and keep it for who asks again."""
        peer, incarnation = request.reply_to
        frames = self._write(request, incarnation, outputs)
        header = Header(
            Kind.REPLY,
            0,
            self._incarnation,
            request.sequence,
            version,
            0,
            request.group,
            0,
            self._digest,
        )
        self._notices[request.client, request.group] = header, frames
        self._server.send(peer, header, *frames)

    def pollables(self) -> Sequence[Any]:
        """The socket all actors connect to."""
        return (self._server.socket,)

    def close(self) -> None:
        """Close the socket."""
        self._server.close()

    @abstractmethod
    def _is_sound(self, message: Message) -> bool:
        """Whether a request names a row that exists and belongs to its sender."""

    @abstractmethod
    def _inputs(self, message: Message) -> "Mapping[str, np.ndarray | Stack]":
        """What the policy is shown."""

    @abstractmethod
    def _write(
        self, request: Request, incarnation: int, outputs: Mapping[str, np.ndarray]
    ) -> Sequence[Any]:
        """Put an answer where its client finds it; what is sent along with the notice of it."""

    def _on_hello(self, message: Message) -> None:
        if message.header.digest == self._digest:
            welcome = Header(Kind.WELCOME, 0, self._incarnation, 0, digest=self._digest)
            self._server.send(message.peer, welcome)
            return
        try:
            theirs = Spec.from_json(bytes(join(message.frames)))
            reason = self._outputs.difference(theirs) or "the observations differ"
        except SpecError as error:
            reason = f"the client sent no readable Spec ({error})"
        self._server.rejected += 1
        refused = Header(Kind.REFUSED, 0, self._incarnation, 0, digest=self._digest)
        self._server.send(message.peer, refused, reason.encode())

    def _on_request(self, message: Message) -> list[Request]:
        header = message.header
        key, asked = (header.sender, header.c), (header.incarnation, header.sequence)
        last = self._last.get(key, (-1, -1))
        if last >= asked:
            self.repeated += 1
            notice = self._notices.get(key)
            if last == asked and notice is not None and notice[0].sequence == header.sequence:
                self._server.send(message.peer, notice[0], *notice[1])  # its notice was lost
            return []
        self._last[key] = asked
        return [
            Request(
                client=header.sender,
                group=header.c,
                sequence=header.sequence,
                min_version=header.d,
                inputs=self._inputs(message),
                reply_to=(message.peer, header.incarnation),
            )
        ]
