"""Touched: the rows that have changed since the last checkpoint."""

from __future__ import annotations

import numpy as np


class Touched:
    """A mark for each place, from the first checkpoint on; before that it costs nothing.

    >>> touched = Touched()
    >>> touched.begin(3)
    >>> touched.mark(np.array([1, 3]), 5)
    >>> touched.since(5).tolist()  # also what is new
    [1, 3, 4]
    """

    def __init__(self) -> None:
        self.begun = False
        self._marks = np.zeros(0, np.bool_)
        self._written = 0

    def begin(self, count: int) -> None:
        """The rows at the first `count` places are in a checkpoint now."""
        self.begun, self._written = True, count
        if len(self._marks) < count:
            self._marks = np.zeros(2 * count, np.bool_)
        else:
            self._marks[:] = False

    def mark(self, places: np.ndarray, count: int) -> None:
        """Mark places as changed, of `count` that exist."""
        if self.begun:
            if len(self._marks) < count:
                self._marks = np.concatenate([self._marks, np.zeros(count, np.bool_)])
            self._marks[places] = True

    def since(self, count: int) -> np.ndarray:
        """The changed and the new places, in order."""
        changed = np.flatnonzero(self._marks[: self._written])
        return np.concatenate([changed, np.arange(self._written, count)])
