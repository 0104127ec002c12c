"""What becomes of updates with a NaN or an infinity, looked for before anything is sent.

A push is refused whole or not at all: by the time that its server has found one, it may have
applied what came before it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import msgspec
import numpy as np
import torch

from shoal.errors import NotFinite
from shoal.protocol.requests import Exchange, PushOp
from shoal.tables.dense.shard import DTYPES
from shoal.tables.spec import TableSpec

ALONE = 32_000  # elements that torch sums without help: of 32,768 other threads do some
TINY_BYTES = 512  # up to here calling numpy costs more than the sum itself
_NUMPY = ("float32", "float64")


class Finite:
    """Checks exchanges by the policies of their tables, `TableSpec.nonfinite`."""

    def __init__(self, table: Callable[[str], TableSpec]) -> None:
        self._table = table
        self._dtypes: dict[str, str] = {}  # of tables seen; "" where nothing is looked at

    def checked(self, ask: Exchange) -> Exchange:
        """The exchange, or one whose values are finite.

        Raises:
            NotFinite: a value is not, and the table's policy is to reject it
        """
        if not ask.assign:
            for op in ask.pushes:
                dtype = self._dtypes.get(op.table)
                if dtype is None:
                    dtype = self._dtypes[op.table] = self._looked_at(op.table)
                if dtype and not _finite(op.values, dtype):
                    pushes = tuple(self._mended(each) for each in ask.pushes)
                    return msgspec.structs.replace(ask, pushes=pushes, route=None)
        return ask

    def _looked_at(self, table: str) -> str:
        spec = self._table(table)
        return "" if "int" in spec.dtype or spec.nonfinite == "allow" else spec.dtype

    def _mended(self, op: PushOp) -> PushOp:
        spec = self._table(op.table)
        if not self._looked_at(op.table) or not op.values.nbytes:
            return op
        values = torch.frombuffer(bytearray(op.values), dtype=DTYPES[spec.dtype])
        bad = ~torch.isfinite(values)
        if not bool(bad.any()):
            return op
        if spec.nonfinite == "reject":
            at = int(bad.nonzero()[0])
            row, column = divmod(at, spec.width)
            key = op.rows.start + row if op.keys is None else op.keys[row]
            raise NotFinite(
                f"table {op.table!r}: {values[at].item()} in the update of key {key}, element "
                f"{column} of its row. Nothing was sent. (A table may have nonfinite='zero' or "
                "'allow' instead of 'reject'.)"
            )
        values[bad] = 0
        return msgspec.structs.replace(op, values=values.view(torch.uint8).numpy().data)


def _finite(values: memoryview, dtype: str) -> bool:
    """One pass, at the speed of memory: a sum is finite only if all are, or else it is looked at.

    By this thread alone: torch's or BLAS's others would spin on the cores that servers need.
    """
    if not values.nbytes:
        return True
    if values.nbytes <= TINY_BYTES and dtype == "float32" and isfinite(sum(values.cast("f"))):
        return True
    if dtype in _NUMPY:
        array = np.frombuffer(values, dtype)
        return isfinite(np.einsum("i->", array)) or bool(np.isfinite(array).all())
    tensor = torch.frombuffer(values, dtype=DTYPES[dtype])
    pieces = torch.split(tensor, ALONE)
    return all(isfinite(piece.sum()) or bool(piece.isfinite().all()) for piece in pieces)
