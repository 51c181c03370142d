"""Finds the first number of a batch that is not finite, and where it came from.

Every batch is looked at by one sum a field: it is finite where all numbers are. Where it is not, the
numbers are looked at one by one (huge ones, whose sum overflows, cost no more than that), and only
those count that a learner may read:

    a row that is valid
    a row after a truncated one: its final observation, which it is bootstrapped from
    of the last row, what is seen; nothing was answered there yet

Fields that lie on a GPU are summed there. Axes: `R` rows, `B` lanes of a batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from srl.core.block import OUTCOME, Layout
from srl.core.spec import Field

Kind = Literal["observation", "reward", "output", "state"]
"""Who made a number: the env the first two, the policy the others."""


@dataclass(frozen=True)
class Origin:
    """How a run numbers its lanes: what leads from a batch back to an env."""

    env: str = "the env"
    """Its name."""
    agents: int = 1
    """Agents of an env, on all routes: lanes are numbered env by env."""
    envs_an_actor: int | None = None
    """None: which actor a row comes from is not known."""
    seed: int = 0
    """What the envs were made with: what they draw is of this, their number and the episode's."""


@dataclass(frozen=True)
class Place:
    """One number that is not finite, and where it came from."""

    field: str
    kind: Kind
    index: tuple[int, ...]
    """Of the number in its field."""
    value: float
    row: int
    """Of its block."""
    column: int
    """Lane of the batch."""
    valid: bool
    """Whether its row is."""
    lane: int
    """Lane of the run."""
    env: int
    """Env of the run."""
    agent: int
    """Agent of the env."""
    actor: int | None
    episode: int
    step: int
    """Of the episode."""
    seed: int
    """What the env was made with, in the first life of its actor."""
    version: int
    """Of the policy that the row was recorded by."""
    others: int
    """Values (of a lane in a row of a field) beside this that are not finite."""

    def __str__(self) -> str:
        who = f"env {self.env}" + ("" if self.actor is None else f" (actor-{self.actor})")
        agent = f", agent {self.agent}" if self.agent else ""
        did = {
            "observation": f"{who}{agent} showed",
            "reward": f"{who}{agent} gave",
            "output": f"the policy answered {who}{agent} with",
            "state": f"the policy remembered of {who}{agent}",
        }[self.kind]
        index = f"{list(self.index)}" if self.index else ""
        others = f"; {self.others} more values of the batch are not finite" if self.others else ""
        return (
            f"{did} {self.field}{index} = {self.value} in step {self.step} of episode "
            f"{self.episode} (seed {self.seed}), lane {self.lane}, row {self.row} of its block, "
            f"recorded by version {self.version}{others}"
        )


class Tracer:
    """Looks through batches of one layout."""

    def __init__(self, layout: Layout, origin: Origin | None = None) -> None:
        self.origin = origin or Origin()
        self._layout = layout
        fields = [field for field in layout.spec if field.per != "head"]
        self._floats = tuple(f for f in fields if np.dtype(f.dtype).kind == "f")
        names = layout.spec.names
        self._seen = frozenset(names[: names.index("first")])
        self._agents = layout.lanes // layout.envs

    def find(self, batch: Mapping[str, Any]) -> Place | None:
        """The first number that counts and is not finite; None where all are."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = [batch[field.name].sum() for field in self._floats]  # begins all on a GPU
        if all(map(math.isfinite, sums)):
            return None
        return self.search(batch, counted=True)

    def search(self, batch: Mapping[str, Any], *, counted: bool) -> Place | None:
        """Look at every number; `counted`: only at those that a learner may read.

        The first is of the lowest row; in one row, what was seen comes before what was answered,
        and that before the reward.
        """
        best: tuple[int, int, int] | None = None
        found = 0
        for order, field in enumerate(self._floats):
            bad = _not_finite(batch[field.name])[field.stack - 1 :]
            if counted:
                bad &= self._counts(field, batch)
            places = np.argwhere(bad)
            found += len(places)
            if len(places):
                row, column = self._row(field, int(places[0, 0])), int(places[0, 1])
                best = min(best or (row, order, column), (row, order, column))
        return None if best is None else self._place(batch, *best, others=found - 1)

    def _counts(self, field: Field, batch: Mapping[str, Any]) -> np.ndarray:
        """Which values of a field a learner may read: bool, `[R, B]`, `[R, E]` or `[C, B]`."""
        counts: np.ndarray = batch["valid"].copy()
        if field.name not in OUTCOME:
            counts[1:] |= batch["truncated"][:-1]
        if field.per == "env":
            return np.logical_or.reduce(counts.reshape(len(counts), -1, self._agents), axis=2)
        if field.per == "chunk":  # where an episode begins, a state is not read
            rows = [self._row(field, number) for number in range(self._layout.num_states)]
            return counts[rows] & ~batch["first"][rows]
        if field.name not in self._seen:
            counts[-1] = False
        return counts

    def _row(self, field: Field, number: int) -> int:
        """The row that the `number`-th of a field is of; states are recorded once a chunk."""
        if field.per != "chunk":
            return number
        return min(number * self._layout.chunk, self._layout.rows - 1)

    def _place(
        self, batch: Mapping[str, Any], row: int, order: int, column: int, *, others: int
    ) -> Place:
        field, origin = self._floats[order], self.origin
        number = -(-row // self._layout.chunk) if field.per == "chunk" else row + field.stack - 1
        values = _on_host(batch[field.name][number, column])
        index = np.argwhere(~np.isfinite(values))[0]
        lane_column = column * self._agents if field.per == "env" else column
        lane = int(batch["lane"][lane_column])
        env, agent = divmod(lane, origin.agents)
        begins = np.flatnonzero(batch["first"][1 : row + 1, lane_column]) + 1
        episode = int(batch["episode"][lane_column]) + len(begins)
        step = row - int(begins[-1]) if len(begins) else int(batch["step"][lane_column]) + row
        return Place(
            field=field.name,
            kind=self._kind(field),
            index=tuple(int(i) for i in index),
            value=float(values[tuple(index)]),
            row=row,
            column=lane_column,
            valid=bool(batch["valid"][row, lane_column]),
            lane=lane,
            env=env,
            agent=agent,
            actor=None if origin.envs_an_actor is None else env // origin.envs_an_actor,
            episode=episode,
            step=step,
            seed=origin.seed,
            version=int(batch["version"][min(row, len(batch["version"]) - 2), lane_column]),
            others=others,
        )

    def _kind(self, field: Field) -> Kind:
        if field.name in self._seen:
            return "observation"
        if field.name in OUTCOME:
            return "reward"
        return "state" if field.per == "chunk" else "output"


def bad_metric(metrics: Mapping[str, float]) -> str | None:
    """The first metric that is not finite."""
    return next((name for name, value in metrics.items() if not math.isfinite(value)), None)


def bad_weights(weights: Mapping[str, np.ndarray]) -> str | None:
    """The first tensor of weights with a number that is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [array.sum() for array in weights.values()]
    if all(map(math.isfinite, sums)):
        return None
    return next((name for name, x in weights.items() if not np.isfinite(x).all()), None)


def _not_finite(values: Any) -> np.ndarray:
    """`[R, B]` bool: where any number of a field is not finite; computed where the field lies."""
    finite = np.isfinite(values) if isinstance(values, np.ndarray) else values.isfinite()
    return ~_on_host(finite.reshape(*finite.shape[:2], -1).all(2))


def _on_host(values: Any) -> np.ndarray:
    return np.asarray(values if isinstance(values, np.ndarray | np.generic) else values.cpu())
