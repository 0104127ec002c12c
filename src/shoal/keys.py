"""Key ranges: half-open ranges of keys, `[start, stop)`, and how they are cut.

A key of a dense table is a row number. A key of a sparse table is any 64-bit integer; its ranges
are ranges of hash slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shoal.errors import InvalidValue


class KeyRange(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The keys `start <= key < stop`.

    Args:
        start: the first key, >= 0.
        stop: the first key after the range, >= start.

    Raises:
        InvalidValue: not 0 <= start <= stop.

    Example:
        >>> KeyRange(2, 6) & KeyRange(4, 9)
        KeyRange(start=4, stop=6)
        >>> len(KeyRange(2, 6)), 6 in KeyRange(2, 6)
        (4, False)
    """

    start: Annotated[int, Meta(ge=0, le=1 << 62)]  # a decoder's limits; `len` has one as well
    stop: Annotated[int, Meta(ge=0, le=1 << 62)]

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise InvalidValue(
                f"a key range needs 0 <= start <= stop, not [{self.start}, {self.stop})"
            )

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int) and self.start <= key < self.stop

    def __and__(self, other: KeyRange) -> KeyRange:
        start = max(self.start, other.start)
        return KeyRange(start, max(start, min(self.stop, other.stop)))

    def covers(self, other: KeyRange) -> bool:
        """Return whether every key of `other` is in this range."""
        return self.start <= other.start and other.stop <= self.stop

    def without(self, other: KeyRange) -> list[KeyRange]:
        """Return the ranges of the keys of this range that `other` does not have.

        Example:
            >>> [str(rows) for rows in KeyRange(2, 9).without(KeyRange(4, 6))]
            ['[2:4)', '[6:9)']
        """
        ends = (self.start, min(self.stop, other.start)), (max(self.start, other.stop), self.stop)
        return [KeyRange(start, stop) for start, stop in ends if start < stop]

    def __str__(self) -> str:
        return f"[{self.start}:{self.stop})"


def split_evenly(total: int, pieces: int) -> list[KeyRange]:
    """Cut `[0, total)` into `pieces` ranges whose lengths differ by at most one.

    >>> [len(part) for part in split_evenly(10, 3)]
    [4, 3, 3]
    """
    if pieces < 1:
        raise InvalidValue(f"cannot cut a range into {pieces} pieces")
    size, extra = divmod(total, pieces)
    ranges, start = [], 0
    for index in range(pieces):
        stop = start + size + (index < extra)
        ranges.append(KeyRange(start, stop))
        start = stop
    return ranges


def cut_at_edges(whole: KeyRange, ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Cut `whole` at every edge of `ranges`, so that each range has all of a piece or none.

    >>> [str(piece) for piece in cut_at_edges(KeyRange(0, 9), [KeyRange(0, 4), KeyRange(2, 20)])]
    ['[0:2)', '[2:4)', '[4:9)']
    """
    edges = {whole.start, whole.stop}
    for part in ranges:
        edges.update(edge for edge in (part.start, part.stop) if whole.start < edge < whole.stop)
    return [KeyRange(start, stop) for start, stop in pairwise(sorted(edges))]


def tiles(ranges: Sequence[KeyRange], total: int) -> bool:
    """Return whether the ranges cover `[0, total)` exactly once, in order."""
    edge = 0
    for part in ranges:
        if part.start != edge or part.stop <= part.start:
            return False
        edge = part.stop
    return edge == total


SLOT_BITS = 12
SLOTS = 1 << SLOT_BITS


def splitmix64(number: Callable[[int], Any]) -> Callable[[Any], Any]:
    """Return the last step of SplitMix64, a bijection of the 64-bit integers that scatters them.

    number:  the type of its constants: `int` for Python's numbers, `numpy.uint64` for arrays and
             for compiled loops

    Steele et al. 2014, figure 16.

    >>> hex(splitmix64(int)(1))
    '0x5692161d100b05e5'
    """
    first, second, third = map(number, (30, 27, 31))
    one, other = map(number, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    low = number((1 << 64) - 1)

    def mixed(z: Any) -> Any:
        z = (z ^ (z >> first)) * one & low
        z = (z ^ (z >> second)) * other & low
        return z ^ (z >> third)

    return mixed


hash_of: Callable[[int], int] = splitmix64(int)


def digest64(told: bytes) -> int:
    """Return 64 bits that follow from some bytes, such as a key of random bits.

    >>> digest64(b"worker 1, step 2") != digest64(b"worker 1, step 3")
    True
    """
    return int.from_bytes(blake2b(told, digest_size=8).digest(), "little")


def digest128(told: bytes | memoryview) -> bytes:
    """Return 16 bytes by which a list of keys is named.

    >>> digest128(b"a list") == digest128(memoryview(b"a list"))
    True
    """
    return blake2b(told, digest_size=16).digest()


def slot_of(key: int) -> int:
    """Return the hash slot of a sparse table's key, which determines the key's shard.

    >>> [slot_of(key) for key in (0, 1, 2, 3)]
    [0, 1385, 3517, 485]
    """
    return hash_of(key) >> (64 - SLOT_BITS)
