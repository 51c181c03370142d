"""Blocks in an arena: the slot table first, then every producer's slots."""

from collections.abc import Sequence

import numpy as np

from srl.core.block import Block, Layout
from srl.transport.slots import SlotTable, table_bytes


class BlockArena:
    """The blocks of one sample stream, by producer and slot."""

    def __init__(
        self,
        buffer: np.ndarray,
        layout: Layout,
        num_producers: int,
        num_slots: int,
        num_consumers: int = 1,
        *,
        held: Sequence[int] | None = None,
    ) -> None:
        """Lay them over `buffer`; the blocks of `held` producers alone (None: of all) are in it."""
        self.buffer = buffer
        self.layout = layout
        self.table = SlotTable(buffer, num_producers, num_slots, num_consumers)
        self._start = table_bytes(num_producers, num_slots, num_consumers)
        producers = range(num_producers) if held is None else held
        self._places = {producer: place for place, producer in enumerate(producers)}
        self._blocks: dict[tuple[int, int], Block] = {}

    def block(self, producer: int, slot: int) -> Block:
        """The block in a slot; the same object every time."""
        block = self._blocks.get((producer, slot))
        if block is None:
            index = self._places[producer] * self.table.num_slots + slot
            start = self._start + index * self.layout.nbytes
            block = Block(self.layout, self.buffer[start : start + self.layout.nbytes])
            self._blocks[producer, slot] = block
        return block

    def holds(self, producer: int, slot: int) -> bool:
        """Whether there is such a slot (numbers from a message are not to be trusted)."""
        return producer in self._places and 0 <= slot < self.table.num_slots


def block_arena_bytes(
    layout: Layout,
    num_producers: int,
    num_slots: int,
    num_consumers: int = 1,
    *,
    num_held: int | None = None,
) -> int:
    """Bytes of the arena of a sample stream that holds the blocks of `num_held` producers (None: all)."""
    table = table_bytes(num_producers, num_slots, num_consumers)
    held = num_producers if num_held is None else num_held
    return table + held * num_slots * layout.nbytes
