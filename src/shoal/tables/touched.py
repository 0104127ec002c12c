"""Touched: the rows that have changed since the last checkpoint."""

from __future__ import annotations

import numpy as np


class Touched:
    """The marks of changed places. Before the first checkpoint, nothing is marked.

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
        """Clear all marks: the rows at the first `count` places are in a checkpoint now."""
        self.begun, self._written = True, count
        if len(self._marks) < count:
            self._marks = np.zeros(2 * count, np.bool_)
        else:
            self._marks[:] = False

    def mark(self, places: np.ndarray, count: int) -> None:
        """Mark places as changed; `count` places exist."""
        if self.begun:
            if len(self._marks) < count:
                self._marks = np.concatenate([self._marks, np.zeros(count, np.bool_)])
            self._marks[places] = True

    def since(self, count: int) -> np.ndarray:
        """Return the changed and the new places, in order."""
        changed = np.flatnonzero(self._marks[: self._written])
        return np.concatenate([changed, np.arange(self._written, count)])
