"""Keeps account of the episodes of a group's lanes: raw returns, lengths, and row numbers."""

from collections.abc import Mapping

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Block
from srl.core.telemetry import Episode


class Episodes:
    """One entry a lane; every array `[L]`."""

    def __init__(self, lane_ids: np.ndarray) -> None:
        self.lane = lane_ids
        num_lanes = len(lane_ids)
        self.episode = np.zeros(num_lanes, np.int64)
        self.step = np.zeros(num_lanes, np.int64)
        self._return = np.zeros(num_lanes, np.float64)
        self._length = np.zeros(num_lanes, np.int64)

    def write_head(self, block: Block) -> None:
        """Say in a block which lanes it holds, and where in their episodes row 0 is."""
        block["lane"][:] = self.lane
        block["episode"][:] = self.episode
        block["step"][:] = self.step

    def observe(self, block: Block, t: int) -> list[Episode]:
        """Take in the outcome of row `t` and the masks of row `t + 1`; returns what ended."""
        self._return += block["reward"][t]
        self._length += block["valid"][t]
        first = block["first"][t + 1]
        self.step += 1
        if first.any():
            self.step[first] = 0
            self.episode += first
        ended = block["terminated"][t] | block["truncated"][t]
        if not ended.any():
            return []
        lanes = np.flatnonzero(ended)
        finished = [Episode(float(self._return[i]), int(self._length[i])) for i in lanes]
        self._return[lanes] = 0.0
        self._length[lanes] = 0
        return finished

    def start_over(self) -> None:
        """The episodes under way are lost: count the next ones from their beginning."""
        self.episode += 1
        for account in (self.step, self._return, self._length):
            account.fill(0)

    def save(self) -> Arrays:
        """Everything, copied."""
        return {
            "episode": self.episode.copy(),
            "step": self.step.copy(),
            "return": self._return.copy(),
            "length": self._length.copy(),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self.episode[:] = state["episode"]
        self.step[:] = state["step"]
        self._return[:] = state["return"]
        self._length[:] = state["length"]
