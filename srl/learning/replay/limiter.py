"""Holds the number of draws for each row that comes, by having actors or the learner wait.

    inserted x samples_per_insert - drawn   stays within warm_up x samples_per_insert +- tolerance

so that the learner learns neither too little from what comes nor too often from what is there.
"""

import math

from srl.core.errors import ConfigError
from srl.core.replay import ReplayConfig, Window


def make_limiter(
    config: ReplayConfig, window: Window, *, rollout: int, lanes: int, groups: int, shards: int
) -> "RateLimiter":
    """That of one of `shards`, to which `groups` send blocks; raises ConfigError where it cannot work.

    Nothing is drawn before there are as many rows as give every lane a window, whatever the warm-up is:
    actors that wait before that would wait for ever. (First in first out counts by itself those
    that begin none.)
    """
    block, blocks = rollout * lanes, -(-window.rows // rollout)
    least = 0 if config.kind == "fifo" else blocks * block * groups
    return RateLimiter(
        samples_per_insert=config.samples_per_insert,
        warm_up=max(config.warm_up // shards, least),
        tolerance=None if config.tolerance is None else config.tolerance / shards,
        insert_rows=block,
        inserters=groups,
        drawn=config.drawn // shards,
    )


_ROUNDING = 1e-3
"""Of a window: with the least tolerance, who may go on is decided by the last bit of these sums, and both might wait."""


class RateLimiter:
    """Counts rows that came and windows that were drawn."""

    def __init__(
        self,
        *,
        samples_per_insert: float,
        warm_up: int,
        tolerance: float | None,
        insert_rows: int,
        inserters: int,
        drawn: int,
    ) -> None:
        """Rows come `insert_rows` at a time from as many as `inserters`, windows go `drawn` at a time."""
        if tolerance is None:
            tolerance = drawn + samples_per_insert * insert_rows * inserters
        elif tolerance < drawn / 2:
            raise ConfigError(
                f"algorithm.replay.tolerance ({tolerance:g}) must be at least {drawn / 2:g}, half of the "
                f"windows that are drawn together ({drawn}: algorithm.replay.batch x steps)"
            )
        self.inserted = 0
        self.drawn = 0
        self._per_insert = samples_per_insert
        self._per_block = samples_per_insert * insert_rows
        self._insert_rows, self._inserters = insert_rows, inserters
        self._warm_up = warm_up
        self._low = warm_up * samples_per_insert - tolerance - _ROUNDING
        self._high = warm_up * samples_per_insert + tolerance

    def change_rate(self, before: float) -> None:
        """Go on from counts at another rate: as far ahead, or behind, as these were at theirs, within what may be now."""
        since, middle = self.inserted - self._warm_up, self._warm_up * self._per_insert
        if before == self._per_insert or since <= 0:
            return
        ahead = min(max(since * before - self.drawn, self._low - middle), self._high - middle)
        self.drawn = round(since * self._per_insert - ahead)

    def may_draw(self, windows: int) -> bool:
        """Whether so many may be drawn now."""
        ahead = self.inserted * self._per_insert - self.drawn
        return self.inserted >= self._warm_up and ahead - windows >= self._low

    def blocks_allowed(self) -> int:
        """Blocks of rows that may have begun, in all: the next may while the last are not too many."""
        return math.ceil((self._high + self.drawn) / self._per_block)

    def found_none(self) -> None:
        """There was nothing to draw: gaps, or nobody acts.

        Once all blocks that may have begun are here, as many more may as there are inserters. The rows
        that came in vain count as drawn.
        """
        if self.inserted >= self.blocks_allowed() * self._insert_rows:
            self.drawn += math.ceil(self._per_block * self._inserters)
