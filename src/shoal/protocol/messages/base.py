"""Base class of messages, and the parts that say which rows a message carries."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.protocol.limits import PARTS_MAX, SLOTS_MAX, Number


class Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all messages."""


SAME = -2
KEY_BYTES = 8
SIZE_BYTES = 8  # length prefix of each answer of a request that calls several handlers


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Rows `[start, stop)` of table number `table`.

    In a dense table the keys are int64 and strictly increasing; rows of the range without a key
    keep their values and take part in the clock. In a sparse table the range is one of hash slots,
    and the keys are distinct uint64 in any order; a pull without keys has all rows of the range.

    Attributes:
        keys: the number of keys, which precede their values; -1 for every row of the range; or
            SAME, in a pull, for the keys that the same request pushes to the table.
        slots: the number of slots of a dense table's access method, whose values for these rows
            follow those of the rows, slot by slot (the rows' whole state); 0 for the rows alone.
    """

    table: Annotated[int, Meta(ge=0, lt=1 << 31)]
    start: Number
    stop: Number
    keys: Annotated[int, Meta(ge=SAME, le=1 << 40)] = -1
    slots: Annotated[int, Meta(ge=0, le=SLOTS_MAX)] = 0


Parts = Annotated[tuple[Part, ...], Meta(max_length=PARTS_MAX)]
