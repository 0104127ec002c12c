"""What becomes of updates with a NaN or an infinity, looked for before anything is sent.

A push is refused whole or not at all: by the time that its server has found one, it may have
applied what came before it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import torch

from shoal.errors import NotFinite
from shoal.protocol.requests import Exchange, PushOp
from shoal.tables.dense import DTYPES
from shoal.tables.spec import TableSpec

_NOT_NUMPY = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # slow, or not there


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
        if not self._looked_at(op.table):
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
    """One pass, at the speed of memory: a sum of squares is finite only if all are."""
    if not values.nbytes:
        return True
    if dtype in _NOT_NUMPY:
        return bool(torch.isfinite(torch.frombuffer(values, dtype=_NOT_NUMPY[dtype])).all())
    array = np.frombuffer(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(array, array)):
            return True
    return bool(np.isfinite(array).all())  # it may only have overflowed
