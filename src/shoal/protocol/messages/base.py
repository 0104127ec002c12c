"""Base class of messages, and the parts that say which rows a message carries."""

from __future__ import annotations

import msgspec


class Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all messages."""


SAME = -2
KEY_BYTES = 8
SIZE_BYTES = 8  # length prefix of each answer of a request that calls several handlers


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Rows `[start, stop)` of table number `table`.

    Of a dense table the keys are int64 and strictly increasing; rows of the range without a key
    keep their values and take part in the clock. Of a sparse table the range is one of hash slots,
    and the keys are distinct uint64 in any order.

    Attributes:
        keys: -1 for every row of the range; the number of keys, which precede their values; or
            SAME, in a pull, for the keys that the same request pushes to the table.
    """

    table: int
    start: int
    stop: int
    keys: int = -1
