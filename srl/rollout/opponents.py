"""Which policy of a pool each lane plays by: drawn anew where an episode begins."""

from collections.abc import Mapping

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Block


class Opponents:
    """One number a lane, `[L]`, uniform over the members of a pool.

    A draw depends on (seed, lane, episode) alone, so there is no generator to save.
    """

    def __init__(self, members: int, num_lanes: int, seed: int) -> None:
        """Draw one of `members`; nothing is drawn where there are none: the policy is no pool."""
        self._members = members
        self._seed = seed
        self._ids = np.zeros(num_lanes, np.int64)

    def show(self, block: Block, t: int) -> None:
        """Write into row `t`, whose observation is written, by which policy each lane plays."""
        if not self._members:
            return
        first = np.flatnonzero(block["first"][t])
        if len(first):
            episodes = block.episodes_at(t)
            for lane in first:
                entropy = (self._seed, int(block["lane"][lane]), int(lane), int(episodes[lane]))
                self._ids[lane] = np.random.default_rng(entropy).integers(self._members)
        np.copyto(block["policy_id"][t], self._ids)

    def save(self) -> Arrays:
        """Who is played now, copied; empty where the policy is no pool."""
        return {"ids": self._ids.copy()} if self._members else {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        if self._members:
            np.copyto(self._ids, state["ids"])
