"""Operations on sparse tables: any list of keys, of which each distinct key is sent once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.jit import U
from shoal.protocol.requests import PullOp, PushOp
from shoal.protocol.views import View
from shoal.tables.dense.rows import DTYPES
from shoal.tables.sparse.distinct import by_slot, distinct
from shoal.tables.sparse.optimizers import RowMethod, row_methods
from shoal.tables.sparse.records import scatter
from shoal.tables.spec import TableSpec
from shoal.tables.values import bytes_of, check_values


class Batch:
    """The distinct keys of a request, ordered by hash slot where several servers have them.

    Attributes:
        chosen: (n,) uint64, the distinct keys.
        numbers: (count,) uint64, for each given key the index in `chosen`.
        named: the keys as operations name them: the memory of `chosen` (the router compares this
            object to see that a push and a pull share their keys), and whether it is in the order
            of slots.
        as_given: whether `chosen` are the given keys, so that no row has to be moved.
    """

    def __init__(self, spec: TableSpec, given: object, view: View) -> None:
        keys = keys_of(spec, given)
        self._kind = row_methods[spec.access.name]
        self.count = len(keys)
        self.chosen, self.numbers = distinct(keys)
        ordered = len(view.placements_of(spec.name)) > 1
        if ordered:
            order = by_slot(self.chosen)
            place = np.empty_like(order)
            place[order] = np.arange(len(order), dtype=np.uint64)
            self.chosen, self.numbers = self.chosen[order], place[self.numbers]
        self.as_given = not ordered and len(self.chosen) == self.count
        self.named = self.chosen.data, ordered

    def merged(self, values: np.ndarray, assign: bool) -> np.ndarray:
        """Return (count, width) values as (n, width): equal keys merged, the last if assigned."""
        if self.as_given:
            return values
        rows = np.zeros((len(self.chosen), values.shape[1]), values.dtype)
        if assign or len(self.chosen) == self.count:
            scatter(rows.reshape(-1), self.numbers, values, U(values.shape[1]))
        else:
            _merger(self._kind).merge(rows, self.numbers, values, 1)
        return rows


@cache
def _merger(kind: type[RowMethod]) -> RowMethod:
    return kind({})  # no method's merge depends on its options


def push_op(spec: TableSpec, batch: Batch, values: Tensor, assign: bool = False) -> PushOp:
    """Return a push of `values`, (n, *row_shape), for a batch of n keys."""
    _check_rows(spec, values, batch.count)
    given = values.detach().cpu().contiguous().numpy().reshape(batch.count, spec.width)
    rows = torch.from_numpy(batch.merged(given, assign))
    return PushOp(spec.name, spec.keys, bytes_of(rows), *batch.named)


def pull_op(
    spec: TableSpec, batch: Batch, out: Tensor | None, exact: bool = False
) -> tuple[PullOp, Callable[[], Tensor]]:
    """Return a pull of the rows of n keys, and a function that returns them as (n, *row_shape)."""
    if out is None:
        out = torch.empty((batch.count, *spec.row_shape), dtype=DTYPES[spec.dtype])
    _check_rows(spec, out, batch.count)
    target, numbers, whole = out, batch.numbers, bytes_of(out)
    if batch.as_given:
        return PullOp(spec.name, spec.keys, whole, *batch.named, exact=exact), lambda: target
    staged = torch.empty((len(batch.chosen), spec.width), dtype=target.dtype)

    def finish() -> Tensor:
        flat = target.detach().view(batch.count, spec.width)
        torch.index_select(staged, 0, torch.from_numpy(numbers.view(np.int64)), out=flat)
        return target

    return PullOp(spec.name, spec.keys, bytes_of(staged), *batch.named, exact=exact), finish


def keys_of(spec: TableSpec, keys: object) -> np.ndarray:
    """Return keys as (n,) uint64; negative int64 keys, such as hashes, keep their 64 bits.

    Raises:
        InvalidValue: the keys are not a one-dimensional list of integers of 64 bits.
    """
    if isinstance(keys, Tensor | np.ndarray):
        try:
            given = np.asarray(keys)
        except (RuntimeError, TypeError) as error:
            raise _no_keys(spec, f"a tensor that numpy cannot read ({error})") from None
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise _no_keys(spec, f"{given.dtype} of shape {given.shape}")
        if given.dtype != np.uint64:
            given = given.astype(np.int64, copy=False).view(np.uint64)
        return np.ascontiguousarray(given)
    if not isinstance(keys, Sequence) or isinstance(keys, str | bytes):
        raise _no_keys(spec, "None" if keys is None else f"a {type(keys).__name__}")
    bits = []
    for key in keys:  # numpy would make floats of some lists of integers
        if not isinstance(key, int | np.integer) or not -(1 << 63) <= key < 1 << 64:
            raise _no_keys(spec, f"{key!r}")
        bits.append(int(key) % (1 << 64))
    return np.array(bits, np.uint64)


def _no_keys(spec: TableSpec, given: str) -> InvalidValue:
    return InvalidValue(
        f"table {spec.name!r} is {spec.kind}: its keys are a tensor, array or list of 64-bit "
        f"integers, not {given}"
    )


def _check_rows(spec: TableSpec, values: Tensor, count: int) -> None:
    """Refuse anything but a tensor of `count` rows of the table."""
    check_values(spec, values)
    fits = values.ndim <= 1 or len(values) == count
    if not fits or values.numel() != count * spec.width:
        raise InvalidValue(
            f"table {spec.name!r}: {count} keys need {count} rows of {spec.width} values, not a "
            f"tensor of shape {tuple(values.shape)}"
        )
