"""A Block is a trajectory of `L` lanes in ONE contiguous buffer, laid out by a Spec.

The same class wraps heap memory, shared memory, a received network frame or a mapped file; its
fields are NumPy views. Row `t` holds `obs_t`, what the policy answered, and the outcome of
`action_t`; the last row holds only the observation that the next block begins with.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

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
VERSION = Spec((Field("version", (), "int64"),))


def route_spec(agent: AgentSpec, outputs: Spec) -> Spec:
    """The Spec of the blocks of one route: what its agents see, answer and get."""
    return HEAD + agent.observation_spec + MASKS + outputs + VERSION + OUTCOME


def aligned(num_bytes: int) -> int:
    """`num_bytes`, rounded up to the alignment of a field."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Layout:
    """Where each field of a block lies: a pure function of Spec, rows, lanes and envs."""

    spec: Spec
    rows: int
    lanes: int
    envs: int

    def shape_of(self, field: Field) -> tuple[int, ...]:
        """Whole shape of a field's array in a block."""
        lead = {
            "lane": (self.rows, self.lanes),
            "env": (self.rows, self.envs),
            "head": (self.lanes,),
        }[field.per]
        return lead + field.shape

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

    def row(self, names: tuple[str, ...], t: int) -> dict[str, np.ndarray]:
        """Views of row `t` of the named fields, each `[L, *shape]`."""
        return {name: self.fields[name][t] for name in names}

    def observation_rows(self, agent: AgentSpec, t: int) -> ObservationRows:
        """Row `t` as the env writes it: observation and masks, each `[E, A, *shape]`."""
        lead = (self.layout.envs, self.layout.lanes // self.layout.envs)
        fields = self.fields
        return ObservationRows(
            obs={o.name: fields[o.name][t].reshape(lead + o.shape) for o in agent.observations},
            first=fields["first"][t].reshape(lead),
            valid=fields["valid"][t].reshape(lead),
            acting=fields["acting"][t].reshape(lead),
        )

    def outcome_rows(self, t: int) -> OutcomeRows:
        """Row `t` as the env writes what came of `action_t`, each `[E, A]`."""
        lead = (self.layout.envs, self.layout.lanes // self.layout.envs)
        fields = self.fields
        return OutcomeRows(
            reward=fields["reward"][t].reshape(lead),
            terminated=fields["terminated"][t].reshape(lead),
            truncated=fields["truncated"][t].reshape(lead),
        )
