"""Which windows of a table are drawn: all alike, by their priorities, or in the order they came.

A window is named by its track and the number of its first row there, in one number: its item. `n`: windows
that are drawn together.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from srl.core.arrays import Arrays
from srl.core.replay import ReplayConfig, Window
from srl.learning.replay.sum_tree import SumTree
from srl.learning.replay.table import Table

_ROUNDS = 100
"""Times to draw anew what cannot be used, before all that can is looked for."""
_AT_ONCE = 1 << 20
"""Windows that are looked at together then."""
_NUMBER_BITS = 40
_LEAST_PRIORITY = 1e-6
"""So that a window without an error is drawn again some day (Schaul et al. 2016, ε)."""


class Drawn(NamedTuple):
    """Windows, `[n]` each."""

    tracks: np.ndarray
    starts: np.ndarray
    chances: np.ndarray
    """How likely each was, in units of the average one."""

    def items(self) -> np.ndarray:
        """Their names."""
        return (self.tracks << _NUMBER_BITS) | self.starts


class Selector(Protocol):
    """Draws windows, and hears what became of them."""

    def inserted(self, tracks: np.ndarray, start: int) -> int:
        """A block has come: rows from `start` on, on these tracks. How many of them begin no window."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> Drawn | None:
        """So many windows; None where there are not enough."""
        ...

    def update(self, items: np.ndarray, priorities: np.ndarray) -> None:
        """Change the priorities of windows; of those that are gone, nothing."""
        ...

    def save(self) -> Arrays:
        """What cannot be told from the table."""
        ...

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; the table is loaded already."""
        ...


def make_selector(config: ReplayConfig, table: Table, window: Window) -> Selector:
    """The selector of a kind of replay."""
    if config.kind == "uniform":
        return Uniform(table, window)
    if config.kind == "fifo":
        return Fifo(table, window, times=int(config.samples_per_insert))
    return Prioritised(table, window, exponent=config.priority_exponent)


class Uniform:
    """All alike, with replacement."""

    def __init__(self, table: Table, window: Window) -> None:
        self._table, self._window = table, window

    def inserted(self, tracks: np.ndarray, start: int) -> int:
        """The table knows."""
        return 0

    def draw(self, count: int, rng: np.random.Generator) -> Drawn | None:
        """From all tracks by how many windows they have; those that are of no use are drawn anew.

        Where hardly any is of use, what is still missing is drawn from a list of those that are.
        """
        table, window = self._table, self._window
        lowest, end = table.starts(window)
        sizes = -(-(end - lowest) // window.stride)
        sums = np.cumsum(sizes)
        if not len(sums) or not sums[-1]:
            return None

        def find(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Tracks and starts of windows, counted over all tracks."""
            tracks = np.searchsorted(sums, numbers, side="right")
            return tracks, lowest[tracks] + (numbers - sums[tracks] + sizes[tracks]) * window.stride

        def usable(numbers: np.ndarray) -> np.ndarray:
            return table.is_usable(window, *find(numbers))

        drawn, wanted = np.empty(count, np.int64), np.arange(count)
        for _ in range(_ROUNDS):
            drawn[wanted] = rng.integers(sums[-1], size=len(wanted))
            wanted = wanted[~usable(drawn[wanted])]
            if not len(wanted):
                break
        else:
            parts = np.split(np.arange(sums[-1]), range(_AT_ONCE, int(sums[-1]), _AT_ONCE))
            there = np.concatenate([part[np.flatnonzero(usable(part))] for part in parts])
            if not len(there):
                return None
            drawn[wanted] = rng.choice(there, size=len(wanted))
        return Drawn(*find(drawn), np.ones(count))

    def update(self, items: np.ndarray, priorities: np.ndarray) -> None:
        """All stay alike."""

    def save(self) -> Arrays:
        """Nothing."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Nothing."""


class Prioritised:
    """In proportion to priority ** exponent (Schaul et al. 2016); new windows have the highest so far."""

    def __init__(self, table: Table, window: Window, *, exponent: float) -> None:
        self._table, self._window = table, window
        self._exponent = exponent
        self._per_track = table.num_rows // window.stride
        self._tree = SumTree(table.num_tracks * self._per_track)
        self._highest = 1.0
        self._count = 0
        """Leaves that can be drawn."""

    def inserted(self, tracks: np.ndarray, start: int) -> int:
        """Windows whose rows were replaced are gone; those whose last row has come can be drawn."""
        table, window = self._table, self._window
        stop = start + table.rollout
        if start + table.rollout > table.num_rows:  # rows that were replaced, and who needs them
            gone = np.arange(start, stop + table.context)
            old_tracks, old = np.broadcast_arrays(tracks[:, None], self._whole(gone))
            self._set(old_tracks, old, 0.0)
        lowest = max(0, start - window.rows + 1)
        oldest = max(0, stop - table.num_rows)
        lowest = max(lowest, oldest + table.context if oldest else 0)
        new = self._whole(np.arange(lowest, stop - window.rows + 1))
        all_tracks, starts = np.broadcast_arrays(tracks[:, None], new)
        usable = table.is_usable(window, all_tracks.ravel(), starts.ravel())
        self._set(all_tracks, starts, usable * self._highest**self._exponent)
        return 0

    def draw(self, count: int, rng: np.random.Generator) -> Drawn | None:
        """One of every `count`-th part of the sum of all priorities."""
        total = self._tree.total
        if not total:
            return None
        leaves = self._tree.find((np.arange(count) + rng.random(count)) * (total / count))
        tracks, starts = self._windows(leaves)
        chances = self._tree.values[leaves] * (self._count / total)
        return Drawn(tracks, starts, chances)

    def update(self, items: np.ndarray, priorities: np.ndarray) -> None:
        """Those of windows that are still there."""
        tracks, starts = items >> _NUMBER_BITS, items & ((1 << _NUMBER_BITS) - 1)
        leaves = self._leaves(tracks, starts)
        oldest = self._table.written[tracks] - self._table.num_rows
        still = (starts >= oldest) & (self._tree.values[leaves] > 0) & np.isfinite(priorities)
        if not still.any():
            return
        kept = np.maximum(priorities[still].astype(np.float64), _LEAST_PRIORITY)
        self._highest = max(self._highest, float(kept.max()))
        self._tree.set(leaves[still], kept**self._exponent)

    def save(self) -> Arrays:
        """All priorities, with which exponent they are here, and the highest."""
        return {
            "leaves": self._tree.values.copy(),
            "highest": np.array(self._highest),
            "exponent": np.array(self._exponent),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._highest = float(state["highest"])
        values = state["leaves"]
        before = float(state.get("exponent", self._exponent))
        if before != self._exponent:
            # with an exponent of 0 nothing is known of them: all as new ones
            there = values[values > 0]
            powers = there ** (1 / before) if before else np.full_like(there, self._highest)
            values = values.copy()
            values[values > 0] = powers**self._exponent
        self._tree.set(np.arange(self._tree.num_leaves), values)
        leaves = np.flatnonzero(values)
        self._count = len(leaves)
        for part in np.split(leaves, range(_AT_ONCE, len(leaves), _AT_ONCE)):
            tracks, starts = self._windows(part)
            whole = starts + self._window.rows <= self._table.written[tracks]
            useless = ~(whole & self._table.is_usable(self._window, tracks, starts))
            if useless.any():  # windows were shorter when these were saved
                self._set(tracks[useless], starts[useless], 0.0)

    def _whole(self, numbers: np.ndarray) -> np.ndarray:
        """Of rows, those at which windows begin."""
        return numbers[numbers % self._window.stride == 0]

    def _set(self, tracks: np.ndarray, starts: np.ndarray, values: np.ndarray | float) -> None:
        """Change leaves of windows; each occurs once."""
        leaves = self._leaves(tracks.ravel(), starts.ravel())
        if not len(leaves):
            return
        before = np.count_nonzero(self._tree.values[leaves])
        self._tree.set(leaves, values)
        self._count += int(np.count_nonzero(self._tree.values[leaves]) - before)

    def _windows(self, leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tracks and first rows of what leaves stand for."""
        tracks, places = np.divmod(leaves, self._per_track)
        newest = self._table.written[tracks] - 1
        starts = newest - (newest - places * self._window.stride) % self._table.num_rows
        return tracks, starts

    def _leaves(self, tracks: np.ndarray, starts: np.ndarray) -> np.ndarray:
        places = starts % self._table.num_rows // self._window.stride
        return tracks * self._per_track + places


class Fifo:
    """In the order they came, each so many times: round after round over those that are there."""

    def __init__(self, table: Table, window: Window, *, times: int) -> None:
        self._table, self._window, self._times = table, window, times
        self._queue: deque[tuple[int, int, int]] = deque()
        """Track, first row and how often it is still to be drawn."""
        self._whole = np.zeros(table.num_tracks, np.int64)
        """Rows of each track at which windows began that are in the queue, or were."""

    def inserted(self, tracks: np.ndarray, start: int) -> int:
        """Windows whose last row has come are last in the queue."""
        table, window = self._table, self._window
        stop = start + table.rollout - window.rows + 1
        lowest = int(self._whole[tracks[0]])
        starts = np.arange(-(-lowest // window.stride) * window.stride, stop, window.stride)
        before = len(self._queue)
        for number in starts.tolist():
            usable = table.is_usable(window, tracks, np.full(len(tracks), number))
            self._queue.extend((track, number, self._times) for track in tracks[usable].tolist())
        self._whole[tracks] = max(lowest, stop)
        return table.rollout * len(tracks) - (len(self._queue) - before)

    def draw(self, count: int, rng: np.random.Generator) -> Drawn | None:
        """The first in the queue, which go to its end until they were drawn often enough."""
        lowest, _ = self._table.starts(self._window)
        drawn: list[tuple[int, int, int]] = []
        while self._queue and len(drawn) < count:
            track, start, left = self._queue.popleft()
            if start >= lowest[track]:  # else its rows were replaced
                drawn.append((track, start, left))
        if len(drawn) < count:
            self._queue.extend(drawn)
            return None
        self._queue.extend((track, start, left - 1) for track, start, left in drawn if left > 1)
        tracks, starts, _ = np.array(drawn, np.int64).T
        return Drawn(tracks, starts, np.ones(count))

    def update(self, items: np.ndarray, priorities: np.ndarray) -> None:
        """Their order stays."""

    def save(self) -> Arrays:
        """The queue."""
        queue = np.array(self._queue, np.int64).reshape(-1, 3)
        return {"queue": queue, "whole": self._whole.copy()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        queue = state["queue"]
        tracks, starts = queue[:, 0], queue[:, 1]
        ends = starts + self._window.rows
        whole = ends <= self._table.written[tracks]  # some are not, where windows were shorter
        usable = self._table.is_usable(self._window, tracks, np.where(whole, starts, 0))
        self._queue = deque(map(tuple, queue[whole & usable].tolist()))
        begun = self._table.written - self._window.rows + 1
        self._whole[:] = np.minimum(state["whole"], np.maximum(begun, 0))
