"""What is pushed to a sparse table, from its arrival until all its servers have it."""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.keys import SLOTS, KeyRange
from shoal.tables.sparse.distinct import outside


class StagedKeys:
    """Keys and values of a push (or the keys of a pull) as they come in.

    rows:    the slots that the keys are to be in
    keys:    (n,) uint64, in any order
    values:  (n, width) of the table's dtype; (0, width) for a pull
    kept:    its keys are read once it is applied
    retained: it goes to other servers as well, and keeps its memory when it is applied
    places:  (n,) uint64: where in its table each key is, if that goes to other servers as well
    told:    ... which another copy has said
    """

    __slots__ = ("kept", "keys", "memory", "places", "retained", "rows", "told", "values", "views")

    def __init__(self, rows: KeyRange, memory: np.ndarray, keys: int, values: np.ndarray) -> None:
        self.rows = rows
        self.memory: np.ndarray | None = memory
        self.kept = False
        self.retained = False
        self.keys = memory[: 8 * keys].view(np.uint64)
        self.values = values
        self.views: list[memoryview] = [memory[: 8 * keys].data]
        if values.size:
            self.views.append(values.reshape(-1).view(np.uint8).data)
        self.places: np.ndarray | None = None
        self.told = False

    def place(self, places: np.ndarray) -> None:
        """These, or what will come into them, are its keys' places."""
        self.places = places
        self.views.append(places.view(np.uint8).data)

    def problem(self) -> str:
        if len(self.rows) == SLOTS:
            return ""
        first = outside(self.keys, self.rows.start, self.rows.stop)
        return "" if first < 0 else f"key {self.keys[first]} is not in the hash slots {self.rows}"


class MergedKeys(msgspec.Struct):
    """What the pushes of a round come to: keys, values, and in a bounded table places."""

    rows: KeyRange
    lr: float | None
    views: tuple[memoryview, ...]
