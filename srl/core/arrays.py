"""Named arrays: the form of weights, of saved state and of a row."""

from collections.abc import Mapping

import numpy as np

Arrays = dict[str, np.ndarray]


def write_arrays(target: Mapping[str, np.ndarray], source: Mapping[str, np.ndarray]) -> None:
    """Copy every array of `source` into the array of the same name in `target`."""
    for name, array in source.items():
        np.copyto(target[name], array)


def subset(state: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """The entries under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
