"""A workspace: blocks of lanes whose samples nobody wants. They are filled and never sent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.streams import Grant
from srl.transport.blocks import BlockArena


class Workspace:
    """An actor's end, with no other: there is always leave to fill a block.

    Its blocks lie in an arena like any, because policy workers read rows there.
    """

    def __init__(self, blocks: BlockArena, index: int) -> None:
        self._blocks = blocks
        self._index = index
        self._filling: set[int] = set()

    def acquire(self) -> Grant | None:
        """A block to fill; None only where all of them are being filled."""
        for slot in range(self._blocks.table.num_slots):
            if slot not in self._filling:
                return self.resume(slot, 0)
        return None

    def send(self, grant: Grant) -> None:
        """Forget the block."""
        self._filling.remove(grant.slot)

    def abandon(self, grant: Grant) -> None:
        """Forget the block."""
        self._filling.remove(grant.slot)

    def resume(self, slot: int, min_version: int) -> Grant:
        """Go on filling a slot that a checkpoint brought back."""
        self._filling.add(slot)
        return Grant(slot, self._blocks.block(self._index, slot), min_version)

    def poll(self) -> None:
        """Nothing comes."""

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """Nothing to free."""


def save_workspace(blocks: BlockArena) -> Arrays:
    """Every block, for a checkpoint of one process."""
    return {"arena": blocks.buffer.copy()}


def load_workspace(blocks: BlockArena, state: Mapping[str, np.ndarray]) -> None:
    """Take over what `save_workspace` returned."""
    np.copyto(blocks.buffer, state["arena"])
