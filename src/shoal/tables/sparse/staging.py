"""Staged pushes of sparse tables, from their arrival until all replicas have them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from shoal.errors import AccessFailed
from shoal.keys import SLOTS, KeyRange
from shoal.tables.sparse.distinct import outside
from shoal.tables.spec import TableSpec


class StagedKeys:
    """Staged keys and values of a push, or keys of a pull.

    Attributes:
        rows: the hash slots of the keys.
        keys: the keys, (n,) uint64, in any order.
        values: the values, (n, width), of the table's dtype; (0, width) for a pull.
        kept: whether a pull reads the same keys after the push is applied.
        only_read: whether a pull creates no rows.
        retained: whether the memory is also sent to other servers.
        places: the place of each key, (n,) uint64, if they are sent to other servers.
        told: whether the places come from the head of the chain.
        encoded: the encoded rows, until these are decoded; None if they come as they are.
        encoded_in: the memory that they are in.
    """

    __slots__ = (
        "encoded",
        "encoded_in",
        "kept",
        "keys",
        "memory",
        "only_read",
        "places",
        "retained",
        "rows",
        "told",
        "values",
        "views",
    )

    def __init__(self, rows: KeyRange, memory: np.ndarray, keys: int, values: np.ndarray) -> None:
        self.rows = rows
        self.memory: np.ndarray | None = memory
        self.kept = False
        self.only_read = False
        self.retained = False
        self.keys = memory[: 8 * keys].view(np.uint64)
        self.values = values
        self.views: list[memoryview] = [memory[: 8 * keys].data]
        if values.size:
            self.views.append(values.reshape(-1).view(np.uint8).data)
        self.places: np.ndarray | None = None
        self.told = False
        self.encoded: np.ndarray | None = None
        self.encoded_in: np.ndarray | None = None

    def place(self, places: np.ndarray) -> None:
        """Set the array of the keys' places, which may be filled later."""
        self.places = places
        self.views.append(places.view(np.uint8).data)

    def comes_encoded(self, memory: np.ndarray, nbytes: int) -> None:
        """Have the rows come as encoded bytes, at the beginning of some memory."""
        self.encoded, self.encoded_in = memory[:nbytes], memory
        self.views[1:] = [self.encoded.data] if nbytes else []

    def is_decoded(self) -> np.ndarray:
        """Have the views be those of the keys and the rows again; return the other memory."""
        memory, self.encoded, self.encoded_in = self.encoded_in, None, None
        assert memory is not None
        self.views[1:] = [self.values.reshape(-1).view(np.uint8).data] if self.values.size else []
        return memory

    def problem(self) -> str:
        if len(self.rows) == SLOTS:
            return ""
        first = outside(self.keys, self.rows.start, self.rows.stop)
        return "" if first < 0 else f"key {self.keys[first]} is not in the hash slots {self.rows}"


def room_for(spec: TableSpec, keys: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return memory for the rows of an answer, taken before anything changes.

    Raises:
        AccessFailed: there is no memory.
    """
    try:
        return np.empty((keys, spec.width), dtype)
    except MemoryError:
        raise AccessFailed(
            f"table {spec.name!r}: this server has no memory for an answer of {keys} rows: pull "
            "fewer at once"
        ) from None


Contribution = tuple[float, float | None, StagedKeys]  # weight, learning rate, push


class MergedKeys(msgspec.Struct):
    """The merged pushes of a round: keys, values, and in a bounded table places."""

    rows: KeyRange
    lr: float | None
    views: tuple[memoryview, ...]
