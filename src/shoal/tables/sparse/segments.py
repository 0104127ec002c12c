"""Segments: open-addressing tables of (key, place + 1) pairs, each in its own memory.

The hash of a key determines its segment, and the pair at which a linear probe for the key starts.
The probe ends at the key's pair or at an empty one. A segment has any number of pairs, so that each
grows independently. Kernels know a segment by two numbers, (address, pairs).
"""

from __future__ import annotations

import mmap
from ctypes import c_char
from typing import Any

import numpy as np

from shoal.jit import AHEAD, U, fetch, kernel, mixed, put, word

FULL = 0.7  # the largest share of pairs that are taken
PAIR = U(16)  # bytes
PLACE = U(8)  # bytes from a pair to its second number
LOW = U((1 << 32) - 1)
MAPPED = 1 << 16  # bytes from which on a segment's memory is mapped, and given back to the system
_NOTHING = np.empty(0, np.uint64)


def pages(nbytes: int) -> mmap.mmap:
    """Return fresh zeroed memory of this process, which grows in place.

    Its pages are small: a large page is found and zeroed as a whole when it is first touched, and a
    request would wait for that (20 ms, at times). Kernels that fetch ahead hide the cost of small
    pages.
    """
    return mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Segments:
    """The memory of some segments, a power of two of them.

    table:   the address and the number of pairs of each, (2 n,) uint64
    counts:  the number of pairs taken in each, (n,) uint64
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
        """Give a segment memory for more pairs, and put its pairs where probes find them.

        A large segment keeps its memory pages, which may be moved but are not copied: to touch
        fresh memory would cost more than everything else here.

        Raises:
            MemoryError: there is no memory; nothing has changed
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
    """Return the whole memory as an array without a reference: referenced memory cannot grow.

    Numba never releases the arguments of a function that raises.
    """
    unreferenced = memoryview((c_char * len(memory)).from_address(address_of(memory)))
    return np.frombuffer(unreferenced, dtype, len(memory) // dtype.itemsize)


@kernel
def home(base: Any, pairs: Any, hashed: Any) -> Any:
    """Return the address where the probe for a key starts."""
    return base + (((hashed & LOW) * pairs) >> U(32)) * PAIR


@kernel
def segment_of(table: Any, hashed: Any) -> Any:
    """Return the segment of a hash, from its middle bits: keys of a server may share upper bits."""
    return (hashed >> U(32)) & U(table.size // 2 - 1)


@kernel
def probe(base: Any, pairs: Any, key: Any, hashed: Any) -> Any:
    """Return the address of the key's pair, or of the empty pair where it belongs."""
    at, end = home(base, pairs, hashed), base + pairs * PAIR
    while word(at + PLACE) != U(0) and word(at) != key:
        at += PAIR
        if at == end:
            at = base
    return at


@kernel
def find(table: Any, keys: Any, places: Any, missing: Any, wanted: Any) -> Any:
    """Fill the place of each key, all ones if absent; return the number of absent keys.

    missing: an array that takes the indices of the absent keys
    wanted: an array that counts the absent keys by segment
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
    """Add the missing keys at places from `first` on; return the number of added keys.

    A key that is missing twice is added once. `missing` keeps the indices of the added keys.
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
    """Move the first `taken` pairs of a segment to where probes among `pairs` find them."""
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
