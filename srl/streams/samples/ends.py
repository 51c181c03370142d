"""The two ends of a sample stream between processes: slots of an arena, and messages about them.

The slot table in the arena is the truth; messages (ZeroMQ) wake the other side up. What a substrate adds
is how a block comes to its consumer: it lies in memory that both have (`shm`), or is sent along (`tcp`).
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from srl.core.block import Block
from srl.core.errors import SpecError, StreamError
from srl.core.spec import Spec
from srl.core.streams import Delivery, Grant
from srl.transport.blocks import BlockArena
from srl.transport.codec import Header, Kind
from srl.transport.sockets import Client, Frame, Message, Server, join

# By names of their own: to look a member of an enum up costs a call.
_HELLO, _BLOCK = Kind.HELLO, Kind.BLOCK
HELLO_SECONDS = 0.5
"""Between two hellos of a producer while something may be lost."""
_QUIET_SECONDS = 4.0
"""Where nothing can be: its consumer has answered, and has taken all that was sent."""


class Producer:
    """An actor's end: owns its slots of the arena while it fills them.

    waits for: credit from the consumer, a slot the consumer has taken
    unblocked by: CREDIT messages
    """

    def __init__(
        self, blocks: BlockArena, client: Client, *, index: int, place: int, incarnation: int
    ) -> None:
        """Send to who `client` is connected to, as producer `index`, which has a `place` in the arena."""
        self._blocks = blocks
        self._index = index
        self._place = place
        self._incarnation = incarnation
        self._digest = blocks.layout.spec.digest()
        self._spec = blocks.layout.spec.to_json().encode()
        self._client = client
        self._filling: set[int] = set()
        self._next = 0
        """The slot that was free for longest, as far as one can say."""
        self._limit = 0
        self._min_version = 0
        # Blocks that an earlier life of this actor sent or gave back count as started.
        self._started = blocks.table.sequence(place) + blocks.table.abandoned(place)
        self._hello_at = 0.0
        self._look_at = 0.0
        self._answered = 0
        """The number of the last hello that was."""
        self._hellos = 0
        self.poll()

    def acquire(self) -> Grant | None:
        """A block to fill, or None while there is no credit or no free slot."""
        if self._started >= self._limit:
            return None
        table = self._blocks.table
        for step in range(table.num_slots):
            slot = (self._next + step) % table.num_slots
            if slot not in self._filling and table.is_free(self._place, slot):
                self._filling.add(slot)
                self._started += 1
                self._next = (slot + 1) % table.num_slots
                return Grant(slot, self._blocks.block(self._place, slot), self._min_version)
        return None

    def send(self, grant: Grant) -> None:
        """Publish the slot, then tell the consumer."""
        self._filling.remove(grant.slot)
        generation = self._blocks.table.publish(self._place, grant.slot)
        self._hand_over(grant.slot, generation)

    def abandon(self, grant: Grant) -> None:
        """Give the block back unsent."""
        self._filling.remove(grant.slot)
        self._blocks.table.abandon(self._place)
        self._client.send(self._header(Kind.ABANDON, a=self._blocks.table.abandoned(self._place)))

    def resume(self, slot: int, min_version: int) -> Grant:
        """Blocks between processes end with the run."""
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
                if self._heed(message):
                    self._answered = max(self._answered, header.c)
                    self._limit = max(self._limit, header.a)
                    self._min_version = max(self._min_version, header.b)
            elif header.kind is not Kind.WELCOME:
                self._client.rejected += 1
        now = time.monotonic()
        if now >= self._look_at or now >= self._hello_at:
            self._look_at = now + HELLO_SECONDS
            if now >= self._hello_at or self._waits():
                self._hello_at = now + _QUIET_SECONDS
                self._hellos += 1
                abandoned = self._blocks.table.abandoned(self._place)
                hello = self._header(Kind.HELLO, a=self._hellos, b=abandoned)
                self._client.send(hello, self._spec)

    def _waits(self) -> bool:
        """Whether something may be lost: the last hello, or a block."""
        table, place = self._blocks.table, self._place
        return self._answered < self._hellos or table.sequence(place) > table.taken(place)

    @property
    def rejected(self) -> int:
        """Messages dropped because they were malformed or foreign."""
        return self._client.rejected

    def pollables(self) -> Sequence[Any]:
        """The connection to the consumer."""
        return (self._client.socket,)

    def close(self) -> None:
        """Say goodbye and disconnect."""
        if not self._client.socket.closed:
            self._client.send(self._header(Kind.GOODBYE))
            self._client.close()

    def _hand_over(self, slot: int, generation: int) -> None:
        """Tell the consumer of a block."""
        self._client.send(self._header(Kind.BLOCK, a=slot, b=generation))

    def _heed(self, message: Message) -> bool:
        """Take in what a CREDIT message says beside credit; False where it says nothing sound."""
        return True

    def _header(self, kind: Kind, a: int = 0, b: int = 0, number: int | None = None) -> Header:
        sequence = self._blocks.table.sequence(self._place) if number is None else number
        return Header(kind, self._index, self._incarnation, sequence, a, b, digest=self._digest)


class Consumer:
    """A trainer's end: reads blocks in place, writes only its own words of the table.

    waits for: BLOCK messages from producers
    unblocked by: actors that fill a block
    """

    def __init__(self, blocks: BlockArena, servers: Sequence[Server], *, consumer: int = 0) -> None:
        """Take the blocks of the producers that are this consumer's."""
        self._blocks = blocks
        self._consumer = consumer
        self._mine = blocks.table.producers_of(consumer)
        self._digest = blocks.layout.spec.digest()
        self._servers = servers
        self._peers: dict[int, tuple[Server, bytes]] = {}
        """Producer to where its last hello came from."""
        self._hellos: dict[int, int] = {}
        """Producer to the number of its last hello."""
        self._incarnations: dict[int, int] = {}
        self._credit: dict[int, int] = {}
        table = blocks.table
        table.count_lost(consumer)
        # Limits and abandoned blocks count from here, a producer's own numbers from the start of
        # the arena: an earlier consumer may have taken blocks before.
        self._abandoned_before = table.abandoned_of(consumer)
        self._started_before = {p: table.taken(p) + table.abandoned(p) for p in self._mine}
        self._min_version = 0
        self._arrived: deque[Delivery] = deque()
        self._noticed: dict[tuple[int, int], int] = {}
        self.repeated_notices = 0

    @property
    def rejected(self) -> int:
        """Messages dropped because they were malformed or foreign."""
        return sum(server.rejected for server in self._servers)

    def recv(self, limit: int) -> list[Delivery]:
        """Blocks whose notice has arrived."""
        for server in self._servers:
            for message in server.recv_all():
                self._on_message(server, message)
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def take(self, delivery: Delivery, *, dropped: bool) -> None:
        """Free the block's slot."""
        self._blocks.table.take(delivery.producer, delivery.slot, dropped=dropped)

    def count_consumed(self, num_blocks: int) -> None:
        """Blocks taken earlier are a learner's now."""
        self._blocks.table.count_consumed(num_blocks, self._consumer)

    def abandoned(self) -> int:
        """Blocks granted that will never come."""
        return self._blocks.table.abandoned_of(self._consumer) - self._abandoned_before

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
        """The sockets that producers connect to."""
        return tuple(server.socket for server in self._servers)

    def close(self) -> None:
        """Close the sockets."""
        for server in self._servers:
            server.close()

    def _on_message(self, server: Server, message: Message) -> None:
        header = message.header
        if header.sender not in self._mine:
            server.rejected += 1
        elif header.kind is _HELLO:
            self._on_hello(server, message)
        elif self._peers.get(header.sender) != (server, message.peer):
            server.rejected += 1
        elif header.kind is _BLOCK:
            self._on_block(server, message)
        elif header.kind is Kind.ABANDON:
            self._learn_abandoned(server, header.sender, header.a)
        elif header.kind is not Kind.GOODBYE:  # which only wakes
            server.rejected += 1

    def _on_hello(self, server: Server, message: Message) -> None:
        header, mine = message.header, self._blocks.layout.spec
        producer = header.sender
        if header.incarnation < self._incarnations.get(producer, 0):
            server.rejected += 1  # an earlier life of it, which arrives late
            return
        if header.digest != self._digest:
            server.rejected += 1
            reason = _describe_difference(mine, message.frames)
            server.send(message.peer, self._answer(Kind.REFUSED), reason.encode())
            return
        self._incarnations[producer] = header.incarnation
        self._peers[producer] = server, message.peer
        self._hellos[producer] = header.a
        self._learn_abandoned(server, producer, header.b)
        server.send(message.peer, self._answer(Kind.WELCOME))
        self._send_credit(producer)
        # The table knows of blocks whose notice went to nobody (an earlier life of either side).
        for slot in self._blocks.table.waiting(producer):
            self._deliver(producer, slot, self._blocks.table.generation(producer, slot))

    def _on_block(self, server: Server, message: Message) -> None:
        """A block is there, or comes with this."""
        header = message.header
        producer, slot, generation = header.sender, header.a, header.b
        if not self._blocks.holds(producer, slot):
            server.rejected += 1
        elif not self._deliver(producer, slot, generation):
            self.repeated_notices += 1

    def _deliver(self, producer: int, slot: int, generation: int) -> bool:
        """Deliver a block that is in its slot; False where it was, or is not there."""
        if self._noticed.get((producer, slot)) == generation:
            return False
        if not self._blocks.table.is_ready(producer, slot, generation):
            return False
        self._note(producer, slot, generation, self._blocks.block(producer, slot))
        return True

    def _note(self, producer: int, slot: int, generation: int, block: Block) -> None:
        self._noticed[producer, slot] = generation
        self._arrived.append(Delivery(producer, slot, block))

    def _learn_abandoned(self, server: Server, producer: int, num_blocks: int) -> None:
        """The table knows of what was abandoned on this host."""

    def _send_credit(self, producer: int) -> None:
        """Tell a producer its limit, if it has one."""
        credit = self._credit.get(producer, 0)
        if producer in self._peers and credit:
            server, peer = self._peers[producer]
            server.send(peer, self._credit_header(producer, credit))

    def _credit_header(self, producer: int, credit: int) -> Header:
        limit = self._started_before[producer] + credit if credit else 0
        hello = self._hellos.get(producer, 0)
        return self._answer(Kind.CREDIT, a=limit, b=self._min_version, c=hello)

    def _answer(self, kind: Kind, a: int = 0, b: int = 0, c: int = 0) -> Header:
        return Header(kind, 0, 0, 0, a, b, c, digest=self._digest)


def _describe_difference(mine: Spec, frames: Sequence[Frame]) -> str:
    try:
        theirs = Spec.from_json(bytes(join(frames)))
    except SpecError as error:
        return f"the producer sent no readable Spec ({error})"
    return mine.difference(theirs) or "the Specs differ"
