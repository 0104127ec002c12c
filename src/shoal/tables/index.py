"""KeyIndex: where a sparse table's keys have their rows, by open addressing.

    uint64 key -> place 0, 1, 2, ...

Linear probing in a table of (key, place + 1) pairs, one cache line mostly, at a load of at most
3/5. A table that is too full is replaced by one twice as large, and its pairs are moved a few at
a time by the calls that follow, so that none of them waits for all (as Redis' dictionaries do it):
until that is over a key may be in either.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from shoal.tables.kernels import AHEAD, U, kernel, mixed, prefetch

MISSING = np.uint64((1 << 64) - 1)
LEAST_PAIRS = 1 << 12
LEAST_PLACES = 1 << 10
MOVED_PER_KEY = 2  # old pairs looked at for each new key: done before the new table is full
_NOTHING = np.empty(0, np.uint64)


def pages(nbytes: int, large: bool) -> mmap.mmap:
    """Fresh zeroed memory of this process, in large pages where the system has them.

    Rows are read at random: with small pages most reads would also miss the TLB. But a large page
    is zeroed when it is first touched, all of it; memory that is touched at random from its
    beginning has small ones, or one request would wait until everything is zeroed.
    """
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Growing:
    """An array of records that grows without being copied: its pages are moved."""

    def __init__(self, dtype: np.dtype[Any], stride: int) -> None:
        self._size = dtype.itemsize * stride
        self._dtype = dtype
        self._memory = pages(LEAST_PLACES * self._size, large=True)
        self.array = np.frombuffer(self._memory, dtype)

    def reserve(self, places: int) -> None:
        needed = places * self._size
        if needed > len(self._memory):
            self.array = np.empty(0, self._dtype)  # or its memory could not be moved
            try:
                self._memory.resize(max(needed, 2 * len(self._memory)))
            finally:
                self.array = np.frombuffer(self._memory, self._dtype)


class KeyIndex:
    """Places of keys, in the order in which they were first asked for.

    evicted, at_once: as `bounded.BoundedIndex` has them; here none are, and there is no limit

    >>> index, created = KeyIndex(), np.empty(3, np.uint64)
    >>> index.find_or_add(np.array([30, 10, 30], np.uint64), created)
    (array([0, 1, 0], dtype=uint64), 2)
    >>> index.find(np.array([10, 20], np.uint64)) == [1, MISSING]
    array([ True,  True])
    """

    evicted = 0
    at_once = 1 << 62

    def __init__(self, expected: int = 0) -> None:
        """`expected` keys find room without growth."""
        self._pairs = fresh_pairs(pairs_for(expected))
        self._old = _NOTHING  # what is still being moved, from `_moved` on
        self._moved = 0
        self._count = 0
        self._keys = Growing(np.dtype(np.uint64), 1)

    def __len__(self) -> int:
        """The keys that were ever added: the next one's place."""
        return self._count

    @property
    def keys(self) -> np.ndarray:
        """Of the places."""
        return self._keys.array[: self._count]

    @property
    def nbytes(self) -> int:
        return self._pairs.nbytes + self._old.nbytes

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The place of each key, or MISSING."""
        return place_of(self._pairs, keys, self._old)

    def find_or_add(self, keys: np.ndarray, created: np.ndarray) -> tuple[np.ndarray, int]:
        """The place of each key, and how many are new: `created` says which (indices of `keys`)."""
        self._make_room(len(keys))
        self._keys.reserve(self._count + len(keys))  # fails before anything has changed
        places = np.empty(len(keys), np.uint64)
        added = _find_or_add(self._pairs, self._old, keys, places, created, U(self._count))
        if added:
            first = self._count
            self._count += added
            self._keys.array[first : self._count] = keys[created[:added]]
        return places, added

    def _make_room(self, coming: int) -> None:
        if self._old.size:
            self._move(MOVED_PER_KEY * coming + LEAST_PAIRS)
        if 10 * (self._count + coming) <= 3 * self._pairs.size:  # of pairs, 6/10
            return
        self._move(self._old.size)
        self._old, self._moved = self._pairs, 0
        twice = 2 * (self._pairs.size // 2)
        self._pairs = fresh_pairs(max(twice, pairs_for(self._count + coming)))
        self._move(MOVED_PER_KEY * coming + LEAST_PAIRS)

    def _move(self, pairs: int) -> None:
        stop = min(self._old.size // 2, self._moved + pairs)
        _move(self._old, self._pairs, U(self._moved), U(stop))
        self._moved = stop
        if 2 * stop == self._old.size:
            self._old, self._moved = _NOTHING, 0


def place_of(pairs: np.ndarray, keys: np.ndarray, old: np.ndarray = _NOTHING) -> np.ndarray:
    """The place of each key in one of two tables of pairs, or MISSING."""
    places = np.empty(len(keys), np.uint64)
    _find(pairs, old, keys, places)
    return places


def pairs_for(keys: int) -> int:
    """Pairs for so many keys at a load of at most 6/10: a power of two."""
    return 1 << (max(LEAST_PAIRS, -(-10 * keys // 6)) - 1).bit_length()


def fresh_pairs(pairs: int) -> np.ndarray:
    return np.frombuffer(pages(16 * pairs, large=False), np.uint64)


@kernel
def probe(pairs: Any, key: Any, home: Any) -> Any:
    """Where the pair of `key` is, or the empty one where it would be."""
    mask = U(pairs.size // 2 - 1)
    at = home & mask
    while pairs[at * U(2) + U(1)] != U(0) and pairs[at * U(2)] != key:
        at = (at + U(1)) & mask
    return at * U(2)


@kernel
def _find(pairs: Any, old: Any, keys: Any, places: Any) -> None:
    mask, count = U(pairs.size // 2 - 1), U(keys.size)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(pairs, (mixed(keys[i + AHEAD]) & mask) * U(2))
        home = mixed(keys[i])
        found = pairs[probe(pairs, keys[i], home) + U(1)]
        if found == U(0) and old.size:
            found = old[probe(old, keys[i], home) + U(1)]
        places[i] = found - U(1)


@kernel
def _find_or_add(pairs: Any, old: Any, keys: Any, places: Any, created: Any, first: Any) -> Any:
    mask, count, added = U(pairs.size // 2 - 1), U(keys.size), U(0)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(pairs, (mixed(keys[i + AHEAD]) & mask) * U(2))
        home = mixed(keys[i])
        at = probe(pairs, keys[i], home)
        found = pairs[at + U(1)]
        if found == U(0):
            if old.size:
                found = old[probe(old, keys[i], home) + U(1)]
            if found == U(0):
                created[added] = i
                added += U(1)
                found = first + added
                pairs[at] = keys[i]
                pairs[at + U(1)] = found
        places[i] = found - U(1)
    return int(added)


@kernel
def _move(old: Any, pairs: Any, start: Any, stop: Any) -> None:
    for i in range(start, stop):
        place = old[i * U(2) + U(1)]
        if place != U(0):
            key = old[i * U(2)]
            at = probe(pairs, key, mixed(key))
            pairs[at] = key
            pairs[at + U(1)] = place
