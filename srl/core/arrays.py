"""Named arrays: the form of weights, of saved state and of a row."""

from collections.abc import Mapping

import numpy as np

from srl.core.errors import CheckpointError

Arrays = dict[str, np.ndarray]


def write_arrays(target: Mapping[str, np.ndarray], source: Mapping[str, np.ndarray]) -> None:
    """Copy every array of `source` into the array of the same name in `target`."""
    for name, array in source.items():
        np.copyto(target[name], array)


def subset(state: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """The entries under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def check_arrays(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise CheckpointError naming the first array that is missing, unknown or of another shape."""
    hint = "it is of another agent, or of other options of the algorithm"
    for name in sorted(shapes.keys() ^ arrays.keys()):
        where = "is missing from" if name in shapes else "is not wanted, but in"
        raise CheckpointError(f"tensor {name!r} {where} what is loaded: {hint}")
    for name, shape in shapes.items():
        there = arrays[name].shape
        if there != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(shape)}, what is loaded has {list(there)}: {hint}"
            )
