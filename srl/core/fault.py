"""What is known of an env that failed: enough to say whose fault it was, and to see it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class EnvFault:
    """One env of a batch that raised, hung or showed what it may not; or a whole batch that did."""

    env: int | None
    """Its number in the batch; None of a batch that failed as a whole."""
    kind: str
    """Name of the exception's type; `hang` where it did not come back."""
    what: str
    """What it did, after its name: `failed in step: RuntimeError('no fuel')`."""
    message: str
    """The whole sentence, with env, lane, seed, episode, step and last action."""
    seed: int
    """What it was last seeded with; of a batch, the seed of its request."""
    episode: int
    """Number of its episode in the run; of a batch, 0."""
    step: int
    """Steps since its reset, the one that failed included; 0 in a reset."""
    actions: Mapping[str, np.ndarray]
    """Agent to its actions since the reset, `[step, N, *shape]`: `N` is 1, or the envs of a batch."""
    traceback: str = ""
    """Of what it raised."""
    note: str = ""
    """Why a replay of seed and actions may not show it again; empty where it does."""


def joined(faults: Sequence[EnvFault]) -> str:
    """What several faults of one call say: the first, and how many more there are."""
    more = f" (and {len(faults) - 1} more envs of its batch)" if len(faults) > 1 else ""
    return f"{faults[0].message}{more}"
