"""Checks updates for NaN and infinity before anything is sent.

A push is refused whole. A server that checked while it streams would already have applied the part
before the bad value.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from threading import Thread

import msgspec
import numpy as np
import torch

from shoal.errors import NotFinite
from shoal.protocol.requests import Exchange, PushOp
from shoal.tables.dense.rows import DTYPES
from shoal.tables.spec import TableSpec

SINGLE_THREADED = 32_000  # elements; torch sums 32,768 and more on several threads
HALVED_BYTES = 16 << 20  # from here on a second thread saves more time than it takes to start
TINY_BYTES = 512  # up to here a call of numpy costs more than the sum itself
_NUMPY = ("float32", "float64")


class Finite:
    """Checks exchanges by the policies of their tables (`TableSpec.nonfinite`)."""

    def __init__(self, table: Callable[[str], TableSpec]) -> None:
        self._table = table
        self._dtypes: dict[str, str] = {}  # by table; "" for tables that are not checked

    def checked(self, ask: Exchange) -> Exchange:
        """Return the exchange, with NaN and infinity replaced by 0 in tables that say "zero".

        Raises:
            NotFinite: a value is NaN or infinite, and the table's policy is "reject".
        """
        for op in ask.pushes:
            dtype = self._dtypes.get(op.table)
            if dtype is None:
                dtype = self._dtypes[op.table] = self._checked_dtype(op.table)
            if dtype and not _finite(op.values, dtype):
                pushes = tuple(self.checked_push(each) for each in ask.pushes)
                return msgspec.structs.replace(ask, pushes=pushes, route=None)
        return ask

    def _checked_dtype(self, table: str) -> str:
        spec = self._table(table)
        return "" if "int" in spec.dtype or spec.nonfinite == "allow" else spec.dtype

    def checked_push(self, op: PushOp) -> PushOp:
        """Return one push, as `checked` does; it is the same object if all values are finite."""
        spec = self._table(op.table)
        if not self._checked_dtype(op.table) or not op.values.nbytes:
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
                f"{column} of its row. Nothing was sent. Lower the learning rate or clip the "
                "gradient, or declare the table with nonfinite='zero' or 'allow'"
            )
        values[bad] = 0
        return msgspec.structs.replace(op, values=values.view(torch.uint8).numpy().data)


def _finite(values: memoryview, dtype: str) -> bool:
    """Return whether all values are finite.

    The check is one pass at the speed of memory: a finite sum has finite terms. Only values with
    another sum are looked at again, because finite terms may overflow. It runs on this thread,
    and on one more for large values: worker threads of torch or BLAS would spin on the cores that
    servers need.
    """
    if not values.nbytes:
        return True
    if values.nbytes <= TINY_BYTES and dtype == "float32" and isfinite(sum(values.cast("f"))):
        return True
    if dtype in _NUMPY:
        array = np.frombuffer(values, dtype)
        return isfinite(_sum(array)) or bool(np.isfinite(array).all())
    tensor = torch.frombuffer(values, dtype=DTYPES[dtype])
    pieces = torch.split(tensor, SINGLE_THREADED)
    return all(isfinite(piece.sum()) or bool(piece.isfinite().all()) for piece in pieces)


def _sum(values: np.ndarray) -> float:
    """Return the sum of values; a second thread adds up a half of large ones."""
    if values.nbytes < HALVED_BYTES:
        return float(np.einsum("i->", values))
    own, other = np.array_split(values, 2)
    found: list[float] = []
    thread = Thread(target=lambda: found.append(float(np.einsum("i->", other))), name="shoal-look")
    thread.start()
    own_sum = float(np.einsum("i->", own))
    thread.join()
    return own_sum + found[0]
