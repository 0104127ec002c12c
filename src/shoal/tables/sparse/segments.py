"""Segments: open-addressing tables of (key, place + 1) pairs, in memory of their own.

A key's hash says which segment it is in, and where in it its pair is looked for first; from there
on by linear probing, until it or an empty pair is found. Segments have any number of pairs, so that
each may grow when it likes; kernels know them by (address, pairs), two numbers a segment.
"""

from __future__ import annotations

import mmap
from ctypes import c_char
from typing import Any

import numpy as np

from shoal.tables.sparse.jit import AHEAD, U, fetch, kernel, mixed, put, word

FULL = 0.7  # pairs that are taken, at most
PAIR = U(16)  # bytes
PLACE = U(8)  # of a pair: where its second number is
LOW = U((1 << 32) - 1)
MAPPED = 1 << 16  # bytes from which on a segment's memory is mapped, and given back to the system
_NOTHING = np.empty(0, np.uint64)


def pages(nbytes: int) -> mmap.mmap:
    """Fresh zeroed memory of this process, which grows in place.

    In small pages: a large one is found and zeroed as a whole when it is first touched, for which
    one request would wait (20 ms, at times). What large ones save, kernels hide that fetch ahead.
    """
    return mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Segments:
    """The memory of some segments, a power of two of them.

    table:   (2 n,) uint64: address and pairs of each
    counts:  (n,) uint64, pairs taken
    """

    def __init__(self, count: int) -> None:
        self.table = np.zeros(2 * count, np.uint64)
        self.counts = np.zeros(count, np.uint64)
        self._memory: list[np.ndarray | mmap.mmap] = [_NOTHING] * count
        self._scratch = _NOTHING
        _spread(U(0), U(0), U(1), _NOTHING)  # compiled, or fetched from disk, before it is needed

    @property
    def pairs(self) -> np.ndarray:
        return self.table[1::2]

    def grow(self, number: int, pairs: int) -> None:
        """Give a segment more memory; its pairs find their places in it.

        Large ones stay where they are (their pages may be moved, uncopied): memory that was never
        touched costs more than all else that is done here.

        Raises:
            MemoryError: there is none; nothing has changed
        """
        before = self.table[2 * number : 2 * number + 2]
        memory, nbytes, taken = self._memory[number], int(PAIR) * pairs, int(before[1])
        if isinstance(memory, mmap.mmap):
            if self._scratch.size < 2 * taken:
                self._scratch = np.empty(4 * taken, np.uint64)
            try:
                memory.resize(nbytes)
            except OSError as error:
                raise MemoryError(str(error)) from None
            before[:] = address_of(memory), pairs
            _spread(before[0], U(taken), U(pairs), self._scratch)
            return
        larger = np.zeros(2 * pairs, np.uint64) if nbytes < MAPPED else pages(nbytes)
        address = address_of(larger)
        _move(before[0], before[1], address, U(pairs))
        before[:] = address, pairs
        self._memory[number] = larger


def address_of(memory: np.ndarray | mmap.mmap) -> int:
    array = np.frombuffer(memory, np.uint8) if isinstance(memory, mmap.mmap) else memory
    return array.ctypes.data


def array_at(memory: mmap.mmap, dtype: np.dtype[Any]) -> np.ndarray:
    """The whole memory as an array without a reference: referenced memory cannot grow.

    Numba never releases the arguments of a function that raises.
    """
    unreferenced = memoryview((c_char * len(memory)).from_address(address_of(memory)))
    return np.frombuffer(unreferenced, dtype, len(memory) // dtype.itemsize)


@kernel
def home(base: Any, pairs: Any, hashed: Any) -> Any:
    """The address where the probe for a key starts."""
    return base + (((hashed & LOW) * pairs) >> U(32)) * PAIR


@kernel
def segment_of(table: Any, hashed: Any) -> Any:
    """The segment of a hash, from its middle bits: a server's keys may share their upper bits."""
    return (hashed >> U(32)) & U(table.size // 2 - 1)


@kernel
def probe(base: Any, pairs: Any, key: Any, hashed: Any) -> Any:
    """The address of the key's pair, or of the empty pair where it belongs."""
    at, end = home(base, pairs, hashed), base + pairs * PAIR
    while word(at + PLACE) != U(0) and word(at) != key:
        at += PAIR
        if at == end:
            at = base
    return at


@kernel
def find(table: Any, keys: Any, places: Any, missing: Any, wanted: Any) -> Any:
    """Fill the place of each key, all ones if absent; list absent keys in `missing`, count them.

    wanted: counts them by segment
    """
    count, absent = U(keys.size), U(0)
    for i in range(count):
        if i + AHEAD < count:
            hashed = mixed(keys[i + AHEAD])
            s = segment_of(table, hashed) * U(2)
            fetch(home(table[s], table[s + U(1)], hashed))
        hashed = mixed(keys[i])
        s = segment_of(table, hashed)
        at = probe(table[s * U(2)], table[s * U(2) + U(1)], keys[i], hashed)
        found = word(at + PLACE)
        places[i] = found - U(1)
        if found == U(0):
            missing[absent] = i
            absent += U(1)
            wanted[s] += U(1)
    return absent


@kernel
def add(
    table: Any, counts: Any, keys: Any, places: Any, missing: Any, absent: Any, first: Any
) -> Any:
    """Add the keys that were missing, at places from `first` on; returns how many they were.

    A key that is missing twice is added once. `missing` keeps the numbers of those that were added.
    """
    added = U(0)
    for n in range(absent):
        i = U(missing[n])
        hashed = mixed(keys[i])
        s = segment_of(table, hashed)
        at = probe(table[s * U(2)], table[s * U(2) + U(1)], keys[i], hashed)
        found = word(at + PLACE)
        if found == U(0):
            missing[added] = i
            added += U(1)
            found = first + added
            put(at, keys[i])
            put(at + PLACE, found)
            counts[s] += U(1)
        places[i] = found - U(1)
    return int(added)


@kernel
def _move(old: Any, old_pairs: Any, base: Any, pairs: Any) -> None:
    for i in range(old_pairs):
        place = word(old + i * PAIR + PLACE)
        if place != U(0):
            key = word(old + i * PAIR)
            at = probe(base, pairs, key, mixed(key))
            put(at, key)
            put(at + PLACE, place)


@kernel
def _spread(base: Any, taken: Any, pairs: Any, scratch: Any) -> None:
    """Put the first `taken` pairs of a segment where they are looked for among `pairs`."""
    for i in range(U(2) * taken):
        scratch[i] = word(base + i * U(8))
        put(base + i * U(8), U(0))
    for i in range(taken):
        place = scratch[U(2) * i + U(1)]
        if place != U(0):
            key = scratch[U(2) * i]
            at = probe(base, pairs, key, mixed(key))
            put(at, key)
            put(at + PLACE, place)
