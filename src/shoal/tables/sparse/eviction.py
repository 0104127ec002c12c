"""BoundedIndex: a table's keys in bounded memory, with approximate LRU or LFU eviction.

An exact order of uses would cost several cache misses per key. As in Redis, a few rows are sampled
at random, and one of them is evicted:

    lru   the least recently used
    lfu   the least frequently used; the others lose 1/64 of their uses (on average, if that is
          less than one), so that formerly popular rows are evicted in the end

The head of the chain samples, and replicates the place of each key of a push. The other replicas
put the keys there (`assume`), so that all have the same keys at the same places. A use is a push:
pulls are answered by one replica only.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Literal

import numpy as np

from shoal.errors import InvariantBroken
from shoal.jit import AHEAD, U, fetch, kernel, mixed, put, word
from shoal.tables.sparse.index import MISSING
from shoal.tables.sparse.segments import FULL, PAIR, PLACE, Segments, find, home, probe

DRAWN = U(8)
FORGET = U(64)


class BoundedIndex:
    """The places of keys in `[0, most)`, until they are evicted.

    Attributes:
        evicted: the number of evicted keys.
        most: the largest number of keys.
        at_once: the most keys per request, whose rows do not evict each other.

    >>> index, created = BoundedIndex(4, "lru"), np.empty(2, np.uint64)
    >>> for keys in ([1, 2], [3, 4], [1, 2], [5, 6]):
    ...     places, added = index.find_or_add(np.array(keys, np.uint64), created)
    >>> index.evicted, sorted(index.keys.tolist())
    (2, [1, 2, 5, 6])
    """

    def __init__(self, most: int, policy: Literal["lru", "lfu"]) -> None:
        self.most = most
        self.at_once = max(1, most // 2)
        self.keys = np.zeros(most, np.uint64)[:0]
        self._keys = np.zeros(most, np.uint64)
        self._segments = Segments(1)
        self._segments.grow(0, ceil(most / FULL) + 1)
        self._uses = np.zeros(most, np.uint32)
        self._last = np.zeros(most, np.uint64)
        self._columns = self._keys, self._uses, self._last  # by place
        self._lfu = policy == "lfu"
        # rows, evictions, requests, and the state of the draws
        self._state = np.array([0, 0, 0, 0x9E3779B97F4A7C15], np.uint64)
        none = np.zeros(0, np.uint64)
        for loop in (self.find_or_add, self.assume):  # compiled now, and not in a request
            loop(none, none)

    def __len__(self) -> int:
        return int(self._state[0])

    @property
    def evicted(self) -> int:
        return int(self._state[1])

    @property
    def requests(self) -> int:
        """The number of requests, which is the clock of uses."""
        return int(self._state[2])

    def uses(self, start: int, stop: int) -> np.ndarray:
        """Return the number of uses and the last use of the keys at these places, (n, 2) int64."""
        each = self._uses[start:stop].astype(np.int64), self._last[start:stop].view(np.int64)
        return np.stack(each, axis=1)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the place of each key, or MISSING."""
        places, missing = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
        find(self._segments.table, keys, places, missing, np.zeros(1, np.uint64))
        return places

    def find_or_add(self, keys: np.ndarray, created: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the place of each key, and the number of new keys.

        keys: the keys, at most `at_once`
        created: an array that takes the indices of the new keys in `keys`
        """
        assert len(keys) <= self.at_once
        places = np.empty(len(keys), np.uint64)
        table, columns = self._segments.table, self._columns
        added = _find_or_add(table, keys, places, created, *columns, self._state, self._lfu)
        self.keys = self._keys[: len(self)]
        return places, added

    def assume(self, keys: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Put keys at the places that the head chose; return the indices of new keys.

        Raises:
            InvariantBroken: the keys cannot be at these places.
        """
        created = np.empty(len(keys), np.uint64)
        table, columns = self._segments.table, self._columns
        added = _assume(table, keys, places, created, *columns, self._state)
        if added == MISSING:
            raise InvariantBroken(f"keys {keys.tolist()} cannot be at {places.tolist()}")
        self.keys = self._keys[: len(self)]
        return created[: int(added)]

    def remember(self, first: int, uses: np.ndarray, evicted: int, requests: int) -> None:
        """Set the uses of the keys from place `first` on, and the totals, as in another replica."""
        self._uses[first : len(self)], self._last[first : len(self)] = uses.T
        self._state[1:3] = evicted, requests

    @property
    def drawn(self) -> int:
        """The state of the sampling generator, 64 bits as an int64."""
        return int(self._state.view(np.int64)[3])

    def recall(self, keys: np.ndarray, uses: np.ndarray, drawn: int) -> None:
        """Restore the uses of present keys, and the state of the sampling generator."""
        places = self.find(keys)
        here = places != MISSING
        if here.any():
            self._state.view(np.int64)[3] = drawn
        self._uses[places[here]], self._last[places[here]] = uses[here].T
        self._state[2] = max(self.requests, int(self._last[: len(self)].max(initial=0)))


@kernel
def _remove(base: Any, pairs: Any, key: Any) -> None:
    """Remove a key; the pairs behind it move up, so that no gap breaks a probe."""
    size = pairs * PAIR
    hole = probe(base, pairs, key, mixed(key))
    at = hole
    while True:
        at += PAIR
        if at == base + size:
            at = base
        if word(at + PLACE) == U(0):
            break
        first = home(base, pairs, mixed(word(at)))
        from_home = at - first if at >= first else at + size - first
        from_hole = at - hole if at >= hole else at + size - hole
        if from_home >= from_hole:  # its home is not between the hole and its pair
            put(hole, word(at))
            put(hole + PLACE, word(at + PLACE))
            hole = at
    put(hole + PLACE, U(0))


@kernel
def _victim(uses: Any, last: Any, state: Any, lfu: Any) -> Any:
    """Return the place to evict: the best of a few samples, none of them used by this request."""
    now, seed, best, drawn = state[2], state[3], U(uses.size), U(0)
    while drawn < DRAWN:
        seed ^= seed << U(13)  # xorshift64, Marsaglia 2003
        seed ^= seed >> U(7)
        seed ^= seed << U(17)
        place = seed % U(uses.size)
        if last[place] == now:
            continue
        drawn += U(1)
        if best == U(uses.size):
            best = place
        elif place != best:
            worse = uses[place] < uses[best] if lfu else last[place] < last[best]
            stays = best if worse else place
            best = place if worse else best
            if lfu:
                uses[stays] -= (U(uses[stays]) + (seed >> U(40)) % FORGET) // FORGET
    state[3] = seed
    return best


@kernel
def _seat(
    base: Any, pairs: Any, key: Any, place: Any, owners: Any, uses: Any, last: Any, state: Any
) -> None:
    """Give a place to a key, and evict the key that has it."""
    if place < state[0]:
        _remove(base, pairs, owners[place])
        state[1] += U(1)
    else:
        state[0] += U(1)
    at = probe(base, pairs, key, mixed(key))
    put(at, key)
    put(at + PLACE, place + U(1))
    owners[place] = key
    last[place] = state[2]
    uses[place] = 1


@kernel
def _find_or_add(
    table: Any,
    keys: Any,
    places: Any,
    created: Any,
    owners: Any,
    uses: Any,
    last: Any,
    state: Any,
    lfu: Any,
) -> Any:
    base, pairs, count, added = table[0], table[1], U(keys.size), U(0)
    state[2] += U(1)
    for i in range(count):  # present keys first: new ones must not evict them
        if i + AHEAD < count:
            fetch(home(base, pairs, mixed(keys[i + AHEAD])))
        found = word(probe(base, pairs, keys[i], mixed(keys[i])) + PLACE)
        places[i] = found - U(1)
        if found != U(0):
            last[found - U(1)] = state[2]
            uses[found - U(1)] += 1
    for i in range(count):
        if places[i] != ~U(0):
            continue
        twin = word(probe(base, pairs, keys[i], mixed(keys[i])) + PLACE)
        if twin != U(0):  # a key that the request has twice
            places[i] = twin - U(1)
            continue
        full = state[0] == U(uses.size)
        places[i] = _victim(uses, last, state, lfu) if full else state[0]
        _seat(base, pairs, keys[i], places[i], owners, uses, last, state)
        created[added] = i
        added += U(1)
    return int(added)


@kernel
def _assume(
    table: Any, keys: Any, places: Any, created: Any, owners: Any, uses: Any, last: Any, state: Any
) -> Any:
    base, pairs, count, added = table[0], table[1], U(keys.size), U(0)
    rows = state[0]
    for i in range(count):  # nothing is changed if any place is wrong
        found = word(probe(base, pairs, keys[i], mixed(keys[i])) + PLACE)
        if places[i] >= U(uses.size) or places[i] > rows:
            return ~U(0)
        if found != U(0) and found - U(1) != places[i]:
            return ~U(0)
        if places[i] == rows:
            rows += U(1)
    state[2] += U(1)
    for i in range(count):
        place = places[i]
        if place < state[0] and owners[place] == keys[i]:
            last[place] = state[2]
            uses[place] += 1
            continue
        _seat(base, pairs, keys[i], place, owners, uses, last, state)
        created[added] = i
        added += U(1)
    return added
