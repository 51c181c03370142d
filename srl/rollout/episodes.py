"""Keeps account of the episodes of a group's lanes: raw returns and lengths."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Block
from srl.core.telemetry import Episode


class Episodes:
    """One entry a lane; every array `[L]`."""

    def __init__(self, num_lanes: int, policy: str = "main") -> None:
        self._policy = policy
        self._return = np.zeros(num_lanes, np.float64)
        self._length = np.zeros(num_lanes, np.int64)

    def observe(self, block: Block, t: int) -> dict[int, Episode]:
        """Take in the outcome of row `t` and the masks of row `t + 1`; what ended, by lane.

        An episode ends where the row after it is not valid; a lost life ends no episode.
        """
        fields, valid = block.fields, block.fields["valid"]
        self._return += fields["reward"][t]
        self._length += valid[t]
        lanes = ((fields["terminated"][t] | fields["truncated"][t]) > valid[t + 1]).nonzero()[0]
        if not len(lanes):
            return {}
        ended = zip(
            lanes.tolist(), self._return[lanes].tolist(), self._length[lanes].tolist(), strict=True
        )
        finished = {lane: Episode(total, length, self._policy) for lane, total, length in ended}
        self._return[lanes] = 0.0
        self._length[lanes] = 0
        return finished

    def start_over(self, lanes: Any = slice(None)) -> None:
        """The episodes under way, of these lanes, are lost: the next are counted from 0."""
        self._return[lanes] = 0
        self._length[lanes] = 0

    def save(self) -> Arrays:
        """Everything, copied."""
        return {"return": self._return.copy(), "length": self._length.copy()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._return[:] = state["return"]
        self._length[:] = state["length"]
