"""Learners that learn together: each on its share of a batch, all with the same result.

Losses are sums divided by counts over all ranks, so that gradients add; statistics and decisions
are made of sums over all ranks, so that every rank makes the same.
"""

from collections.abc import Sequence
from typing import Any, Protocol

CHANNELS = ("learner", "meeting")
"""Of ranks that share memory: inside `learn`, and between two batches."""
TURNS, PLACE_BYTES = 2, 2**20
"""Places of a rank and a channel, used in turn; longer tensors go in parts."""


def shared_bytes(ranks: int) -> int:
    """Memory that so many ranks of one host share to add up in; a rank alone needs none."""
    return 0 if ranks == 1 else len(CHANNELS) * TURNS * ranks * PLACE_BYTES


def shared_sockets(ranks: int) -> int:
    """Of the first of them while all come: both ends of every bell."""
    return len(CHANNELS) * ranks * (ranks - 1)


class Collective(Protocol):
    """One learner's way to the others of its group. All ranks make the same calls in one order."""

    rank: int
    size: int

    def sum_(self, tensor: Any) -> None:
        """Replace a torch tensor by its sum over all ranks, in place."""
        ...

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank, by rank; all ranks give equally many."""
        ...


class Group(Protocol):
    """A trainer's place among those that learn one policy together."""

    @property
    def learner(self) -> Collective:
        """For use inside `learn`."""
        ...

    @property
    def meeting(self) -> Collective:
        """For use between two batches."""
        ...

    def close(self) -> None:
        """Leave it."""
        ...


class Alone:
    """The only rank, and its group."""

    rank = 0
    size = 1

    def sum_(self, tensor: Any) -> None:
        """The tensor is the sum already."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Its own values."""
        return [list(values)]

    @property
    def learner(self) -> "Alone":
        """Itself."""
        return self

    @property
    def meeting(self) -> "Alone":
        """Itself."""
        return self

    def close(self) -> None:
        """There is nobody to leave."""
