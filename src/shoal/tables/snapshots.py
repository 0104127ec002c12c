"""Snapshots: a shard's rows with their state, in pieces, for a syncing replica."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.errors import AccessFailed
from shoal.keys import KeyRange
from shoal.tables.staging import aligned, data_of


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of some of a shard's rows with their state.

    Attributes:
        rows: the range of the rows.
        keys: the number of keys, or -1 for all rows of the range.
        views: the bytes.
        after: the position of the next piece.
        last: whether this is the last piece.
    """

    rows: KeyRange
    keys: int
    views: tuple[memoryview, ...]
    after: int
    last: bool


class Sample(msgspec.Struct):
    """Rows to compare: all of `rows`, or those of `keys`. The next sample begins at `after`."""

    rows: KeyRange
    keys: np.ndarray | None
    after: int


class StagedSnapshot:
    """Staging memory for a snapshot: tensors of these dtypes and shapes, in order of its views."""

    keys = ()  # keys that were sent are among its tensors
    encoded = None

    def __init__(
        self, rows: KeyRange, parts: Sequence[tuple[torch.dtype, tuple[int, ...]]]
    ) -> None:
        self.rows = rows
        self.kept = False
        self.retained = False
        self.tensors = [_empty(dtype, shape) for dtype, shape in parts]
        self.views: list[memoryview] = [data_of(each) for each in self.tensors if each.numel()]

    def problem(self) -> str:
        return ""


def refuse(table: str, wrong: bool, what: str) -> None:
    """Refuse a snapshot that another replica has sent, if something in it is wrong.

    Raises:
        AccessFailed: something in it is wrong.
    """
    if wrong:
        raise AccessFailed(f"table {table!r}: another server has sent no snapshot of it: {what}")


BY_PLACE = ("keys", "records")  # the tensors that contain only the changed rows


def overlaid(state: Mapping[str, Tensor], changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a shard's state with later changes applied.

    >>> state = {"keys": torch.tensor([7, 8]), "updates": torch.tensor([1])}
    >>> later = {"places": torch.tensor([1, 2]), "keys": torch.tensor([9, 5])}
    >>> overlaid(state, {**later, "updates": torch.tensor([2])})
    {'keys': tensor([7, 9, 5]), 'updates': tensor([2])}
    """
    places = changes["places"]
    found = {name: each for name, each in changes.items() if name != "places"}
    for name in BY_PLACE:
        if name in found:
            before, some = state[name], found[name]
            count = max(len(before), int(places.max()) + 1 if len(places) else 0)
            found[name] = some.new_empty((count, *some.shape[1:]))
            found[name][: len(before)] = before
            found[name][places] = some
    return found


def copied(tensors: Sequence[Tensor]) -> tuple[memoryview, ...]:
    """Return the bytes of copies of these tensors."""
    return tuple(data_of(each.clone()) for each in tensors if each.numel())


def crc32(tensors: Sequence[Tensor], found: int = 0) -> int:
    """Return the CRC-32 of the tensors' bytes, continued from `found`."""
    for each in tensors:
        found = zlib.crc32(data_of(each.contiguous()), found) if each.numel() else found
    return found


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    memory = torch.from_numpy(aligned(int(np.prod(shape)) * dtype.itemsize))
    return memory.view(dtype).view(shape)
