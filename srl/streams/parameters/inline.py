"""Parameter stream within one process: the latest weights, copied once a version."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.errors import StreamError


class InlineParameters:
    """Both ends of the stream: one publisher, any number of subscribers."""

    def __init__(self) -> None:
        self._version = -1
        self._weights: Arrays = {}

    def publish(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Make `version` the latest."""
        self._weights = {name: array.copy() for name, array in weights.items()}
        self._version = version

    def latest(self) -> int:
        """The latest version; -1 before the first."""
        return self._version

    def fetch(self) -> tuple[int, Arrays]:
        """The latest version and its weights."""
        if self._version < 0:
            raise StreamError("parameters were fetched before the trainer published any")
        return self._version, self._weights

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """Nothing to free."""
