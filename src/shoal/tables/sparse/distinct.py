"""Key lists: distinct keys, and their order by hash slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.jit import U, kernel, mixed
from shoal.keys import SLOT_BITS, SLOTS

_SHIFT = U(64 - SLOT_BITS)


def distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys by first appearance, and the number of each given key there.

    >>> distinct(np.array([7, 5, 7, 7, 9], np.uint64))
    (array([7, 5, 9], dtype=uint64), array([0, 1, 0, 0, 2], dtype=uint64))
    """
    chosen, numbers = np.empty_like(keys), np.empty(len(keys), np.uint64)
    width = np.uint16 if len(keys) < 1 << 16 else np.uint32  # small: it has to stay cached
    seen = np.zeros(1 << (4 * len(keys) + 1).bit_length(), width)
    count = _distinct(keys, seen, chosen, numbers)
    return chosen[:count], numbers


def by_slot(keys: np.ndarray) -> np.ndarray:
    """Return the permutation that puts keys into the order of their hash slots, stably.

    >>> from shoal.keys import slot_of
    >>> keys = np.arange(100, dtype=np.uint64)
    >>> slots = [slot_of(int(key)) for key in keys[by_slot(keys)]]
    >>> slots == sorted(slots)
    True
    """
    order = np.empty(len(keys), np.uint64)
    _by_slot(keys, np.zeros(SLOTS + 1, np.uint64), order)
    return order


def outside(keys: np.ndarray, start: int, stop: int) -> int:
    """Return the index of the first key that is not in the slots `[start, stop)`, or -1."""
    return int(_outside(keys, U(start), U(stop)))


def within(keys: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return a mask of the keys that are in the slots `[start, stop)`.

    >>> within(np.arange(4, dtype=np.uint64), 0, SLOTS).tolist()
    [True, True, True, True]
    """
    found = np.empty(len(keys), np.bool_)
    _within(keys, U(start), U(stop), found)
    return found


@kernel
def _within(keys: Any, start: Any, stop: Any, found: Any) -> None:
    for i in range(U(keys.size)):
        slot = mixed(keys[i]) >> _SHIFT
        found[i] = slot >= start and slot < stop


@kernel
def _distinct(keys: Any, seen: Any, chosen: Any, numbers: Any) -> Any:
    mask, count = U(seen.size - 1), U(0)
    for i in range(U(keys.size)):
        key = keys[i]
        at = mixed(key) & mask
        while seen[at] != 0 and chosen[U(seen[at]) - U(1)] != key:
            at = (at + U(1)) & mask
        if seen[at] == 0:
            chosen[count] = key
            count += U(1)
            seen[at] = count
        numbers[i] = U(seen[at]) - U(1)
    return count


@kernel
def _by_slot(keys: Any, ends: Any, order: Any) -> None:
    for i in range(U(keys.size)):
        ends[(mixed(keys[i]) >> _SHIFT) + U(1)] += U(1)
    for slot in range(U(ends.size - 1)):
        ends[slot + U(1)] += ends[slot]
    for i in range(U(keys.size)):
        slot = mixed(keys[i]) >> _SHIFT
        order[ends[slot]] = i
        ends[slot] += U(1)


@kernel
def _outside(keys: Any, start: Any, stop: Any) -> Any:
    for i in range(U(keys.size)):
        slot = mixed(keys[i]) >> _SHIFT
        if slot < start or slot >= stop:
            return np.int64(i)
    return np.int64(-1)
