"""Snapshots: a shard's rows with their state, piece by piece, on their way to another copy."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.keys import KeyRange
from shoal.tables.staging import aligned


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of some of a shard's rows, and of all that belongs to them.

    rows, keys:  which, as a part of a push says it
    views:       its bytes
    after:       the position of the next piece
    last:        there is none
    """

    rows: KeyRange
    keys: int
    views: tuple[memoryview, ...]
    after: int
    last: bool


class Sample(msgspec.Struct):
    """Rows to look at: all of `rows`, or those of `keys`. The next ones begin at `after`."""

    rows: KeyRange
    keys: np.ndarray | None
    after: int


class StagedSnapshot:
    """Room for one: tensors of these dtypes and shapes, in the order of its views."""

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


BY_PLACE = ("keys", "records")  # what `changes` of a shard has of some rows only


def overlaid(state: Mapping[str, Tensor], changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A shard's state with what has changed since.

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
    """Their bytes, which nobody changes any more."""
    return tuple(data_of(each.clone()) for each in tensors if each.numel())


def data_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor that lies in one piece."""
    data: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
    return data


def crc32(tensors: Sequence[Tensor], found: int = 0) -> int:
    """Of their bytes, one after the other, after what has been `found` before."""
    for each in tensors:
        found = zlib.crc32(data_of(each.contiguous()), found) if each.numel() else found
    return found


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    memory = torch.from_numpy(aligned(int(np.prod(shape)) * dtype.itemsize))
    return memory.view(dtype).view(shape)
