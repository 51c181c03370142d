"""A binary tree of sums: draws leaves in proportion to their values, many at a time.

Every node is the sum of the two below it, recomputed and never adjusted by a difference, so that
rounding does not add up over millions of changes. `n`: leaves that are set or drawn together.
"""

import numpy as np


class SumTree:
    """Values >= 0 of `num_leaves` leaves."""

    def __init__(self, num_leaves: int) -> None:
        self.num_leaves = num_leaves
        self._depth = max(1, (num_leaves - 1).bit_length())
        self._width = 1 << self._depth
        self._nodes = np.zeros(2 * self._width)
        """Node 1 is the root; those below node i are 2i and 2i + 1; leaves are the last half."""

    @property
    def total(self) -> float:
        """Of all leaves."""
        return float(self._nodes[1])

    @property
    def values(self) -> np.ndarray:
        """`[num_leaves]`: a view, not to be written."""
        return self._nodes[self._width : self._width + self.num_leaves]

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Change leaves, `[n]`; of one that occurs twice the last value counts."""
        nodes = self._nodes
        index = leaves + self._width
        nodes[index] = values
        for _ in range(self._depth):
            index = index >> 1
            if len(index) > 64:  # neighbours share what is above them
                index = _unique(index)
            nodes[index] = nodes[2 * index] + nodes[2 * index + 1]

    def find(self, sums: np.ndarray) -> np.ndarray:
        """`[n]` leaves: of each number in 0..total, the leaf at which the sum of all before it passes it."""
        nodes = self._nodes
        index = np.ones(len(sums), np.int64)
        left_over = sums.astype(np.float64)
        for _ in range(self._depth):
            index *= 2
            left = nodes[index]
            # Not to the right where there is nothing: rounding may leave a little more than there is.
            goes_right = (left_over >= left) & (nodes[index + 1] > 0)
            left_over -= np.where(goes_right, left, 0)
            index += goes_right
        return index - self._width


def _unique(index: np.ndarray) -> np.ndarray:
    """Without what follows itself; all that are equal go where they are sorted, as mostly they are."""
    keep = np.empty(len(index), np.bool_)
    keep[0] = True
    np.not_equal(index[1:], index[:-1], out=keep[1:])
    return index[keep]
