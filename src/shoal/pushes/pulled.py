"""Pulled: rows that servers encode, decoded where a worker pulls them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from shoal.keys import KeyRange
from shoal.protocol.layout import Layout
from shoal.protocol.requests import PullOp, PushOp
from shoal.tables.dense.rows import DTYPES
from shoal.tables.differences import NO_NAME, Differences, Names
from shoal.tables.encoding import Encoding, Fragment
from shoal.tables.row_encoding import RowEncoding
from shoal.tables.spec import HEAD_BYTES, TableSpec


class Pulled(ABC):
    """Decodes the rows of a table that a worker pulls.

    Attributes:
        spec: the table.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec

    def takes(self, op: PullOp, out: memoryview) -> bool:
        """Return whether the rows of a pull, which takes them to `out`, can come encoded."""
        return is_whole(self.spec, op, out)

    def asked(self, op: PullOp) -> tuple[tuple[int, ...], int]:
        """Return the bytes of each fragment that the worker asks for, and of all of them."""
        sizes = self.sizes(op.rows)
        return sizes, sum(sizes)

    @abstractmethod
    def sizes(self, rows: KeyRange) -> tuple[int, ...]:
        """Return the bytes of each fragment of some rows."""

    @abstractmethod
    def land(self, op: PullOp, sizes: tuple[int, ...], data: memoryview) -> bool:
        """Decode what has come into the memory of a pull.

        Args:
            op: the pull.
            sizes: the bytes of each fragment, as they were asked for.
            data: what has come.

        Returns:
            Whether all rows are there; if not, they have to be asked for again.

        Raises:
            BadEncoding: it is no encoding of rows.
        """

    def _into(self, op: PullOp) -> Tensor:
        return torch.frombuffer(op.out, dtype=DTYPES[self.spec.dtype])


class PulledRows(Pulled):
    """Decodes rows that are encoded as they are."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self._encoding = Encoding(spec, pulled=True)

    def sizes(self, rows: KeyRange) -> tuple[int, ...]:
        return tuple(fragment.nbytes for fragment in self._encoding.cut(rows))

    def land(self, op: PullOp, sizes: tuple[int, ...], data: memoryview) -> bool:
        self._encoding.decode(op.rows, data, sizes, self._into(op).view(-1, self.spec.width))
        return True


class PulledKeys(Pulled):
    """Decodes the rows of a sparse table, each of which is encoded by itself."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self._encoding = RowEncoding(spec, pulled=True)

    def takes(self, op: PullOp, out: memoryview) -> bool:
        return has_keys(self.spec, op, out)

    def asked(self, op: PullOp) -> tuple[tuple[int, ...], int]:
        sizes = self.sizes(op.rows)
        return sizes, self._encoding.nbytes(len(op.keys or b""))

    def sizes(self, rows: KeyRange) -> tuple[int, ...]:
        return (self._encoding.nbytes(1),)

    def land(self, op: PullOp, sizes: tuple[int, ...], data: memoryview) -> bool:
        into = self._into(op).view(-1, self.spec.width).numpy()
        self._encoding.decode(np.frombuffer(data, np.uint8), into)
        return True


class PulledDifferences(Pulled):
    """Decodes differences, which it adds to the rows that this worker has had.

    A fragment whose difference leads from other rows than these comes whole with the next request.
    """

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self._differences = Differences(spec)
        self._values = torch.empty(0, dtype=DTYPES[spec.dtype])  # of all rows, once some came
        self._names = [NO_NAME] * len(spec.fragments())
        self._lock = Lock()  # a client's threads may pull from one table

    def takes(self, op: PullOp, out: memoryview) -> bool:
        size, rows = self.spec.fragment_rows, op.rows
        whole = not rows.start % size and (not rows.stop % size or rows.stop == self.spec.rows)
        return whole and super().takes(op, out)

    def _numbered(self, rows: KeyRange) -> list[tuple[int, Fragment]]:
        return list(enumerate(self._differences.cut(rows), rows.start // self.spec.fragment_rows))

    def sizes(self, rows: KeyRange) -> tuple[int, ...]:
        with self._lock:
            return tuple(
                fragment.nbytes
                if self._names[number] != NO_NAME
                else self._differences.whole_bytes(fragment)
                for number, fragment in self._numbered(rows)
            )

    def land(self, op: PullOp, sizes: tuple[int, ...], data: memoryview) -> bool:
        with self._lock:
            return self._land(op, sizes, data)

    def _land(self, op: PullOp, sizes: tuple[int, ...], data: memoryview) -> bool:
        if not len(self._values):
            self._values = torch.empty(self.spec.rows * self.spec.width, dtype=self._values.dtype)
        into, at, all_there = self._into(op), 0, True
        start = op.rows.start * self.spec.width
        for (number, fragment), size in zip(self._numbered(op.rows), sizes, strict=True):
            some = data[at : at + size]
            at += size
            first = start + fragment.first
            reference = self._values[first : first + fragment.length]
            if self._move(number, fragment, some, reference):
                into[fragment.first : fragment.first + fragment.length] = reference
            else:
                self._names[number] = NO_NAME
                all_there = False
        return all_there

    def _move(self, number: int, fragment: Fragment, data: memoryview, reference: Tensor) -> bool:
        """Make what a worker has of a fragment what has come; return whether it could."""
        if not fragment.pieces:
            reference.copy_(torch.frombuffer(data, dtype=reference.dtype))
            return True
        names, had = Names.of(data), self._names[number]
        if len(data) == self._differences.whole_bytes(fragment):
            reference.copy_(torch.frombuffer(data[HEAD_BYTES:], dtype=reference.dtype))
        elif had in (NO_NAME, names.after):  # nothing to move from, or there already
            return had != NO_NAME
        elif had == names.before:
            self._names[number] = NO_NAME  # until all of it is there
            self._differences.decode(fragment, data, reference)
        else:
            return False
        self._names[number] = names.after
        return True


def is_whole(spec: TableSpec, op: PushOp | PullOp, buffer: memoryview) -> bool:
    """Return whether an operation is on all of some rows; what is invalid is refused later."""
    fits = spec.keys.covers(op.rows) and not Layout(spec).problem(len(op.rows), buffer)
    return op.keys is None and not op.slots and len(op.rows) > 0 and fits


def has_keys(spec: TableSpec, op: PushOp | PullOp, buffer: memoryview) -> bool:
    """Return whether an operation names keys, and its buffer has their rows."""
    return (
        op.keys is not None and len(op.keys) > 0 and not Layout(spec).problem(len(op.keys), buffer)
    )
