"""Scans: all rows of a sparse table, piece by piece, without a list of its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.keys import SLOTS, KeyRange
from shoal.node.future import Future
from shoal.protocol.requests import Exchange, PullOp, Scan
from shoal.tables.dense.rows import DTYPES
from shoal.tables.spec import TableSpec

PIECE_BYTES = 64 << 20  # in one pull, about
FIRST_SLOTS = 16


def scanned(
    spec: TableSpec, table: str, exchange: Callable[[Exchange], Future]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (keys, rows) of one range of hash slots after the other; see `Client.scan`."""
    if not spec.sparse:
        raise InvalidValue(
            f"table {table!r} is {spec.kind}: scan is for sparse tables; pull others"
        )
    at, width = 0, FIRST_SLOTS
    while at < SLOTS:
        slots = KeyRange(at, min(at + width, SLOTS))
        scan = Scan()
        exchange(Exchange(pulls=(PullOp(table, slots, scan),))).wait()
        size = sum(each.nbytes for each in scan.pieces)
        for piece in scan.pieces:
            keys, rows = rows_of(piece, spec)
            if len(keys):
                yield keys, rows
        at = slots.stop
        if size < PIECE_BYTES // 4:
            width *= 2
        elif size > PIECE_BYTES:
            width = max(width // 2, 1)


def rows_of(piece: memoryview, spec: TableSpec) -> tuple[Tensor, Tensor]:
    """Return the keys (as int64 bits) and rows that a server has sent (`SparseShard.scan`)."""
    data = torch.from_numpy(np.frombuffer(piece, np.uint8).copy())
    count = int(data[:8].view(torch.int64))
    keys, values = data[8 : 8 + 8 * count].view(torch.int64), data[8 + 8 * count :]
    return keys, values.view(DTYPES[spec.dtype]).view(count, *spec.row_shape)
