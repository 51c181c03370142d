"""Sample stream on one host: blocks stay where the actor wrote them, only notices travel.

The slot table in the arena is the truth; notices (ZeroMQ over `ipc`) wake the other side up.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from srl.core.errors import SpecError, StreamError
from srl.core.spec import Spec
from srl.core.streams import Delivery, Grant
from srl.transport.blocks import BlockArena
from srl.transport.codec import Header, Kind
from srl.transport.sockets import Client, Message, Server

_HELLO_SECONDS = 0.5


class ShmProducer:
    """An actor's end: owns its slots of the arena while it fills them.

    waits for: credit from the consumer, a slot the consumer has taken
    unblocked by: CREDIT messages
    """

    def __init__(
        self,
        blocks: BlockArena,
        address: str,
        *,
        index: int,
        incarnation: int,
        context: "zmq.Context[Any]",
    ) -> None:
        self._blocks = blocks
        self._index = index
        self._incarnation = incarnation
        self._digest = blocks.layout.spec.digest()
        self._client = Client(context, address)
        self._filling: set[int] = set()
        self._limit = 0
        self._min_version = 0
        # Blocks that an earlier life of this actor sent or gave back count as started.
        self._started = blocks.table.sequence(index) + blocks.table.abandoned(index)
        self._hello_at = 0.0
        self.poll()

    def acquire(self) -> Grant | None:
        """A block to fill, or None while there is no credit or no free slot."""
        if self._started >= self._limit:
            return None
        for slot in range(self._blocks.table.num_slots):
            if slot not in self._filling and self._blocks.table.is_free(self._index, slot):
                self._filling.add(slot)
                self._started += 1
                return Grant(slot, self._blocks.block(self._index, slot), self._min_version)
        return None

    def send(self, grant: Grant) -> None:
        """Publish the slot, then tell the consumer."""
        self._filling.remove(grant.slot)
        generation = self._blocks.table.publish(self._index, grant.slot)
        self._client.send(self._header(Kind.BLOCK, a=grant.slot, b=generation))

    def abandon(self, grant: Grant) -> None:
        """Give the block back unsent."""
        self._filling.remove(grant.slot)
        self._blocks.table.abandon(self._index)
        self._client.send(self._header(Kind.ABANDON, a=self._blocks.table.abandoned(self._index)))

    def resume(self, slot: int, min_version: int) -> Grant:
        """Blocks in shared memory end with the run."""
        raise StreamError(f"slot {slot} of a shared arena is not part of a checkpoint")

    def poll(self) -> None:
        """Take in credit; say hello again and again, for a restarted consumer knows nobody."""
        for message in self._client.recv_all():
            header = message.header
            if header.kind is Kind.REFUSED:
                reason = b" ".join(message.frames).decode(errors="replace")
                raise StreamError(f"sample stream refused: {reason}")
            if header.digest != self._digest:
                self._client.rejected += 1
            elif header.kind is Kind.CREDIT:
                self._limit = max(self._limit, header.a)
                self._min_version = max(self._min_version, header.b)
        if time.monotonic() >= self._hello_at:
            self._hello_at = time.monotonic() + _HELLO_SECONDS
            spec = self._blocks.layout.spec
            self._client.send(self._header(Kind.HELLO), spec.to_json().encode())

    def pollables(self) -> Sequence[Any]:
        """The connection to the consumer."""
        return (self._client.socket,)

    def close(self) -> None:
        """Say goodbye and disconnect."""
        if not self._client.socket.closed:
            self._client.send(self._header(Kind.GOODBYE))
            self._client.close()

    def _header(self, kind: Kind, a: int = 0, b: int = 0) -> Header:
        return Header(
            kind,
            self._index,
            self._incarnation,
            self._blocks.table.sequence(self._index),
            a,
            b,
            digest=self._digest,
        )


class ShmConsumer:
    """A trainer's end: reads blocks in place, writes only its own words of the table.

    waits for: BLOCK notices from producers
    unblocked by: actors that fill a block
    """

    def __init__(
        self,
        blocks: BlockArena,
        address: str,
        *,
        consumer: int = 0,
        context: "zmq.Context[Any]",
    ) -> None:
        """Take the blocks of the producers that are this consumer's."""
        self._blocks = blocks
        self._consumer = consumer
        self._mine = blocks.table.producers_of(consumer)
        self._digest = blocks.layout.spec.digest()
        self._server = Server(context, address)
        self._peers: dict[int, bytes] = {}
        self._incarnations: dict[int, int] = {}
        self._credit: dict[int, int] = {}
        table = blocks.table
        table.count_lost(consumer)
        # Limits and abandoned blocks count from here, a producer's own numbers from the start of
        # the arena: an earlier consumer may have taken blocks before.
        self._abandoned_before = {p: table.abandoned(p) for p in self._mine}
        self._started_before = {p: table.taken(p) + table.abandoned(p) for p in self._mine}
        self._min_version = 0
        self._arrived: deque[Delivery] = deque()
        self._noticed: dict[tuple[int, int], int] = {}
        self.repeated_notices = 0

    @property
    def rejected(self) -> int:
        """Messages dropped because they were malformed or foreign."""
        return self._server.rejected

    def recv(self, limit: int) -> list[Delivery]:
        """Blocks whose notice has arrived."""
        for message in self._server.recv_all():
            producer = message.header.sender
            if producer not in self._mine:
                self._server.rejected += 1
            elif message.header.kind is Kind.HELLO:
                self._on_hello(message)
            elif self._peers.get(producer) != message.peer:
                self._server.rejected += 1
            elif message.header.kind is Kind.BLOCK:
                self._on_block(producer, message.header.a, message.header.b)
            elif message.header.kind not in (Kind.ABANDON, Kind.GOODBYE):  # these only wake
                self._server.rejected += 1
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def take(self, delivery: Delivery, *, dropped: bool) -> None:
        """Free the block's slot."""
        self._blocks.table.take(delivery.producer, delivery.slot, dropped=dropped)

    def count_consumed(self, num_blocks: int) -> None:
        """Blocks taken earlier are a learner's now."""
        self._blocks.table.count_consumed(num_blocks, self._consumer)

    def abandoned(self) -> int:
        """Blocks granted that will never come."""
        before = self._abandoned_before.items()
        return sum(self._blocks.table.abandoned(p) - n for p, n in before)

    def grant(self, limits: Mapping[int, int], min_version: int) -> None:
        """Send each producer its limit where it grew; resending one changes nothing."""
        newer = min_version > self._min_version
        self._min_version = max(min_version, self._min_version)
        for producer, limit in limits.items():
            if limit > self._credit.get(producer, 0) or newer:
                self._credit[producer] = max(limit, self._credit.get(producer, 0))
                self._send_credit(producer)

    def assigned(self) -> Sequence[int]:
        """Every producer of this consumer."""
        return self._mine

    def producers(self) -> Sequence[int]:
        """Producers that said hello."""
        return tuple(sorted(self._peers))

    def pollables(self) -> Sequence[Any]:
        """The socket all producers connect to."""
        return (self._server.socket,)

    def close(self) -> None:
        """Close the socket."""
        self._server.close()

    def _on_hello(self, message: Message) -> None:
        producer, mine = message.header.sender, self._blocks.layout.spec
        if message.header.incarnation < self._incarnations.get(producer, 0):
            self._server.rejected += 1  # an earlier life of it, which arrives late
            return
        if message.header.digest != self._digest:
            reason = _describe_difference(mine, message.frames)
            self._server.send(message.peer, self._answer(Kind.REFUSED), reason.encode())
            return
        self._incarnations[producer] = message.header.incarnation
        self._peers[producer] = message.peer
        self._server.send(message.peer, self._answer(Kind.WELCOME))
        self._send_credit(producer)
        # The table knows of blocks whose notice went to nobody (an earlier life of either side).
        for slot in self._blocks.table.waiting(producer):
            generation = self._blocks.table.generation(producer, slot)
            if self._noticed.get((producer, slot)) != generation:
                self._on_block(producer, slot, generation)

    def _on_block(self, producer: int, slot: int, generation: int) -> None:
        if not self._blocks.holds(producer, slot):
            self._server.rejected += 1
            return
        is_new = self._noticed.get((producer, slot)) != generation
        if not is_new or not self._blocks.table.is_ready(producer, slot, generation):
            self.repeated_notices += 1
            return
        self._noticed[producer, slot] = generation
        self._arrived.append(Delivery(producer, slot, self._blocks.block(producer, slot)))

    def _send_credit(self, producer: int) -> None:
        credit = self._credit.get(producer, 0)
        if producer in self._peers and credit:
            limit = self._started_before[producer] + credit
            header = self._answer(Kind.CREDIT, a=limit, b=self._min_version)
            self._server.send(self._peers[producer], header)

    def _answer(self, kind: Kind, a: int = 0, b: int = 0) -> Header:
        return Header(kind, 0, 0, 0, a, b, digest=self._digest)


def _describe_difference(mine: Spec, frames: list[bytes]) -> str:
    try:
        theirs = Spec.from_json(frames[0])
    except (IndexError, SpecError) as error:
        return f"the producer sent no readable Spec ({error})"
    return mine.difference(theirs) or "the Specs differ"
