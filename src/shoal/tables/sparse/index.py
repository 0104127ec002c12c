"""KeyIndex: the places of a sparse table's keys.

    uint64 key -> place 0, 1, 2, ...

Keys are spread over segments, each an open-addressing table that is replaced by a larger one when
it is too full. The sizes of the segments are staggered over a factor of GROWTH, so that at any time
few segments are about to grow, and no request waits for more than those.
"""

from __future__ import annotations

from math import ceil, log
from typing import Any

import numpy as np

from shoal.jit import U
from shoal.tables.sparse.segments import FULL, Segments, add, array_at, find, pages

MISSING = np.uint64((1 << 64) - 1)
SEGMENTS = 256
GROWTH = 1.5
LEAST_PAIRS = 8
LEAST_PLACES = 1 << 10


class Growing:
    """An array of records that grows without being copied: its pages are moved."""

    def __init__(self, dtype: np.dtype[Any], stride: int) -> None:
        self._size = dtype.itemsize * stride
        self._dtype = dtype
        self._memory = pages(LEAST_PLACES * self._size)
        self.array = array_at(self._memory, dtype)

    def reserve(self, places: int) -> None:
        """Reserve memory for at least `places` records.

        Raises:
            MemoryError: there is no memory.
        """
        needed = places * self._size
        if needed > len(self._memory):
            try:
                self._memory.resize(max(needed, 2 * len(self._memory)))
            except OSError as error:
                raise MemoryError(str(error)) from None
            self.array = array_at(self._memory, self._dtype)


class KeyIndex:
    """The places of keys, in the order of their first use, without a bound.

    >>> index, created = KeyIndex(), np.empty(3, np.uint64)
    >>> index.find_or_add(np.array([30, 10, 30], np.uint64), created)
    (array([0, 1, 0], dtype=uint64), 2)
    >>> index.find(np.array([10, 20], np.uint64)) == [1, MISSING]
    array([ True,  True])
    """

    evicted = 0
    most = 1 << 62

    def __init__(self) -> None:
        self._segments = Segments(SEGMENTS)
        for number in range(SEGMENTS):
            self._segments.grow(number, pairs_for(number, 0))
        self._wanted = np.zeros(SEGMENTS, np.uint64)
        self._count = 0
        self._keys = Growing(np.dtype(np.uint64), 1)

    def __len__(self) -> int:
        """Return the number of keys, which is the place of the next key."""
        return self._count

    @property
    def keys(self) -> np.ndarray:
        """The keys by place."""
        return self._keys.array[: self._count]

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the place of each key, or MISSING."""
        places, missing = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
        find(self._segments.table, keys, places, missing, self._wanted)
        self._wanted[:] = 0
        return places

    def find_or_add(self, keys: np.ndarray, created: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the place of each key, and the number of new keys.

        created: an array that takes the indices of the new keys in `keys`

        Raises:
            MemoryError: there is no memory for them; nothing has changed.
        """
        places, segments = np.empty(len(keys), np.uint64), self._segments
        absent = int(find(segments.table, keys, places, created, self._wanted))
        if not absent:
            return places, 0
        self._make_room(absent)
        first = self._count
        added = add(segments.table, segments.counts, keys, places, created, U(absent), U(first))
        self._count += added
        self._keys.array[first : self._count] = keys[created[:added]]
        return places, added

    def _make_room(self, absent: int) -> None:
        """Make room for so many absent keys, which `_wanted` counts by segment."""
        segments, needed = self._segments, self._segments.counts + self._wanted
        self._wanted[:] = 0
        self._keys.reserve(self._count + absent)
        for number in np.flatnonzero(needed > FULL * segments.pairs).tolist():
            segments.grow(number, pairs_for(number, int(needed[number])))


def pairs_for(number: int, keys: int) -> int:
    """Return a number of pairs with which segment `number` has room for so many keys."""
    first = LEAST_PAIRS * GROWTH ** (number / SEGMENTS)
    steps = ceil(log(max(1.0, keys / FULL / first), GROWTH))
    size: float = first * GROWTH**steps
    return ceil(size)
