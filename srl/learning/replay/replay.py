"""A replay buffer: keeps blocks, draws windows, hears priorities, holds a rate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.block import Block, Layout
from srl.core.errors import CheckpointError, WorkerError
from srl.core.names import load_object
from srl.core.replay import ReplayConfig, Window
from srl.learning.replay.limiter import make_limiter
from srl.learning.replay.selectors import make_selector
from srl.learning.replay.table import (
    Table,
    check_rows,
    rows_of_track,
    window_layout,
)

_KINDS = ("uniform", "prioritised", "fifo")


class Replay:
    """One shard of the replay buffer of a policy."""

    def __init__(
        self,
        config: ReplayConfig,
        window: Window,
        layout: Layout,
        *,
        groups: int,
        shards: int = 1,
        seed: int,
        folder: Path | None = None,
    ) -> None:
        """A buffer for blocks of `layout` of so many groups; its files, where it has some, are in `folder`."""
        tracks, rollout = groups * layout.lanes, layout.rows - 1
        self._config, self._window = config, window
        self.block = layout
        """Of what is kept."""
        where = Path(config.folder) if config.folder else folder
        self._table = Table(
            layout,
            tracks=tracks,
            rows=rows_of_track(config.capacity // shards, tracks, rollout),
            folder=where if config.storage == "file" else None,
        )
        self._selector = make_selector(config, self._table, window)
        self.drawn = config.drawn // shards
        """Windows of one draw."""
        self.limiter = make_limiter(
            config, window, rollout=rollout, lanes=layout.lanes, groups=groups, shards=shards
        )
        self.layout = window_layout(layout, window, self.drawn)
        """Of what is drawn."""
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._relabel: Any = load_object(config.relabel) if config.relabel else None

    def insert(self, block: Block) -> None:
        """Keep (a copy of) a block."""
        tracks, start = self._table.insert(block)
        missing = self._selector.inserted(tracks, start)
        self.limiter.inserted += self._table.rollout * len(tracks)
        # nobody shall wait for draws that there cannot be
        self.limiter.drawn += int(missing * self._config.samples_per_insert)

    def draw(self, out: Mapping[str, np.ndarray]) -> bool:
        """Copy windows into arrays by field; False, and nothing done, while it is not their time."""
        if not self.limiter.may_draw(self.drawn):
            return False
        drawn = self._selector.draw(self.drawn, self._rng)
        if drawn is None:
            self.limiter.found_none()
            return False
        self.limiter.drawn += self.drawn
        self._table.read(self._window, drawn.tracks, drawn.starts, out)
        np.copyto(out["item"], drawn.items())
        np.copyto(out["chance"], drawn.chances)
        if self._relabel is not None:
            self._have_relabelled(out)
        return True

    def _have_relabelled(self, out: Mapping[str, np.ndarray]) -> None:
        """Raise WorkerError where the user's function does what nobody after it would say of it."""
        name = self._config.relabel
        found: Any = self._relabel(out, self._rng)
        if found is not None:
            raise WorkerError(
                f"algorithm.replay.relabel {name} returned {type(found).__name__}: it is to change the arrays "
                "that it is given in place, and to return None"
            )
        for field, array in out.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise WorkerError(
                    f"algorithm.replay.relabel {name} left numbers in {field!r} that are not finite, which no row "
                    "that is kept has"
                )

    def update(self, items: np.ndarray, priorities: np.ndarray) -> None:
        """Change the priorities of windows that were drawn."""
        self._selector.update(items, priorities)

    @property
    def size(self) -> int:
        """Rows that are here."""
        return int(np.minimum(self._table.written, self._table.num_rows).sum())

    def save(self) -> Arrays:
        """Counters and generator; where checkpoints hold them, all rows."""
        random = self._rng.bit_generator.state
        numbers = [random["state"]["state"], random["state"]["inc"]]
        words = [(n >> shift) & (2**64 - 1) for n in numbers for shift in (64, 0)]
        state: Arrays = {
            "random": np.array([*words, random["has_uint32"], random["uinteger"]], np.uint64),
            "counts": np.array([self.limiter.inserted, self.limiter.drawn], np.int64),
        }
        if self._config.saved:
            state["kind"] = np.array(_KINDS.index(self._config.kind))
            state["rate"] = np.array(self._config.samples_per_insert, np.float64)
            state |= {f"table.{k}": v for k, v in self._table.save().items()}
            state |= {f"selector.{k}": v for k, v in self._selector.save().items()}
        return state

    def load(self, state: Mapping[str, np.ndarray], *, continues: bool) -> None:
        """Take over what `save` returned; unless the lanes continue, the next blocks begin anew."""
        a, b, c, d, has_uint32, uinteger = (int(n) for n in state["random"])
        self._rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": (a << 64) | b, "inc": (c << 64) | d},
            "has_uint32": has_uint32,
            "uinteger": uinteger,
        }
        if not self._config.saved or "kind" not in state:
            return  # it fills, and is warmed up, anew
        tracks, rows = self._table.num_tracks, self._table.num_rows
        check_fits(state, self._config, self._window, self.block, tracks=tracks, rows=rows)
        self.limiter.inserted, self.limiter.drawn = (int(n) for n in state["counts"])
        if "rate" in state:  # not in checkpoints from before it could be changed
            self.limiter.change_rate(float(state["rate"]))
        self._table.load(subset(state, "table."))
        self._selector.load(subset(state, "selector."))
        if not continues:
            self._table.forget_what_follows()


def check_fits(
    state: Mapping[str, np.ndarray],
    config: ReplayConfig,
    window: Window,
    layout: Layout,
    *,
    tracks: int,
    rows: int,
) -> None:
    """Raise CheckpointError where rows that were saved are of no use to a buffer of blocks of `layout`."""
    kind = _KINDS[int(state["kind"])]
    if kind != config.kind:
        raise CheckpointError(
            f"replay: the checkpoint has a buffer of kind {kind}, and this run one of kind "
            f"{config.kind}: resume with --algorithm.replay.kind {kind}, or fill it anew with "
            "--algorithm.replay.saved False"
        )
    check_rows(subset(state, "table."), layout, tracks, rows)
    if kind == "prioritised" and state["selector.leaves"].size != tracks * (rows // window.stride):
        raise CheckpointError(
            "replay: windows of the checkpoint's buffer begin at other rows than this run's: resume with the same "
            "algorithm.chunk, or fill it anew with --algorithm.replay.saved False"
        )
