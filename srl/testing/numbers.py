"""What many updates have made of a learner, in a few numbers that are kept in a file: learning changes knowingly."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ACCEPT = "SRL_ACCEPT_NUMBERS"
_TOLERANCE = 1e-4
"""Of an array's length. Other processors and libraries round otherwise, which after 200 updates is a hundredth of that."""


def numbers_of(array: Any) -> tuple[float, float]:
    """An array's length, and its part in a direction that is always the same: each element counts in both."""
    flat = np.asarray(array, np.float64).ravel()
    direction = np.random.default_rng(0).standard_normal(flat.size)
    return float(np.linalg.norm(flat)), float(flat @ direction) / math.sqrt(max(1, flat.size))


def check_numbers(file: Path, name: str, found: Mapping[str, Any]) -> None:
    """Raise AssertionError where arrays are not what they were when their numbers were accepted.

    Args:
        file: JSON; with `SRL_ACCEPT_NUMBERS=1` in the environment it is written, and a commit says why.
        name: of an algorithm, or a variant of one.
        found: its arrays: metrics, weights, priorities.
    """
    numbers = {key: numbers_of(array) for key, array in found.items()}
    kept = json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get(ACCEPT):
        kept[name] = {key: [float(f"{x:.7g}") for x in pair] for key, pair in numbers.items()}
        file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    assert numbers.keys() == kept[name].keys(), f"{name}: other arrays than before"
    for key, pair in numbers.items():
        most = _TOLERANCE * max(abs(x) for x in (*pair, *kept[name][key], _TOLERANCE))
        apart = max(abs(a - b) for a, b in zip(pair, kept[name][key], strict=True))
        assert apart <= most, f"{name}: {key} is {pair}, and was {kept[name][key]}"
