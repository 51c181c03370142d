"""A Block is a trajectory of `L` lanes in ONE contiguous buffer, laid out by a Spec.

The same class wraps heap memory, shared memory, a received network frame or a mapped file; its
fields are NumPy views. Row `t` holds `obs_t`, what the policy answered, and the outcome of
`action_t`; the last row holds only the observation that the next block begins with. The rows of a
burn-in come first; they repeat the end of the block before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import as_strided

from srl.core.algorithm import Records
from srl.core.arrays import Arrays
from srl.core.env import AgentSpec, ObservationRows, OutcomeRows
from srl.core.errors import SpecError
from srl.core.spec import Field, Spec

ALIGNMENT = 64

HEAD = Spec(
    (
        Field("lane", (), "int64", "head"),
        Field("episode", (), "int64", "head"),
        Field("step", (), "int64", "head"),
    )
)
"""Lane id, and the episode and step number of row 0, so that consumers stitch and see gaps."""

MASKS = Spec((Field("first", (), "bool"), Field("valid", (), "bool"), Field("acting", (), "bool")))
OUTCOME = Spec(
    (
        Field("reward", (), "float32"),
        Field("terminated", (), "bool"),
        Field("truncated", (), "bool"),
    )
)
POLICY_ID = Spec((Field("policy_id", (), "int64"),))
"""Which policy of a pool a lane plays by."""
VERSION = Spec((Field("version", (), "int64"),))


def route_spec(agent: AgentSpec, records: Records) -> Spec:
    """The Spec of the blocks of one route: what its agents see, answer, remember and get."""
    seen = agent.observation_spec + MASKS
    if records.members:
        seen += POLICY_ID
    return HEAD + seen + records.outputs + records.state + VERSION + OUTCOME


def route_layout(
    agent: AgentSpec, records: Records, *, rollout: int, lanes: int, envs: int
) -> "Layout":
    """Layout of the blocks of one route."""
    rows = records.burn_in + rollout + 1
    return Layout(route_spec(agent, records), rows, lanes, envs, records.chunk)


def input_names(agent: AgentSpec, records: Records) -> tuple[str, ...]:
    """Fields that a policy is shown."""
    pooled = POLICY_ID.names if records.members else ()
    return (*agent.observation_names, "first", *pooled, *records.state.names)


def aligned(num_bytes: int) -> int:
    """`num_bytes`, rounded up to the alignment of a field."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Layout:
    """Where each field of a block lies: a pure function of Spec, rows, lanes, envs and chunk."""

    spec: Spec
    rows: int
    lanes: int
    envs: int
    chunk: int = 1
    """Rows between two recorded states."""

    @property
    def num_states(self) -> int:
        """Recorded states: at every `chunk`-th row but the last, and the latest one."""
        return -(-(self.rows - 1) // self.chunk) + 1

    def shape_of(self, field: Field) -> tuple[int, ...]:
        """Whole shape of a field's array in a block."""
        lead = {
            "lane": (self.rows + field.stack - 1, self.lanes),
            "env": (self.rows, self.envs),
            "head": (self.lanes,),
            "chunk": (self.num_states, self.lanes),
        }[field.per]
        return lead + field.shape

    @cached_property
    def copied(self) -> tuple[Field, ...]:
        """Fields that a policy is not shown in place."""
        return tuple(f for f in self.spec if f.stack > 1 or f.per == "env")

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each field."""
        offsets, position = {}, 0
        for field in self.spec:
            offsets[field.name] = position
            position += aligned(self._nbytes_of(field))
        return offsets

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        return sum(aligned(self._nbytes_of(field)) for field in self.spec)

    def _nbytes_of(self, field: Field) -> int:
        lead = self.shape_of(field)[: -len(field.shape) or None]
        return int(np.prod(lead, dtype=np.int64)) * field.nbytes


class Stack:
    """The newest rows of a stacked field where they lie, and how many are of each lane's episode."""

    __slots__ = ("_steps", "frames")

    def __init__(self, frames: np.ndarray, steps: np.ndarray) -> None:
        self.frames = frames
        """`[stack, L, *shape]`, oldest first."""
        self._steps = steps

    def __len__(self) -> int:
        return self.frames.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Of the field."""
        return self.frames.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what a policy is shown: `[L, stack, *shape]`."""
        stack, lanes, *shape = self.frames.shape
        return (lanes, stack, *shape)

    def before(self) -> np.ndarray | None:
        """`[L, stack]` bool: rows from before the episode, shown as zeros; None where there are none."""
        stack = len(self.frames)
        if self._steps.min() >= stack - 1:
            return None
        return np.arange(stack) < (stack - 1 - self._steps)[:, None]

    def write(self, out: np.ndarray) -> None:
        """Copy what is shown to `out`, `[L, stack, *shape]`."""
        np.copyto(out, self.frames.swapaxes(0, 1))
        before = self.before()
        if before is not None:
            out[before] = 0

    def array(self) -> np.ndarray:
        """What is shown, copied."""
        out = np.empty(self.shape, self.dtype)
        self.write(out)
        return out


class Block:
    """NumPy views of every field over one buffer."""

    def __init__(self, layout: Layout, buffer: np.ndarray) -> None:
        """Lay `layout` over `buffer`, a contiguous `uint8` array of at least `layout.nbytes`."""
        if buffer.nbytes < layout.nbytes:
            raise SpecError(f"a block of {layout.nbytes} bytes does not fit {buffer.nbytes}")
        self.layout = layout
        self.buffer = buffer[: layout.nbytes]
        self.fields: dict[str, np.ndarray] = {
            field.name: self._view(field) for field in layout.spec
        }
        self._lead = (layout.envs, layout.lanes // layout.envs)
        self._rows = {field.name: self._rows_of(field) for field in layout.spec}
        # A slot is filled again and again, and so are the same views of its rows used.
        self._observations: dict[int, tuple[AgentSpec, ObservationRows]] = {}
        self._outcomes: dict[int, OutcomeRows] = {}

    @classmethod
    def allocate(cls, layout: Layout) -> "Block":
        """A block of zeros on the heap."""
        raw = np.zeros(layout.nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return cls(layout, raw[start:])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.fields[name]

    def _view(self, field: Field) -> np.ndarray:
        shape = self.layout.shape_of(field)
        start = self.layout.offsets[field.name]
        stop = start + int(np.prod(shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
        return self.buffer[start:stop].view(field.dtype).reshape(shape)

    def row(self, names: Iterable[str], t: int) -> Arrays:
        """Views of row `t` of the named fields, each `[L, *shape]`; of a state, the latest."""
        rows = self._rows
        return {name: rows[name][t] for name in names}

    def inputs(self, names: Iterable[str], t: int) -> Arrays:
        """What a policy is shown at row `t`, each `[L, *shape]`, a stack `[L, stack, *shape]`.

        Views where a row can be read in place; of a stack or what envs share, copies.
        """
        shown = self.shown(names, t)
        return {name: x.array() if isinstance(x, Stack) else x for name, x in shown.items()}

    def shown(self, names: Iterable[str], t: int) -> "dict[str, np.ndarray | Stack]":
        """Like `inputs`, but stacks are left where they lie: nothing is copied but what envs share."""
        shown: dict[str, np.ndarray | Stack] = dict(self.row(names, t))
        for field in self.layout.copied:
            if field.name in shown:
                shown[field.name] = (
                    self._rows[field.name][t].repeat(self._lead[1], axis=0)
                    if field.per == "env"
                    else Stack(self.fields[field.name][t : t + field.stack], self._age(t, field))
                )
        return shown

    def answer(self, outputs: Mapping[str, np.ndarray], t: int) -> None:
        """Write what a policy answered at row `t`."""
        rows = self._rows
        for name, array in outputs.items():
            np.copyto(rows[name][t], array)

    def record_state(self, names: Iterable[str], t: int) -> None:
        """Keep the latest state if a training chunk starts at row `t`."""
        number, rest = divmod(t, self.layout.chunk)
        if not rest:
            for name in names:
                np.copyto(self.fields[name][number], self.fields[name][-1])

    def episodes_at(self, t: int) -> np.ndarray:
        """`[L] int64`: number of the episode of each lane at row `t`."""
        return self.fields["episode"] + self.fields["first"][1 : t + 1].sum(axis=0)

    def steps_at(self, t: int) -> np.ndarray:
        """`[L] int64`: number of row `t` in the episode of each lane."""
        first = self.fields["first"][1 : t + 1]
        began = np.where(first, np.arange(1, t + 1)[:, None], 0).max(axis=0, initial=0)
        return np.where(began > 0, t - began, self.fields["step"] + t)

    def begin_with(self, carried: "Block") -> None:
        """Take over all rows of a shorter block as the first ones of this."""
        for field in self.layout.spec:
            mine, theirs = self.fields[field.name], carried.fields[field.name]
            if field.per == "chunk":  # the latest state is the last one of both
                np.copyto(mine[: len(theirs) - 1], theirs[:-1])
                np.copyto(mine[-1], theirs[-1])
            elif field.per == "head":
                np.copyto(mine, theirs)
            else:
                np.copyto(mine[: len(theirs)], theirs)

    def continue_from(self, source: "Block") -> None:
        """Take over as many rows of the end of a longer block as this one has."""
        start = source.layout.rows - self.layout.rows
        for field in self.layout.spec:
            mine, theirs = self.fields[field.name], source.fields[field.name]
            if field.per == "chunk":
                np.copyto(mine, theirs[start // self.layout.chunk :])
            elif field.per != "head":
                np.copyto(mine, theirs[start:])
        np.copyto(self["lane"], source["lane"])
        np.copyto(self["episode"], source.episodes_at(start))
        np.copyto(self["step"], source.steps_at(start))

    def _rows_of(self, field: Field) -> np.ndarray:
        """A field from row 0 on, without the context of a stack; of a state, the latest in each."""
        array = self.fields[field.name]
        if field.per != "chunk":
            return array[field.stack - 1 :]
        latest = array[-1]
        return as_strided(latest, (self.layout.rows, *latest.shape), (0, *latest.strides))

    def _age(self, t: int, field: Field) -> np.ndarray:
        """`[L]`: steps since the episode began, exact where they are fewer than the stack's."""
        steps = self.fields["step"] + t
        for row in range(max(1, t - field.stack + 2), t + 1):
            steps[self.fields["first"][row]] = t - row
        return steps

    def observation_rows(self, agent: AgentSpec, t: int) -> ObservationRows:
        """Row `t` as the env writes it: observation and masks, each `[E, A, *shape]`."""
        found = self._observations.get(t)
        if found is not None and found[0] is agent:
            return found[1]
        fields, lead = self.fields, self._lead
        rows = ObservationRows(
            obs={o.name: self._rows[o.name][t].reshape(lead + o.shape) for o in agent.observations},
            first=fields["first"][t].reshape(lead),
            valid=fields["valid"][t].reshape(lead),
            acting=fields["acting"][t].reshape(lead),
            central={o.name: fields[o.name][t] for o in agent.central},
        )
        self._observations[t] = agent, rows
        return rows

    def outcome_rows(self, t: int) -> OutcomeRows:
        """Row `t` as the env writes what came of `action_t`, each `[E, A]`."""
        rows = self._outcomes.get(t)
        if rows is None:
            fields, lead = self.fields, self._lead
            rows = self._outcomes[t] = OutcomeRows(
                reward=fields["reward"][t].reshape(lead),
                terminated=fields["terminated"][t].reshape(lead),
                truncated=fields["truncated"][t].reshape(lead),
            )
        return rows
