"""Rows of many lanes in the order they happened, each lane on a track of its own.

A track is a ring: its newest rows replace its oldest. Of a block all rows but the last are kept, which is
the first of the next block. Where that one was lost, or the lane began anew, there is a gap, and no window is
drawn across it. Rows of a track are counted from its beginning; stacked observations are kept as single
frames.

Axes: `L` lanes of a block, `T` rows of it that are kept, `B` windows of `W` rows.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import HEAD, Block, Layout, aligned
from srl.core.errors import CheckpointError, WorkerError
from srl.core.replay import DRAWN, Window
from srl.core.spec import Field, Spec

_KEPT = (Field("step", (), "int32"), Field("episode", (), "int32"), Field("run", (), "int32"))
"""Of each row, beside what was recorded: its number in its episode, that of the episode, and how many rows
have followed each other since the last gap."""

Allocate = Callable[[tuple[int, ...], str], np.ndarray]


def window_layout(layout: Layout, window: Window, windows: int) -> Layout:
    """Layout of `windows` windows of rows that came in blocks of `layout`, each a lane."""
    recorded = Spec(tuple(f for f in layout.spec if f.per != "head"))
    return Layout(HEAD + DRAWN + recorded, window.rows, windows, windows, layout.chunk)


def table_bytes(layout: Layout, tracks: int, rows: int) -> int:
    """What a table takes."""
    shapes = _shapes(layout, tracks, rows)
    sizes = [int(np.prod(shape)) * np.dtype(f.dtype).itemsize for f, shape in shapes]
    return sum(aligned(size) for size in sizes)


def rows_of_track(capacity: int, tracks: int, rollout: int) -> int:
    """Rows of each track: whole blocks, and at least two, so that the end of one has a successor."""
    return max(2, -(-capacity // (tracks * rollout))) * rollout


def _shapes(layout: Layout, tracks: int, rows: int) -> list[tuple[Field, tuple[int, ...]]]:
    """The arrays of a table: rows of one track lie next to each other."""
    agents = layout.lanes // layout.envs
    lead = {
        "lane": (tracks, rows),
        "env": (tracks // agents, rows),
        "chunk": (tracks, rows // layout.chunk),
    }
    fields = [f for f in layout.spec if f.per != "head"]
    return [(f, lead[f.per] + f.shape) for f in (*fields, *_KEPT)]


def check_rows(state: Mapping[str, np.ndarray], layout: Layout, tracks: int, rows: int) -> None:
    """Raise CheckpointError where what a table has saved would not lie the same way in one of this kind."""
    before, own = (
        (*(int(n) for n in state["shape"]),),
        (tracks, rows, layout.rows - 1, layout.lanes),
    )
    if before != own:
        raise CheckpointError(
            f"replay: the checkpoint has {before[0]} lanes of {before[1]} rows, in blocks of {before[2]} rows "
            f"x {before[3]} lanes, and this run {own[0]} of {own[1]}, in blocks of {own[2]} x {own[3]}: resume with "
            "the same actors, envs, groups, rollout, capacity and number of buffers or trainers, or fill it anew "
            "with --algorithm.replay.saved False"
        )
    used = min(int(state["written"].max(initial=0)), rows)
    for field, shape in _shapes(layout, tracks, rows):
        length = used // layout.chunk if field.per == "chunk" else used
        wanted = f"{[shape[0], length, *shape[2:]]} {np.dtype(field.dtype)}"
        saved = state.get(f"rows.{field.name}")
        found = "not there" if saved is None else f"{[*saved.shape]} {saved.dtype}"
        if found != wanted:
            raise CheckpointError(
                f"replay: the checkpoint has {field.name} as {found}, and this run as {wanted}: resume with the "
                "same env, and with what the algorithm recorded (memory, chunk, exploration), or fill it anew with "
                "--algorithm.replay.saved False"
            )


class Table:
    """The rows."""

    def __init__(
        self, layout: Layout, *, tracks: int, rows: int, folder: Path | None = None
    ) -> None:
        """Room for `rows` rows of each of `tracks` lanes, that come in blocks of `layout`; in a file of `folder` if given."""
        self.layout = layout
        self.num_tracks, self.num_rows = tracks, rows
        self.rollout = layout.rows - 1
        self._agents = layout.lanes // layout.envs
        self.context = max(f.stack for f in layout.spec) - 1
        """Rows before a window that its stacks need."""
        take = _in_memory if folder is None else _in_file(folder, table_bytes(layout, tracks, rows))
        self._fields = {f.name: f for f in layout.spec}
        self._arrays = {f.name: take(shape, f.dtype) for f, shape in _shapes(layout, tracks, rows)}
        self._flat = {
            name: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
            for name, x in self._arrays.items()
        }
        self.written = np.zeros(tracks, np.int64)
        """Rows that each track ever had."""
        self._next = np.full((2, tracks), -1, np.int64)
        """Episode and step of the row after the newest of each."""
        self._lanes = np.full(tracks, -1, np.int64)
        self._places: dict[int, int] = {}
        """First lane of a block to its first track."""

    def insert(self, block: Block) -> tuple[np.ndarray, int]:
        """Keep a block; its tracks `[L]`, and the number of its first row on them."""
        lanes = block["lane"]
        base = self._places.get(int(lanes[0]))
        if base is None:
            base = len(self._places) * self.layout.lanes
            assert base + len(lanes) <= self.num_tracks, "more lanes than there are tracks"
            self._places[int(lanes[0])] = base
            self._lanes[base : base + len(lanes)] = lanes
        tracks = slice(base, base + len(lanes))
        envs = slice(base // self._agents, (base + len(lanes)) // self._agents)
        start, rollout = int(self.written[base]), self.rollout
        place = start % self.num_rows
        rows = slice(place, place + rollout)
        for field in self.layout.spec:
            if field.per == "head":
                continue
            source, target = block[field.name], self._arrays[field.name]
            if field.per == "chunk":
                chunk = self.layout.chunk
                states = slice(place // chunk, (place + rollout) // chunk)
                target[tracks, states] = source[: rollout // chunk].swapaxes(0, 1)
            else:
                kept = source[field.stack - 1 : field.stack - 1 + rollout]
                target[envs if field.per == "env" else tracks, rows] = kept.swapaxes(0, 1)
        self._number(block, tracks, rows, start)
        self.written[tracks] += rollout
        return np.arange(base, base + len(lanes)), start

    def _number(self, block: Block, tracks: slice, rows: slice, start: int) -> None:
        """Note of each new row where in its episode it is, and what it follows."""
        first, numbers = block["first"][:-1].copy(), np.arange(self.rollout)[:, None]
        first[0] = False  # row 0 is numbered by the head
        began = np.maximum.accumulate(np.where(first, numbers, 0), axis=0)
        steps = np.where(began > 0, numbers - began, block["step"] + numbers)
        episodes = block["episode"] + np.cumsum(first, axis=0)
        follows = (self._next[:, tracks] == (block["episode"], block["step"])).all(axis=0)
        before = self._arrays["run"][tracks, (start - 1) % self.num_rows]
        run = np.where(follows, before + 1, 0)
        self._arrays["step"][tracks, rows] = steps.T
        self._arrays["episode"][tracks, rows] = episodes.T
        self._arrays["run"][tracks, rows] = (run + numbers).T
        last = self.layout.rows - 1
        self._next[:, tracks] = block.episodes_at(last), block.steps_at(last)

    def starts(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """`[tracks]` each: the first and the last number, plus one, at which whole windows may begin."""
        lowest = np.maximum(self.written - self.num_rows, 0)
        lowest += np.where(lowest > 0, self.context, 0)
        lowest = -(-lowest // window.stride) * window.stride
        return lowest, np.maximum(self.written - window.rows + 1, lowest)

    def is_usable(self, window: Window, tracks: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """`[B]`: whether windows, of which all rows are here, have no gap, and something to learn."""
        run, step = self._flat["run"], self._flat["step"]
        usable = run[self._index(tracks, starts + window.rows - 1)] >= window.rows - 1
        if self.context:
            at = self._index(tracks, starts)
            usable &= run[at] >= np.minimum(step[at], self.context)
        if window.length == 1:
            acts = self._index(tracks, starts + window.burn_in)
            usable &= self._flat["valid"][acts] & self._flat["acting"][acts]
        return usable

    def read(
        self, window: Window, tracks: np.ndarray, starts: np.ndarray, out: Mapping[str, np.ndarray]
    ) -> None:
        """Copy windows into arrays by field, each `[W, B, *shape]`, as blocks have them."""
        steps = np.arange(window.rows)[:, None]
        rows = self._index(tracks, starts + steps)
        for name, field in self._fields.items():
            if field.per == "head":
                continue
            flat, target = self._flat[name], out[name]
            if field.per == "chunk":
                chunk, number = self.layout.chunk, len(target)
                jumps = np.minimum(np.arange(number), (window.rows - 1) // chunk)[:, None] * chunk
                index = self._index(tracks, starts + jumps) // chunk
            elif field.per == "env":
                index = self._index(tracks // self._agents, starts + steps)
            elif field.stack > 1:
                more = np.arange(window.rows + field.stack - 1)[:, None] - (field.stack - 1)
                index = self._index(tracks, starts + more)
            else:
                index = rows
            # "clip" only because "raise" would copy twice: all of them are there
            np.take(flat, index, axis=0, out=target, mode="clip")
        np.copyto(out["step"], self._flat["step"][rows[0]])
        np.copyto(out["episode"], self._flat["episode"][rows[0]])
        np.copyto(out["lane"], self._lanes[tracks])

    def _index(self, tracks: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Where rows lie, among all."""
        return tracks * self.num_rows + numbers % self.num_rows

    def save(self) -> Arrays:
        """All rows, where they lie: who keeps them longer than until the next block copies them."""
        used = min(int(self.written.max(initial=0)), self.num_rows)
        chunk = self.layout.chunk
        state: Arrays = {
            f"rows.{name}": x[:, : used // chunk if self._per(name) == "chunk" else used]
            for name, x in self._arrays.items()
        }
        shape = self.num_tracks, self.num_rows, self.rollout, self.layout.lanes
        state["shape"] = np.array(shape, np.int64)
        state["written"], state["next"] = self.written.copy(), self._next.copy()
        state["lanes"] = self._lanes.copy()
        state["places"] = np.array([*self._places.items()], np.int64).reshape(-1, 2)
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; raises CheckpointError where it is of another shape."""
        check_rows(state, self.layout, self.num_tracks, self.num_rows)
        for name, array in self._arrays.items():
            saved = state[f"rows.{name}"]
            array[:, : saved.shape[1]] = saved
        self.written[:] = state["written"]
        self._next[:] = state["next"]
        self._lanes[:] = state["lanes"]
        self._places = {int(lane): int(track) for lane, track in state["places"]}

    def forget_what_follows(self) -> None:
        """The next block of every lane comes after a gap."""
        self._next[:] = -1

    def _per(self, name: str) -> str:
        return self._fields[name].per if name in self._fields else "lane"


def _in_memory(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.zeros(shape, dtype)


def _in_file(folder: Path, num_bytes: int) -> Allocate:
    """Arrays in one file without a name, which is gone when nobody uses it any more."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # or it would be found while it runs
            buffer = np.frombuffer(mmap.mmap(file.fileno(), num_bytes), np.uint8)
    except OSError as error:
        raise WorkerError(
            f"a replay buffer of {num_bytes / 1e6:.0f} MB cannot be laid into a file of {folder}: {error}; "
            "use a smaller --algorithm.replay.capacity, or another --algorithm.replay.folder"
        ) from error
    start = 0

    def take(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        nonlocal start
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        array = buffer[start : start + size].view(dtype).reshape(shape)
        start += aligned(size)
        return array

    return take
