"""The slot table: which blocks of an arena are full, and the ledger of all that ever were.

Every word has one writer and is written whole, so a process killed at any moment leaves a table
that still adds up. Each producer has slots of its own; a slot is free while it was taken as often
as it was published. There is nothing to rebuild after a death: what a dead producer was filling
was never published, and so is free again.

    published[p, s]   written by producer p: how often slot s was published
    taken[p, s]       written by the consumer: how often it was taken, and how many of those dropped
    consumed[0]       written by the consumer: blocks handed to a learner
"""

from dataclasses import dataclass

import numpy as np

from srl.core.block import aligned
from srl.core.errors import StreamError

_TAKEN_BITS = 40
_TAKEN_MASK = (1 << _TAKEN_BITS) - 1


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

    def __init__(self, buffer: np.ndarray, num_producers: int, num_slots: int) -> None:
        """Lay the table over the first `table_bytes(...)` of `buffer`; zeros are an empty table."""
        stride = aligned(num_slots * 8) // 8
        words = buffer[: table_bytes(num_producers, num_slots)].view(np.int64)
        half = num_producers * stride
        self.num_producers = num_producers
        self.num_slots = num_slots
        self._published = words[:half].reshape(num_producers, stride)[:, :num_slots]
        self._taken = words[half : 2 * half].reshape(num_producers, stride)[:, :num_slots]
        self._consumer = words[2 * half :]

    def is_free(self, producer: int, slot: int) -> bool:
        """Whether the producer may fill the slot."""
        return int(self._published[producer, slot]) == self._times_taken(producer, slot)

    def publish(self, producer: int, slot: int) -> int:
        """Producer: hand the full slot over; returns its generation."""
        if not self.is_free(producer, slot):
            raise StreamError(f"slot {slot} of producer {producer} was published twice")
        generation = int(self._published[producer, slot]) + 1
        self._published[producer, slot] = generation
        return generation

    def sequence(self, producer: int) -> int:
        """Blocks the producer ever published."""
        return int(self._published[producer].sum())

    def is_ready(self, producer: int, slot: int, generation: int) -> bool:
        """Consumer: whether this very generation of the slot waits to be taken."""
        published = int(self._published[producer, slot])
        return published == generation and self._times_taken(producer, slot) == generation - 1

    def generation(self, producer: int, slot: int) -> int:
        """How often the slot was published."""
        return int(self._published[producer, slot])

    def take(self, producer: int, slot: int, *, dropped: bool) -> None:
        """Consumer: the block was copied out, or dropped; its slot is free again."""
        word = int(self._taken[producer, slot])
        if self.is_free(producer, slot):
            raise StreamError(f"slot {slot} of producer {producer} was taken twice")
        self._taken[producer, slot] = word + 1 + (int(dropped) << _TAKEN_BITS)

    def count_consumed(self, num_blocks: int) -> None:
        """Consumer: blocks copied out earlier are now a learner's."""
        self._consumer[0] += num_blocks

    def ledger(self, *, consumer_lives: bool) -> Ledger:
        """What became of every block; what a dead consumer held is lost, not in flight."""
        sent = int(self._published.sum())
        taken = int((self._taken & _TAKEN_MASK).sum())
        dropped = int((self._taken >> _TAKEN_BITS).sum())
        consumed = int(self._consumer[0])
        held = max(0, taken - dropped - consumed)
        waiting = int((self._published != (self._taken & _TAKEN_MASK)).sum())
        return Ledger(
            sent=sent,
            consumed=consumed,
            dropped=dropped,
            lost=0 if consumer_lives else held,
            in_flight=waiting + (held if consumer_lives else 0),
            duplicated=max(0, consumed + dropped - taken),
        )

    def _times_taken(self, producer: int, slot: int) -> int:
        return int(self._taken[producer, slot]) & _TAKEN_MASK


def table_bytes(num_producers: int, num_slots: int) -> int:
    """Bytes of a table."""
    return 2 * num_producers * aligned(num_slots * 8) + aligned(16)
