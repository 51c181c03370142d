"""Replay, as an algorithm asks for it: what is kept, and what a learner is shown of it."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from srl.core.algorithm import AlgorithmConfig
from srl.core.checks import check_at_least
from srl.core.errors import ConfigError
from srl.core.spec import Field, Spec

DRAWN = Spec((Field("item", (), "int64", "head"), Field("chance", (), "float32", "head")))
"""Of every window: what it is called when its priority comes back, and how likely it was to be drawn,
in units of the average one."""


@dataclass(frozen=True)
class Window:
    """Rows of one lane that are drawn together."""

    length: int = 1
    """Rows that are learned from."""
    ahead: int = 1
    """Rows after these, from which they are bootstrapped."""
    burn_in: int = 0
    """Rows before these, which bring a memory up to date."""
    stride: int = 1
    """A window begins at every so many rows of a block."""

    @property
    def rows(self) -> int:
        """In all."""
        return self.burn_in + self.length + self.ahead


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """A replay buffer: what it keeps, and how the learner draws from it."""

    kind: Literal["uniform", "prioritised", "fifo"] = "uniform"
    """How windows are drawn: all alike, by their priorities, or in the order they came, each
    samples_per_insert times."""
    capacity: int = 100_000
    """Rows (steps of a lane) that are kept; new ones replace the oldest."""
    batch: int = 64
    """Windows of one optimiser step."""
    steps: int = 1
    """Optimiser steps a version: so many batches are drawn together."""
    warm_up: int = 1000
    """Rows that must be there before the first are drawn; at least a window of every lane."""
    samples_per_insert: float = 8.0
    """Windows drawn for each row that comes: actors and learner wait for each other to hold it."""
    tolerance: float | None = None
    """Draws by which either may be ahead of that; None: one block of every group of envs."""
    priority_exponent: float = 0.6
    """Of prioritised replay: 0 draws all alike, 1 by their priorities (α)."""
    importance_exponent: float = 0.4
    """Of prioritised replay: how far weights undo that, to begin with; 1 at the end (β)."""
    storage: Literal["memory", "file"] = "memory"
    """Where rows lie: in memory, or in a file that is mapped into it, which may be larger."""
    folder: str | None = None
    """Where that file is (it has no name there, and is gone with the run); None: the run folder."""
    saved: bool = True
    """Whether checkpoints hold the rows; else a resumed run begins with an empty buffer."""
    relabel: str | None = None
    """Your function, module:Object or file.py:Object, that changes drawn windows in place: it is called
    with them, by field, and a random generator."""

    def __post_init__(self) -> None:
        for name in ("capacity", "batch", "steps"):
            check_at_least(f"algorithm.replay.{name}", getattr(self, name), 1)
        check_at_least("algorithm.replay.warm-up", self.warm_up, 0)
        for name in ("priority_exponent", "importance_exponent"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(
                    f"algorithm.replay.{name} must be in 0..1, got {getattr(self, name)}"
                )
        if not 0 < self.samples_per_insert < float("inf"):
            raise ConfigError(
                f"algorithm.replay.samples_per_insert must be > 0, got {self.samples_per_insert}"
            )
        if self.tolerance is not None:
            check_at_least("algorithm.replay.tolerance", self.tolerance, 0)
        if self.kind == "fifo" and self.samples_per_insert % 1:
            raise ConfigError(
                "algorithm.replay.samples_per_insert must be a whole number with kind fifo, which draws "
                f"every window so many times; got {self.samples_per_insert}"
            )
        if self.warm_up > self.capacity:
            raise ConfigError(
                f"algorithm.replay.warm_up ({self.warm_up}) must be at most algorithm.replay.capacity "
                f"({self.capacity})"
            )

    @property
    def drawn(self) -> int:
        """Windows that are drawn together."""
        return self.batch * self.steps


@runtime_checkable
class Replays(AlgorithmConfig, Protocol):
    """An algorithm that learns from a replay buffer.

    `learn` is given `replay.drawn` windows as lanes: every field `[window.rows, B, *shape]`, and beside
    those of blocks the fields of DRAWN, `[B]`. `batch_size` does not matter.
    """

    @property
    def replay(self) -> ReplayConfig:
        """What is kept, and how often it is drawn."""
        ...

    @property
    def window(self) -> Window:
        """What is drawn."""
        ...


@runtime_checkable
class Prioritises(Protocol):
    """A learner that says how much there is still to learn from what it learned."""

    priorities: np.ndarray
    """`[B]` numbers >= 0, for the windows of the last batch."""
