"""Sample stream between hosts: a block is sent in one message, and kept until its consumer has taken it.

Each side has an arena of its own, with a slot table. A block that arrives is copied into the same slot of
the consumer's arena, and from there on is like one of its own host. Blocks of a producer are received in
the order of their numbers; the answer to a hello says which ones were, so what was sent before that hello
and is not among them is lost, and is sent again.
"""

import time
from collections.abc import Sequence
from typing import Any

import zmq

from srl.core.streams import Delivery
from srl.streams.samples.ends import Consumer, Producer
from srl.transport.blocks import BlockArena
from srl.transport.codec import Kind
from srl.transport.compression import Compression
from srl.transport.keys import Keys
from srl.transport.sockets import Client, Frame, Message, Server, join, join_into, part_sizes

_TELL_SECONDS = 0.005
"""Between two times that producers hear of fewer blocks than half of their slots."""
_PACKED = 1
"""In the header of a block: its frame is compressed."""


class TcpProducer(Producer):
    """An actor's end, on another host than the consumer's.

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
        keys: Keys,
        context: "zmq.Context[Any]",
        compression: Compression | None = None,
    ) -> None:
        """Send to the consumer at `address`; `blocks` is an arena of this producer alone."""
        self._compression = compression
        self._sent: dict[int, int] = {}
        """Slot to the number of the last hello before it was sent."""
        self._looked = -1
        """The last hello whose answer was looked through for blocks that are lost; -1: one was not sent."""
        self.resent = 0
        client = Client(context, address, keys=keys)
        super().__init__(blocks, client, index=index, place=0, incarnation=incarnation)

    def _hand_over(self, slot: int, generation: int) -> None:
        number = self._blocks.table.number(self._place, slot)
        header = self._header(Kind.BLOCK, slot, generation, number)
        frame = self._blocks.block(self._place, slot).buffer.data
        if self._compression is not None and (packed := self._compression.pack(frame)) is not None:
            header, frame = header._replace(c=_PACKED), packed
        if self._client.send(header, frame):
            self._sent[slot] = self._hellos
        else:
            self._sent.pop(slot, None)
            self._looked = -1

    def _heed(self, message: Message) -> bool:
        """Free what was taken, send again what was lost."""
        table = self._blocks.table
        data = b"".join(message.frames)
        if len(data) != _account_bytes(table.num_slots):
            self._client.rejected += 1
            return False
        account = memoryview(data).cast("q").tolist()
        if not table.may_be(self._place, account):
            self._client.rejected += 1
            return False
        self._started += table.learn(self._place, account)
        if message.header.c > self._looked:
            self._send_lost(account, message.header.c)
        return True

    def _send_lost(self, received: Sequence[int], hello: int) -> None:
        """Send again what was sent before this hello and is not among what was received, and what never was."""
        table = self._blocks.table
        self._looked = hello
        for slot in table.waiting(self._place):
            generation = table.generation(self._place, slot)
            is_there = generation <= received[slot]
            if not is_there and self._sent.get(slot, -1) < hello:
                self.resent += slot in self._sent
                self._hand_over(slot, generation)


class TcpConsumer(Consumer):
    """A trainer's end, for producers of all hosts.

    waits for: BLOCK messages from producers
    unblocked by: actors that fill a block
    """

    def __init__(
        self,
        blocks: BlockArena,
        servers: Sequence[Server],
        *,
        consumer: int = 0,
        compression: Compression | None = None,
    ) -> None:
        """Take what comes to `servers`: with a block from other hosts, without one from this."""
        self._compression = compression
        self._sizes = part_sizes(blocks.layout.nbytes)
        """Of the parts of a block."""
        self.out_of_order = 0
        self._untold: dict[int, int] = {}
        """Producer of another host to the blocks of it that were taken, which it does not know yet."""
        self._tell_at = 0.0
        super().__init__(blocks, servers, consumer=consumer)

    def recv(self, limit: int) -> list[Delivery]:
        """Blocks that have arrived; tells producers what was taken: of half their slots, or while nothing comes."""
        enough = self._blocks.table.num_slots // 2
        for producer in [p for p, taken in self._untold.items() if taken >= enough]:
            self._send_credit(producer)
        found = super().recv(limit)
        if not found and self._untold and (now := time.monotonic()) >= self._tell_at:
            self._tell_at = now + _TELL_SECONDS
            for producer in [*self._untold]:
                self._send_credit(producer)
        return found

    def take(self, delivery: Delivery, *, dropped: bool) -> None:
        """Free the block's slot, here and, with the next `recv`, where it came from."""
        super().take(delivery, dropped=dropped)
        peer = self._peers.get(delivery.producer)
        if peer is not None and peer[0].is_remote:
            self._untold[delivery.producer] = self._untold.get(delivery.producer, 0) + 1

    def _on_block(self, server: Server, message: Message) -> None:
        if server.is_remote:
            self._land(server, message)
        else:
            super()._on_block(server, message)

    def _land(self, server: Server, message: Message) -> None:
        """Copy a block into its slot and deliver it, unless it does not belong there, or was here before."""
        header, table = message.header, self._blocks.table
        producer, slot = header.sender, header.a
        data = self._data_of(message)
        if data is None or not self._blocks.holds(producer, slot):
            server.rejected += 1
            return
        before = header.sequence - 1 - table.sequence(producer)
        if before < 0:
            self.repeated_notices += 1
        elif before or not table.may_receive(producer, slot, header.b):
            self.out_of_order += 1  # one before it is missing: both will come again
        else:
            block = self._blocks.block(producer, slot)
            join_into(block.buffer.data, data)
            table.receive(producer, slot, header.sequence)
            self._note(producer, slot, header.b, block)

    def _data_of(self, message: Message) -> Sequence[Frame] | None:
        """The parts of a block that a message brings; None where it brings none, or not whole."""
        frames, size = message.frames, self._blocks.layout.nbytes
        sizes = [len(frame) for frame in frames]
        if message.header.c == _PACKED and self._compression is not None:
            if sum(sizes) >= size or sizes != part_sizes(sum(sizes)):
                return None
            data = self._compression.unpack(join(frames), size)
            return None if data is None else (data,)
        return frames if sizes == self._sizes else None

    def _learn_abandoned(self, server: Server, producer: int, num_blocks: int) -> None:
        """Heed it where a producer can have had leave to start so many since it was last heard."""
        table = self._blocks.table
        if not server.is_remote:
            return
        if num_blocks > table.abandoned(producer) + table.num_producers * table.num_slots:
            server.rejected += 1
        else:
            table.learn_abandoned(producer, num_blocks)

    def _send_credit(self, producer: int) -> None:
        self._untold.pop(producer, None)
        if producer not in self._peers:
            return
        server, peer = self._peers[producer]
        if not server.is_remote:
            super()._send_credit(producer)
            return
        account = self._blocks.table.account_of(producer)
        header = self._credit_header(producer, self._credit.get(producer, 0))
        server.send(peer, header, account)


def _account_bytes(num_slots: int) -> int:
    """Of what a consumer says of a producer."""
    return (2 * num_slots + 1) * 8
