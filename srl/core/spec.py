"""A Spec says which fields a row has; it crosses a stream once, and only bytes follow.

Axes of a field, written once for the whole project: `R` rows of a block, `L` lanes, `E` envs,
`C` recorded states.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np

from srl.core.errors import SpecError

Axis = Literal["lane", "env", "head", "chunk"]
"""`lane`: `[R, L, *shape]`; `env`: `[R, E, *shape]`; `head`: `[L, *shape]`, once a block; `chunk`:
`[C, L, *shape]`, a recurrent state where each training chunk starts, and the latest one last."""


@dataclass(frozen=True, slots=True)
class Field:
    """One named array of a block."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    per: Axis = "lane"
    stack: int = 1
    """Rows that are read together: a row of a `lane` field is its `stack` newest, oldest first. Each
    is stored once, so a block has `stack - 1` rows of context before row 0."""

    def __post_init__(self) -> None:
        if self.per not in get_args(Axis) or any(n < 0 for n in self.shape):
            raise SpecError(f"field {self.name!r} has no such axis or shape: {self}")
        if self.stack < 1 or (self.stack > 1 and self.per != "lane"):
            raise SpecError(f"field {self.name!r} cannot be stacked: {self}")
        kind = np.dtype(self.dtype)
        if kind.name != self.dtype or kind.kind not in "biuf":
            raise SpecError(f"field {self.name!r} has the dtype {self.dtype!r}, not a number type")

    @property
    def nbytes(self) -> int:
        """Bytes of one element of the leading axes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Spec:
    """An ordered map of field name to shape and dtype."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise SpecError(f"a Spec names the field {sorted(repeated)[0]!r} twice")

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self.fields)

    def __add__(self, other: "Spec") -> "Spec":
        return Spec(self.fields + other.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """Field names, in order."""
        return tuple(field.name for field in self.fields)

    def to_json(self) -> str:
        """Canonical text of this Spec: equal Specs have equal texts."""
        return json.dumps([asdict(field) for field in self.fields], separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> "Spec":
        """The Spec that `to_json` wrote; raises SpecError where the text is not one."""
        try:
            fields = [
                Field(
                    f["name"],
                    tuple(int(n) for n in f["shape"]),
                    np.dtype(f["dtype"]).name,
                    f["per"],
                    int(f["stack"]),
                )
                for f in json.loads(text)
            ]
        except (
            ValueError,
            TypeError,
            KeyError,
            OverflowError,
            SyntaxError,
            RecursionError,
        ) as error:
            raise SpecError(f"not the text of a Spec: {error}") from error
        return Spec(tuple(fields))

    def digest(self) -> bytes:
        """Eight bytes that differ where two Specs differ."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=8).digest()

    def difference(self, other: "Spec") -> str | None:
        """The first field in which `other` is not this Spec, in words; None where they agree."""
        for mine, theirs in zip(self.fields, other.fields, strict=False):
            if mine != theirs:
                return (
                    f"field {mine.name!r} is {_in_words(mine)} here and "
                    f"{theirs.name!r} {_in_words(theirs)} there"
                )
        longer = max(self.fields, other.fields, key=len)
        if len(self.fields) != len(other.fields):
            extra = longer[min(len(self.fields), len(other.fields))]
            where = "here" if longer is self.fields else "there"
            return f"field {extra.name!r} exists only {where}"
        return None


def _in_words(field: Field) -> str:
    stacked = f" stacked {field.stack}" if field.stack > 1 else ""
    return f"{field.dtype}{list(field.shape)} a {field.per}{stacked}"


def spec_of(arrays: Mapping[str, np.ndarray]) -> Spec:
    """The Spec of named arrays, each taken whole (no leading axis)."""
    return Spec(tuple(Field(name, a.shape, a.dtype.name, "head") for name, a in arrays.items()))
