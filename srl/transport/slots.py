"""The slot table: which blocks of an arena are full, and the ledger of all that ever were.

Every word has one writer and is written whole, so a process killed at any moment leaves a table
that still adds up. Each producer has slots of its own, and one consumer that takes its blocks:
consumers share the producers out among them. A slot is free while it was taken as often as it was
published. There is nothing to rebuild after a death: what a dead producer was filling
was never published, and so is free again.

Between hosts each side has a table of its own: the producer learns from its consumer what was taken, and
the consumer, for the producer, what was published and abandoned.

    published[p, s]   written by producer p: how often slot s was published
    order[p, s]       written by producer p: which of its blocks is in slot s
    abandoned[p]      written by producer p: blocks it was granted and will never send
    inherited[p]      written by producer p: blocks that its table on another host, now gone, published
    taken[p, s]       written by p's consumer: how often it was taken, how many of those dropped
    consumed[c]       written by consumer c: blocks handed to a learner
    lost[c]           written by consumer c: blocks that earlier lives of it took and never used
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from operator import le

import numpy as np

from srl.core.block import aligned
from srl.core.errors import StreamError

_TAKEN_BITS = 40
_TAKEN_MASK = (1 << _TAKEN_BITS) - 1
_CONSUMED, _LOST = 0, 1
_CONSUMER_WORDS = 8  # a cache line of its own


@dataclass(frozen=True)
class Ledger:
    """Blocks by what became of them."""

    sent: int = 0
    consumed: int = 0
    dropped: int = 0
    lost: int = 0
    in_flight: int = 0
    duplicated: int = 0

    @property
    def adds_up(self) -> bool:
        """Whether every block sent is accounted for once."""
        accounted = self.consumed + self.dropped + self.lost + self.in_flight
        return self.sent == accounted and self.duplicated == 0

    def with_sent(self, sent: int) -> "Ledger":
        """The same where `sent` blocks were sent in all: those that have not arrived are in flight."""
        return replace(self, sent=sent, in_flight=self.in_flight + sent - self.sent)

    def ended(self) -> "Ledger":
        """The same after those who held blocks have ended: what was in flight is lost.

        Of a host that died nobody may know all that it sent; what arrived, it has.
        """
        sent = self.sent - min(0, self.in_flight)
        return replace(self, sent=sent, lost=self.lost + max(0, self.in_flight), in_flight=0)

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger(
            sent=self.sent + other.sent,
            consumed=self.consumed + other.consumed,
            dropped=self.dropped + other.dropped,
            lost=self.lost + other.lost,
            in_flight=self.in_flight + other.in_flight,
            duplicated=self.duplicated + other.duplicated,
        )


class SlotTable:
    """Views of the table's words; which methods a process may call depends on its role."""

    def __init__(
        self, buffer: np.ndarray, num_producers: int, num_slots: int, num_consumers: int = 1
    ) -> None:
        """Lay the table over the first `table_bytes(...)` of `buffer`; zeros are an empty table."""
        size = table_bytes(num_producers, num_slots, num_consumers)
        words = buffer[:size].view(np.int64)
        of_consumers = num_consumers * _CONSUMER_WORDS
        grid = words[:-of_consumers].reshape(3, num_producers, -1)
        self.num_producers = num_producers
        self.num_slots = num_slots
        self.num_consumers = num_consumers
        self._published = grid[0, :, :num_slots]
        self._inherited = grid[0, :, num_slots]
        self._order = grid[1, :, :num_slots]
        self._abandoned = grid[1, :, num_slots]
        self._taken = grid[2, :, :num_slots]
        self._consumers = words[-of_consumers:].reshape(num_consumers, _CONSUMER_WORDS)
        # The same words by producer: one by one they are read three times faster so.
        self._published_of = [memoryview(row) for row in self._published]
        self._order_of = [memoryview(row) for row in self._order]
        self._taken_of = [memoryview(row) for row in self._taken]

    def producers_of(self, consumer: int) -> range:
        """The producers whose blocks a consumer takes."""
        return range(consumer, self.num_producers, self.num_consumers)

    def is_free(self, producer: int, slot: int) -> bool:
        """Whether the producer may fill the slot."""
        return self._published_of[producer][slot] == self._taken_of[producer][slot] & _TAKEN_MASK

    def publish(self, producer: int, slot: int) -> int:
        """Producer: hand the full slot over; returns its generation."""
        if not self.is_free(producer, slot):
            raise StreamError(f"slot {slot} of producer {producer} was published twice")
        published = self._published_of[producer]
        generation = published[slot] + 1
        self._order_of[producer][slot] = sum(published) + 1
        published[slot] = generation
        return generation

    def sequence(self, producer: int) -> int:
        """Blocks the producer ever published."""
        return sum(self._published_of[producer])

    def inherited(self, producer: int) -> int:
        """Blocks that the producer published by an earlier table, which is gone: those that arrived."""
        return int(self._inherited[producer])

    def abandon(self, producer: int) -> None:
        """Producer: one more granted block will never be sent."""
        self._abandoned[producer] += 1

    def abandoned(self, producer: int) -> int:
        """Blocks the producer was granted and will never send, in all."""
        return int(self._abandoned[producer])

    def abandoned_of(self, consumer: int) -> int:
        """Blocks that the producers of a consumer were granted and will never send, in all."""
        return int(self._abandoned[consumer :: self.num_consumers].sum())

    def taken(self, producer: int) -> int:
        """Blocks of the producer that were taken, dropped ones included."""
        return int((self._taken[producer] & _TAKEN_MASK).sum())

    def waiting(self, producer: int) -> list[int]:
        """Consumer: slots that wait to be taken, in the order they were published."""
        words = enumerate(zip(self._published_of[producer], self._taken_of[producer], strict=True))
        slots = [slot for slot, (full, taken) in words if full != taken & _TAKEN_MASK]
        return sorted(slots, key=self._order_of[producer].__getitem__)

    def is_ready(self, producer: int, slot: int, generation: int) -> bool:
        """Consumer: whether this very generation of the slot waits to be taken."""
        taken = self._taken_of[producer][slot] & _TAKEN_MASK
        return self._published_of[producer][slot] == generation and taken == generation - 1

    def generation(self, producer: int, slot: int) -> int:
        """How often the slot was published."""
        return self._published_of[producer][slot]

    def may_receive(self, producer: int, slot: int, generation: int) -> bool:
        """Consumer on another host: whether the slot is free, and this the generation that comes next."""
        taken = self._taken_of[producer][slot] & _TAKEN_MASK
        return self._published_of[producer][slot] == taken == generation - 1

    def take(self, producer: int, slot: int, *, dropped: bool) -> None:
        """Consumer: the block was copied out, or dropped; its slot is free again."""
        if self.is_free(producer, slot):
            raise StreamError(f"slot {slot} of producer {producer} was taken twice")
        self._taken_of[producer][slot] += 1 + (int(dropped) << _TAKEN_BITS)

    def receive(self, producer: int, slot: int, number: int) -> None:
        """Consumer on another host, for the producer: block `number` of it is in the slot."""
        self._order_of[producer][slot] = number
        self._published_of[producer][slot] += 1

    def number(self, producer: int, slot: int) -> int:
        """Which of the producer's blocks is in the slot."""
        return self._order_of[producer][slot]

    def learn_abandoned(self, producer: int, num_blocks: int) -> None:
        """Consumer on another host, for the producer: so many blocks will never come, in all."""
        self._abandoned[producer] = max(num_blocks, self.abandoned(producer))

    def account_of(self, producer: int) -> bytes:
        """Consumer: what it knows of a producer: its blocks received and taken, and abandoned."""
        published, taken = self._published_of[producer], self._taken_of[producer]
        return published.tobytes() + taken.tobytes() + self._abandoned[producer].tobytes()

    def may_be(self, producer: int, account: Sequence[int]) -> bool:
        """Producer on another host: whether an account can be true."""
        received = account[: self.num_slots]
        taken = [word & _TAKEN_MASK for word in account[self.num_slots : -1]]
        most = [_TAKEN_MASK] if self._is_new(producer) else self._published_of[producer]
        return (
            min(account) >= 0
            and all(map(le, taken, received))
            and all(map(le, received, cycle(most)))
        )

    def learn(self, producer: int, account: Sequence[int]) -> int:
        """Producer on another host: take over what its consumer has taken.

        Where this table is new, and the consumer knows of blocks that an earlier one has sent or given back,
        go on from there; returns how many these are.
        """
        before = 0
        if self._is_new(producer):
            received = account[: self.num_slots]
            self._inherited[producer] = sum(received)
            self._published[producer] = received
            self._abandoned[producer] = account[-1]
            before = sum(received) + account[-1]
        mine, full = self._taken_of[producer], self._published_of[producer]
        for slot, word in enumerate(account[self.num_slots : -1]):
            if word != mine[slot] and mine[slot] & _TAKEN_MASK < word & _TAKEN_MASK <= full[slot]:
                mine[slot] = word
        return before

    def _is_new(self, producer: int) -> bool:
        """Whether the producer has neither published nor abandoned anything."""
        return not any(self._published_of[producer]) and not self._abandoned[producer]

    def count_consumed(self, num_blocks: int, consumer: int = 0) -> None:
        """Consumer: blocks copied out earlier are now a learner's."""
        self._consumers[consumer, _CONSUMED] += num_blocks

    def count_lost(self, consumer: int = 0) -> None:
        """Consumer, when it begins: what an earlier life of it took and never used is lost."""
        self._consumers[consumer, _LOST] = self._account(consumer, is_alive=False).lost

    def ledger(self, *, consumer_lives: bool | Sequence[bool]) -> Ledger:
        """What became of every block; what a dead consumer held is lost, not in flight.

        Args:
            consumer_lives: of all consumers, or of each.
        """
        lives = np.broadcast_to(consumer_lives, self.num_consumers)
        accounts = (self._account(c, is_alive=bool(lives[c])) for c in range(self.num_consumers))
        return sum(accounts, Ledger())

    def _account(self, consumer: int, *, is_alive: bool) -> Ledger:
        """The ledger of one consumer's producers.

        Adds up while others write, too: a block is counted from its end backwards (consumed,
        then taken, then published), so none is seen later in its life than earlier.
        """
        mine = slice(consumer, None, self.num_consumers)
        own = self._consumers[consumer].copy()
        words = self._taken[mine].copy()
        published = int(self._published[mine].sum())
        taken, dropped = int((words & _TAKEN_MASK).sum()), int((words >> _TAKEN_BITS).sum())
        consumed, lost = int(own[_CONSUMED]), int(own[_LOST])
        held = taken - dropped - consumed - lost
        return Ledger(
            sent=published,
            consumed=consumed,
            dropped=dropped,
            lost=lost + (0 if is_alive else max(0, held)),
            in_flight=published - taken + (max(0, held) if is_alive else 0),
            duplicated=max(0, -held),
        )


def table_bytes(num_producers: int, num_slots: int, num_consumers: int = 1) -> int:
    """Bytes of a table."""
    of_consumers = num_consumers * _CONSUMER_WORDS * 8
    return 3 * num_producers * aligned((num_slots + 1) * 8) + of_consumers
