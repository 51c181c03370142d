"""Learners that learn together: each on its share of a batch, all with the same result.

Losses are sums divided by counts over all ranks, so that gradients add; statistics and decisions
are made of sums over all ranks, so that every rank makes the same.
"""

from collections.abc import Sequence
from typing import Any, Protocol


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


class Alone:
    """The only rank."""

    rank = 0
    size = 1

    def sum_(self, tensor: Any) -> None:
        """The tensor is the sum already."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Its own values."""
        return [list(values)]
