"""How an option changes over a run, by its progress from 0 to 1."""

from typing import Literal

Schedule = Literal["constant", "linear"]


def scheduled(value: float, schedule: Schedule, progress: float) -> float:
    """`value` at `progress`: `constant` keeps it, `linear` brings it to 0 at progress 1."""
    if schedule == "constant":
        return value
    return value * (1.0 - min(max(progress, 0.0), 1.0))
