"""Exchanges of tensors: translates a client's calls to operations on rows and bytes.

Training pushes and pulls the same few tensors in every step. An exchange of whole tables is cached
while its tensors live, so that neither the checks nor the routing are repeated.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.client.options import After
from shoal.errors import BufferInUse, InvalidValue
from shoal.keys import KeyRange
from shoal.node.future import Finish, Future
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.protocol.views import View
from shoal.tables.dense.rows import DTYPES
from shoal.tables.spec import TableSpec
from shoal.tables.values import Lens, bytes_of, check_values

if TYPE_CHECKING:
    from shoal.client.custom_calls import Calls

Keys = KeyRange | Tensor | np.ndarray | Sequence[int] | None
Key = tuple[Any, ...]
Memory = tuple[int, int, torch.dtype, bool]  # address, elements, dtype, contiguous
CACHED_MAX = 256


class _CachedExchange(msgspec.Struct, eq=False):
    """An exchange with the memory of its tensors; it is dropped when one of them is freed.

    The cache key has the tensors' identities. A tensor may still have other memory than before,
    after `t.data = ...`.
    """

    ask: Exchange
    refs: tuple[weakref.ref[Tensor], ...]
    first: Memory
    second: Memory

    def fits(self, first: Tensor, second: Tensor) -> bool:
        return _memory(first) == self.first and (second is first or _memory(second) == self.second)


class Exchanges:
    """Builds exchanges; the arguments are those of `Client.push`, `pull` and `push_pull`."""

    def __init__(
        self,
        table: Callable[[str], TableSpec],
        view: Callable[[], View],
        incarnation: Callable[[], int],
    ) -> None:
        self._table = table
        self._view = view
        self._incarnation = incarnation
        self._calls: Calls | None = None
        self._cache: dict[Key, _CachedExchange] = {}

    def push(
        self,
        table: str,
        values: Tensor,
        keys: Keys = None,
        *,
        within: KeyRange | None = None,
        weight: float = 1.0,
        lr: float | None = None,
        assign: bool = False,
        lens: Lens = None,
        cmd: int = 0,
        after: After = (),
        timeout_s: float | None = None,
    ) -> Exchange:
        key: Key | None = None
        if keys is None and not after:
            key = (table, id(values), weight, lr, assign, timeout_s)
            cached = self._cache.get(key)
            if cached is not None and cached.fits(values, values):
                return cached.ask
        spec = self._custom(table, lens is not None or bool(cmd))
        if spec is not None:
            if assign or within is not None or lr is not None or weight != 1.0:
                raise InvalidValue(
                    f"table {table!r} is custom: a push to it has the options lens and cmd only"
                )
            ask = self.calls.push(spec, values, keys, lens, cmd)
            return msgspec.structs.replace(ask, after=ids_of(after), timeout_s=timeout_s)
        op = self._push_op(table, values, keys, within, assign)
        ask = Exchange(
            (msgspec.structs.replace(op, lr=_rate(lr)),),
            weight=_weight(weight),
            assign=assign,
            after=ids_of(after),
            timeout_s=timeout_s,
        )
        if key is not None:
            self._remember(key, ask, (values,))
        return ask

    def pull(
        self,
        table: str,
        keys: Keys = None,
        out: Tensor | None = None,
        *,
        cmd: int = 0,
        exact: bool = False,
        after: After = (),
        timeout_s: float | None = None,
    ) -> tuple[Exchange, Finish]:
        if keys is None and out is not None and not after:
            key = (table, id(out), exact, timeout_s)
            cached = self._cache.get(key)
            if cached is None or not cached.fits(out, out):
                op, _ = self._pull_op(table, None, out, exact)
                ask = Exchange(pulls=(op,), timeout_s=timeout_s)
                cached = self._remember(key, ask, (out,))
            return cached.ask, lambda: out
        spec = self._custom(table, bool(cmd))
        if spec is not None:
            if out is not None:
                raise InvalidValue(
                    f"table {table!r} is custom: its pulls return any number of values; leave out "
                    "`out`"
                )
            ask, called = self.calls.pull(spec, keys, cmd)
            ask = msgspec.structs.replace(ask, after=ids_of(after), timeout_s=timeout_s)
            return ask, called
        op, finish = self._pull_op(table, keys, out, exact)
        return Exchange(pulls=(op,), after=ids_of(after), timeout_s=timeout_s), finish

    def push_pull(
        self,
        table: str,
        values: Tensor,
        keys: Keys = None,
        out: Tensor | None = None,
        *,
        advance: bool = False,
        weight: float = 1.0,
        lr: float | None = None,
        after: After = (),
        timeout_s: float | None = None,
    ) -> tuple[Exchange, Finish]:
        key: Key | None = None
        if keys is None and out is not None and not after:
            key = (table, id(values), id(out), advance, weight, lr, timeout_s)
            cached = self._cache.get(key)
            if cached is not None and cached.fits(values, out):
                return cached.ask, lambda: out
        push, pull, finish = self._both_ops(table, values, keys, out)
        ids = ids_of(after)
        push = msgspec.structs.replace(push, lr=_rate(lr))
        ask = Exchange((push,), advance, (pull,), ids, timeout_s, _weight(weight))
        if key is not None and out is not None:
            self._remember(key, ask, (values, out))
        return ask, finish

    def _remember(self, key: Key, ask: Exchange, tensors: tuple[Tensor, ...]) -> _CachedExchange:
        def forget(_: object) -> None:
            self._cache.pop(key, None)

        refs = tuple(weakref.ref(tensor, forget) for tensor in tensors)
        cached = _CachedExchange(ask, refs, _memory(tensors[0]), _memory(tensors[-1]))
        if len(self._cache) >= CACHED_MAX:
            self._cache.clear()
        self._cache[key] = cached
        return cached

    # ------------------------------------------------------------------ operations

    @property
    def calls(self) -> Calls:
        """The calls of custom tables; imported on first use, because they need numba."""
        if self._calls is None:
            from shoal.client.custom_calls import Calls

            self._calls = Calls(self._view, self._incarnation)
        return self._calls

    def request(self, table: str, group: str, head: int, body: bytes) -> tuple[Exchange, Finish]:
        spec = self._table(table)
        if spec.kind != "custom":
            raise InvalidValue(
                f"table {table!r} is {spec.kind}: only the handlers of custom tables take requests"
            )
        return self.calls.request(spec, group, head, body)

    def _custom(self, table: str, called: bool) -> TableSpec | None:
        """Return a custom table's specification, or None for a table of another kind.

        called:  whether lens or cmd is given, which other tables refuse
        """
        spec = self._table(table)
        if spec.kind == "custom":
            return spec
        if called:
            raise InvalidValue(
                f"table {table!r} is {spec.kind}: the options lens and cmd are for custom tables"
            )
        return None

    def _push_op(
        self, table: str, values: Tensor, keys: Keys, within: KeyRange | None, assign: bool
    ) -> PushOp:
        spec = self._table(table)
        if spec.sparse:
            from shoal.client.sparse.exchanges import Batch, push_op

            if within is not None:
                raise InvalidValue(
                    f"table {table!r} is sparse: the option within is for dense tables"
                )
            return push_op(spec, Batch(spec, keys, self._view()), values, assign)
        check_values(spec, values)
        if keys is None or isinstance(keys, KeyRange):
            return PushOp(table, spec.keys if keys is None else keys, bytes_of(values))
        chosen, order = _sorted_keys(keys)
        rows = values.reshape(len(order), spec.width)
        if len(chosen) < len(order):
            merged = torch.zeros((len(chosen), spec.width), dtype=rows.dtype)
            merged.index_add_(0, torch.from_numpy(order), rows)
            rows = merged
        else:
            rows = rows[torch.from_numpy(np.argsort(order))]
        return PushOp(
            table, spec.keys if within is None else within, bytes_of(rows.contiguous()), chosen.data
        )

    def _both_ops(
        self, table: str, values: Tensor, keys: Keys, out: Tensor | None
    ) -> tuple[PushOp, PullOp, Finish]:
        spec = self._table(table)
        if spec.kind == "custom":
            raise InvalidValue(
                f"table {table!r} is custom: push_pull is for other tables; call push, then pull"
            )
        if spec.sparse:
            from shoal.client.sparse.exchanges import Batch, pull_op, push_op

            batch = Batch(spec, keys, self._view())
            return push_op(spec, batch, values), *pull_op(spec, batch, out)
        return self._push_op(table, values, keys, None, False), *self._pull_op(table, keys, out)

    def _pull_op(
        self, table: str, keys: Keys, out: Tensor | None, exact: bool = False
    ) -> tuple[PullOp, Finish]:
        spec = self._table(table)
        if spec.sparse:
            from shoal.client.sparse.exchanges import Batch, pull_op

            return pull_op(spec, Batch(spec, keys, self._view()), out, exact)
        plain = keys is None or isinstance(keys, KeyRange)
        rows = keys if isinstance(keys, KeyRange) else spec.keys
        if not plain:
            chosen, order = _sorted_keys(keys)
        count_rows = len(rows) if plain else len(order)
        if out is None:
            out = torch.empty((count_rows, *spec.row_shape), dtype=DTYPES[spec.dtype])
        check_values(spec, out)
        if out.numel() != count_rows * spec.width:
            raise InvalidValue(
                f"table {table!r}: {count_rows} rows of {spec.width} do not fit a tensor of shape "
                f"{tuple(out.shape)}"
            )
        target = out
        if plain:
            return PullOp(table, rows, bytes_of(target), exact=exact), lambda: target
        staged = torch.empty((len(chosen), spec.width), dtype=out.dtype)
        index = torch.from_numpy(order)

        def finish() -> Tensor:
            target.detach().view(len(order), spec.width).copy_(staged[index])
            return target

        return PullOp(table, spec.keys, bytes_of(staged), chosen.data), finish


def ids_of(futures: After) -> tuple[int, ...]:
    """Return the ids of the requests of one or several futures."""
    if isinstance(futures, Future):
        return (futures.request_id,)
    return tuple(future.request_id for future in futures)


def _weight(weight: float) -> float:
    if not 0 < float(weight) < inf:
        raise InvalidValue(f"a push's weight is a finite number > 0, not {weight}")
    return float(weight)


def _rate(lr: float | None) -> float | None:
    if lr is None:
        return None
    if not 0 <= float(lr) < inf:
        raise InvalidValue(f"a push's lr is a finite number >= 0, not {lr}")
    return float(lr)


def _memory(tensor: Tensor) -> Memory:
    return tensor.data_ptr(), tensor.numel(), tensor.dtype, tensor.is_contiguous()


def _sorted_keys(keys: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys in ascending order, and for each given key its index among them."""
    if not isinstance(keys, Tensor | np.ndarray | Sequence) or isinstance(keys, str):
        raise InvalidValue(
            f"keys are None, a KeyRange or a list of row numbers, not a {type(keys).__name__}"
        )
    given = np.asarray(keys)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidValue(f"keys are a list of row numbers, not {given.dtype} of {given.shape}")
    chosen, order = np.unique(given.astype(np.int64), return_inverse=True)
    return chosen, order


def watch_buffers(request: Exchange, finish: Finish | None) -> Finish:
    """Return `finish` with a check that the pushed buffers were not written to meanwhile."""
    before = [zlib.crc32(op.values) for op in request.pushes]

    def check() -> Any:
        for op, checksum in zip(request.pushes, before, strict=True):
            if zlib.crc32(op.values) != checksum:
                raise BufferInUse(
                    f"the values pushed to table {op.table!r} were written to before the push was "
                    "acknowledged; wait for its future first, or push a copy"
                )
        return finish() if finish is not None else None

    return check
