"""Inference on one host: the policy worker reads the actor's row in place.

A request is a 64-byte notice that names a row of the sample arena. The answer is written into a
slab that only the policy worker writes, stamped with (request, incarnation); the actor copies it
into its row if the stamp is the one it waits for, and drops it otherwise. So a policy worker that
was stopped and wakes late can corrupt nothing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from srl.core.arrays import Arrays, write_arrays
from srl.core.block import Block, Layout
from srl.core.errors import SpecError, StreamError
from srl.core.spec import Field, Spec
from srl.core.streams import Grant, Request
from srl.transport.blocks import BlockArena
from srl.transport.codec import Header, Kind
from srl.transport.sockets import Client, Message, Server

_HELLO_SECONDS = 0.5
_STAMP = Spec((Field("stamp", (2,), "int64", "env"),))


@dataclass(frozen=True)
class ReplyLayout:
    """Where the answers of one policy worker lie: one area for each (client, group)."""

    outputs: Spec
    """What a policy answers, states included."""
    num_clients: int
    num_groups: int
    num_lanes: int

    @property
    def area(self) -> Layout:
        """Layout of one area: the outputs of one row, the next states, and the stamp."""
        answers = Spec(tuple(Field(f.name, f.shape, f.dtype) for f in self.outputs))
        return Layout(_STAMP + answers, rows=1, lanes=self.num_lanes, envs=1)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole slab."""
        return self.num_clients * self.num_groups * self.area.nbytes

    def block(self, slab: np.ndarray, client: int, group: int) -> Block:
        """One area of a slab."""
        area = self.area
        start = (client * self.num_groups + group) * area.nbytes
        return Block(area, slab[start : start + area.nbytes])

    def holds(self, client: int, group: int) -> bool:
        """Whether there is such an area."""
        return 0 <= client < self.num_clients and 0 <= group < self.num_groups


class _Pending:
    """One group's open request."""

    __slots__ = ("asked", "asked_at", "grant", "posted_at", "row", "sequence")

    def __init__(self, sequence: int, grant: Grant, row: int, now: float) -> None:
        self.sequence = sequence
        self.grant = grant
        self.row = row
        self.posted_at = now
        self.asked_at = now
        self.asked: set[int] = set()


class ShmInferenceClient:
    """An actor's end: one connection a policy worker.

    reads: the answer slabs of the policy workers
    writes: outputs and version into its own rows
    waits for: any policy worker
    unblocked by: REPLY messages; a request unanswered for `resend_seconds` goes to another worker
    """

    def __init__(
        self,
        replies: ReplyLayout,
        slabs: Sequence[np.ndarray],
        addresses: Sequence[str],
        *,
        index: int,
        incarnation: int,
        num_slots: int,
        digest: bytes,
        context: "zmq.Context[Any]",
        resend_seconds: float = 1.0,
        timeout_seconds: float = 60.0,
    ) -> None:
        groups = range(replies.num_groups)
        self._areas = [[replies.block(slab, index, g) for g in groups] for slab in slabs]
        self._clients = [Client(context, address) for address in addresses]
        self._index = index
        self._incarnation = incarnation
        self._num_slots = num_slots
        self._digest = digest
        self._outputs = replies.outputs
        self._answer = Block.allocate(replies.area).row(self._outputs.names, 0)
        self._welcomed: dict[int, int] = {}
        self._outstanding = [0] * len(addresses)
        self._pending: dict[int, _Pending] = {}
        self._sequence = 0
        self._hello_at = 0.0
        self._check_at = 0.0
        self._resend_seconds = resend_seconds
        self._timeout_seconds = timeout_seconds
        self.resent = 0
        self.late = 0
        self.poll()

    def post(self, group: int, grant: Grant, row: int) -> None:
        """Ask the live policy worker with the fewest open requests."""
        self._sequence += 1
        self._pending[group] = _Pending(self._sequence, grant, row, time.monotonic())
        self._ask(group)

    def poll(self) -> Sequence[int]:
        """Groups whose row has just been completed."""
        answered: list[int] = []
        for worker, client in enumerate(self._clients):
            for message in client.recv_all():
                answered += self._on_message(worker, message)
        now = time.monotonic()
        if now >= self._hello_at:
            self._hello_at = now + _HELLO_SECONDS
            self._say_hello()
        if now >= self._check_at:
            self._check_at = now + self._resend_seconds / 4
            self._ask_again(now)
        return answered

    def save(self) -> Arrays:
        """No policy lives here."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """No policy lives here."""

    def pollables(self) -> Sequence[Any]:
        """The connections to all policy workers."""
        return tuple(client.socket for client in self._clients)

    def close(self) -> None:
        """Disconnect."""
        for client in self._clients:
            client.close()

    def _on_message(self, worker: int, message: Message) -> list[int]:
        header = message.header
        if header.kind is Kind.REFUSED:
            reason = b" ".join(message.frames).decode(errors="replace")
            raise StreamError(f"inference stream refused: {reason}")
        if header.digest != self._digest:
            self._clients[worker].rejected += 1
        elif header.kind is Kind.WELCOME:
            self._on_welcome(worker, header.incarnation)
        elif header.kind is Kind.REPLY:
            self._outstanding[worker] = max(0, self._outstanding[worker] - 1)
            if self._copy_answer(worker, header):
                return [header.c]
            self.late += 1
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

    def _copy_answer(self, worker: int, header: Header) -> bool:
        """Copy the answer into the row if it is the one waited for, whole and unchanged."""
        group = header.c
        pending = self._pending.get(group)
        if pending is None or header.sequence != pending.sequence:
            return False
        area = self._areas[worker][group]
        stamp = area["stamp"][0, 0]
        expected = (pending.sequence, self._incarnation)
        if tuple(stamp) != expected:
            return False
        block, row = pending.grant.block, pending.row
        write_arrays(self._answer, area.row(self._outputs.names, 0))
        if tuple(stamp) != expected:  # a late writer came in between: the state is not touched
            return False
        block.answer(self._answer, row)
        block["version"][row] = header.a
        del self._pending[group]
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
        if self._clients[worker].send(header):
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

    def _say_hello(self) -> None:
        """Greet every worker again and again: a restarted one answers with a new incarnation."""
        hello = Header(Kind.HELLO, self._index, self._incarnation, 0, digest=self._digest)
        for client in self._clients:
            client.send(hello, self._outputs.to_json().encode())


class ShmInferenceServer:
    """A policy worker's end: reads rows in place, writes only its own slab.

    reads: rows of the sample arena
    writes: its answer slab
    waits for: requests
    unblocked by: actors that wrote an observation
    """

    def __init__(
        self,
        blocks: BlockArena,
        replies: ReplyLayout,
        slab: np.ndarray,
        address: str,
        *,
        inputs: tuple[str, ...],
        digest: bytes,
        incarnation: int,
        context: "zmq.Context[Any]",
    ) -> None:
        self._blocks = blocks
        self._replies = replies
        self._slab = slab
        self._inputs = inputs
        self._digest = digest
        self._incarnation = incarnation
        self._server = Server(context, address)
        self._areas: dict[tuple[int, int], Block] = {}
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._notices: dict[tuple[int, int], Header] = {}
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
            elif kind is Kind.REQUEST and self._is_sound(message.header):
                requests += self._on_request(message)
            else:
                self._server.rejected += 1
        return requests

    def reply(self, request: Request, outputs: Mapping[str, np.ndarray], version: int) -> None:
        """Write the answer, stamp it, send the notice."""
        client, group = request.client, request.group
        area = self._areas.get((client, group))
        if area is None:
            area = self._areas[client, group] = self._replies.block(self._slab, client, group)
        stamp = area["stamp"][0, 0]
        stamp[0] = 0  # an answer that is being written has no stamp
        write_arrays(area.row(tuple(outputs), 0), outputs)
        peer, incarnation = request.reply_to
        stamp[1] = incarnation
        stamp[0] = request.sequence
        header = Header(
            Kind.REPLY, 0, self._incarnation, request.sequence, version, 0, group, 0, self._digest
        )
        self._notices[client, group] = header
        self._server.send(peer, header)

    def pollables(self) -> Sequence[Any]:
        """The socket all actors connect to."""
        return (self._server.socket,)

    def close(self) -> None:
        """Close the socket."""
        self._server.close()

    def _is_sound(self, header: Header) -> bool:
        """Whether the numbers of a request name a row that exists and belongs to its sender."""
        producer, slot = divmod(header.a, self._blocks.table.num_slots)
        return (
            header.digest == self._digest
            and producer == header.sender
            and self._blocks.holds(producer, slot)
            and self._replies.holds(header.sender, header.c)
            and 0 <= header.b < self._blocks.layout.rows
        )

    def _on_hello(self, message: Message) -> None:
        if message.header.digest == self._digest:
            welcome = Header(Kind.WELCOME, 0, self._incarnation, 0, digest=self._digest)
            self._server.send(message.peer, welcome)
            return
        try:
            theirs = Spec.from_json(message.frames[0])
            reason = self._replies.outputs.difference(theirs) or "the observations differ"
        except (IndexError, SpecError) as error:
            reason = f"the client sent no readable Spec ({error})"
        refused = Header(Kind.REFUSED, 0, self._incarnation, 0, digest=self._digest)
        self._server.send(message.peer, refused, reason.encode())

    def _on_request(self, message: Message) -> list[Request]:
        header = message.header
        key, asked = (header.sender, header.c), (header.incarnation, header.sequence)
        last = self._last.get(key, (-1, -1))
        if last >= asked:
            self.repeated += 1
            notice = self._notices.get(key)
            if last == asked and notice is not None and notice.sequence == header.sequence:
                self._server.send(message.peer, notice)  # it was answered: the notice was lost
            return []
        self._last[key] = asked
        producer, slot = divmod(header.a, self._blocks.table.num_slots)
        block = self._blocks.block(producer, slot)
        return [
            Request(
                client=header.sender,
                group=header.c,
                sequence=header.sequence,
                min_version=header.d,
                inputs=block.shown(self._inputs, header.b),
                reply_to=(message.peer, header.incarnation),
            )
        ]
