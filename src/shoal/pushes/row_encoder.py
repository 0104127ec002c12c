"""RowEncoder: encodes the rows that a worker pushes to a sparse table. Nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

import msgspec
import numpy as np

from shoal.keys import digest64
from shoal.protocol.requests import PushOp
from shoal.pushes.pulled import has_keys
from shoal.tables.row_encoding import RowEncoding
from shoal.tables.spec import TableSpec


class RowEncoder:
    """Encodes the pushes of one worker to one sparse table.

    Args:
        spec: the table.
        seed: the seed of random bits.
        rank: the function that returns the worker's rank, for its random bits.
    """

    def __init__(self, spec: TableSpec, seed: int, rank: Callable[[], int]) -> None:
        self.spec = spec
        self._encoding = RowEncoding(spec)
        self._dtype = np.dtype(spec.dtype)
        self._seed = seed
        self._rank = rank
        self._clock, self._count = -1, 0  # of the last push, and of the pushes at that clock

    def takes(self, op: PushOp, clock: int) -> bool:
        """Return whether a push is encoded; what is invalid is refused later."""
        begins = clock >= self._encoding.codec.begins_at
        return begins and not op.sizes and has_keys(self.spec, op, op.values)

    def encode(self, op: PushOp, clock: int) -> PushOp:
        """Return a push with its rows encoded, which does not borrow its values any more.

        Raises:
            NotFinite: a value cannot be encoded.
        """
        self._count = self._count + 1 if clock == self._clock else 0
        self._clock = clock
        told = pack("<4q", self._seed, self._rank(), clock, self._count) + self.spec.name.encode()
        rows = np.frombuffer(op.values, self._dtype).reshape(-1, self.spec.width)
        data = self._encoding.encode(rows, digest64(told))
        return msgspec.structs.replace(op, values=data.data, sizes=(self._encoding.nbytes(1),))
