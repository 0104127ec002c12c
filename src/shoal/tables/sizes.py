"""Sizes in bytes: their text form, and the memory that the shards of tables take.

Importable without torch and numba: a server asks for a shard's size before it opens it.
"""

from __future__ import annotations

import re

from shoal.errors import InvalidValue
from shoal.keys import SLOTS, KeyRange
from shoal.tables.spec import TableSpec

_POWERS = {letter: power for power, letter in enumerate("KMGT", 1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)

INDEX_BYTES = 1 << 16  # of a sparse shard without rows: its segments have a few pairs each
# A sparse row takes, as well as its record: 8 for its key by place; 34.3 for its pair of 16 in a
# segment that has just grown (by a factor of 1.5 at most, until 0.7 of its pairs are taken); 0.2
# for the memory in which a growing segment is sorted; 2 for its mark since the last checkpoint.
SPARSE_KEY_BYTES = 46
# In a bounded shard, whose segment does not grow: key 8, uses 4 and 8, pair 22.9, mark 2.
BOUNDED_KEY_BYTES = 46
USES_MOST = (1 << 32) - 1  # of a key of a bounded table: the count has 32 bits


def bytes_of(text: str) -> int:
    """Return the bytes of a size in decimal units (500M, 2GB) or binary ones (4GiB).

    Raises:
        InvalidValue: it is no size, or not from 1 byte to 4 EiB.

    >>> bytes_of("4GiB"), bytes_of("500M"), bytes_of("1.5 kB"), bytes_of("1000000")
    (4294967296, 500000000, 1500, 1000000)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) == 0 or (found[3] and not found[2]):
        raise InvalidValue(f"a size is a number of bytes such as 4GiB or 500M, not {text!r}")
    number, letter, binary = found.groups()
    nbytes = float(number) * (1024 if binary else 1000) ** _POWERS.get(letter.upper(), 0)
    if not 1 <= nbytes < 1 << 62:
        raise InvalidValue(f"a size is from 1 byte to 4 EiB, not {text!r}")
    return int(nbytes)


def size(nbytes: float) -> str:
    """Return a size as text, in binary units.

    >>> size(4 << 30), size(1536), size(7), size(-1)
    ('4.0 GiB', '1.5 KiB', '7 bytes', '0 bytes')
    """
    nbytes = max(0, nbytes)
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1 << (10 * power):
            return f"{nbytes / (1 << (10 * power)):.1f} {unit}"
    return f"{nbytes:.0f} bytes"


def rows_held(spec: TableSpec, held: KeyRange) -> int:
    """Return a shard's share of a table's `max_rows`."""
    return max(1, -(-spec.max_rows * len(held) // SLOTS))


def dense_bytes(spec: TableSpec, held: KeyRange, slots: int) -> int:
    """Return the bytes of a dense shard: its rows, optimizer state and staging memory.

    A push is staged whole where it waits for its round or comes encoded, and a fragment at a time
    otherwise. More pushes at a time take more, for which servers need free memory. Rows that are
    encoded for pulls count as if they were not smaller; before differences there are references.
    """
    whole = spec.consistency.apply_at == "round_end" or spec.encodes
    staged = len(held) if whole else min(len(held), spec.fragment_rows)
    pulled = len(held) * (bool(spec.server_codec) + spec.delta)
    return (len(held) * (1 + slots) + staged + pulled) * spec.row_bytes
