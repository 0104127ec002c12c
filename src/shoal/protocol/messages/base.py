"""What all messages have in common, and how those with rows say which."""

from __future__ import annotations

import msgspec


class Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all messages."""


SAME = -2
KEY_BYTES = 8
SIZE_BYTES = 8  # of an answer's, ahead of it, where one request calls several handlers


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Rows `[start, stop)` of table number `table`.

    keys: -1 for every row of the range; otherwise the number of keys carried, int64 and strictly
    increasing, ahead of their values. Rows that are named and not carried keep their values and
    take part in the clock. Of a sparse table the range is one of hash slots, and the keys in them
    are uint64, each once and in any order. A pull of SAME is of the keys that its request pushes to
    the table: they travel once, and are looked up once.
    """

    table: int
    start: int
    stop: int
    keys: int = -1
