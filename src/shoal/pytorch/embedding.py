"""Embeddings whose rows live on servers, in sparse tables: `shoal.nn`.

A forward pass pulls the rows of its batch, each once, as a leaf of the graph; `backward` leaves
their gradients there, and `push` sends them to the table's access method, which is the optimizer.
So no process ever holds more than the rows of a batch, and dense parameters of the same module go
on training in whatever way they do.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from shoal.client.client import Client
from shoal.client.context import Context, current
from shoal.client.sparse_exchanges import Batch, pull_op, push_op
from shoal.errors import InvalidValue, UsageError
from shoal.node.driver import Future
from shoal.protocol.requests import Exchange
from shoal.tables.dense.shard import DTYPES
from shoal.tables.sparse.distinct import distinct
from shoal.tables.spec import Access, Consistency, Init, TableSpec, asp

PENDING_MOST = 1000


class _Lookup:
    """The rows that one forward pass uses.

    ids:      as they were asked for
    keys:     (n,) uint64, each once, without the padding
    numbers:  for each id its row
    rows:     (n, dim), or (n + 1, dim) with the padding's zeros last; a leaf
    version:  of the ids, which may be changed in place
    """

    def __init__(self, ids: Tensor, padding_idx: int | None) -> None:
        self.ids = ids
        self.version = ids._version
        flat = ids.detach().reshape(-1).to("cpu", torch.int64).numpy()
        self.keys, numbers = distinct(flat.view(np.uint64))
        self.padding: int | None = None
        if padding_idx is not None:
            found = np.flatnonzero(self.keys == np.uint64(padding_idx % (1 << 64)))
            if len(found):
                at = int(found[0])
                last = len(self.keys) - 1
                self.keys = np.delete(self.keys, at)
                moved = np.arange(last + 1)
                moved[at], moved[at + 1 :] = last, moved[at + 1 :] - 1
                numbers = moved[numbers]
                self.padding = last
        self.numbers = torch.from_numpy(numbers.astype(np.int64)).view(ids.shape)
        self.rows = torch.empty(0)

    def fill(self, rows: Tensor) -> None:
        if self.padding is not None:
            rows = torch.cat([rows, rows.new_zeros((1, rows.shape[1]))])
        self.rows = rows


class Embedding(torch.nn.Module):
    """`torch.nn.Embedding` on servers: int64 ids of any shape to rows, (*, embedding_dim).

    Rows come into being when their id is first used, from `init` and the id alone, so that ids may
    be hashes: any 64 bits. The gradient of a row is the sum over its uses in a batch.

    Args:
        num_embeddings: ids are below it; None for any 64-bit id.
        embedding_dim: elements of a row.
        padding_idx: its row is zeros, and never trained.
        table: its name on the servers; modules that name the same one share its rows. All workers
            make their modules in the same order, or give names.
        access: the optimizer of the rows (`shoal list tables`).
        init: what new rows are; torch's default, normal(0, 1), with a seed of the table's name.
        consistency: asp(), or what the run's other tables have.
        merge: how the gradients of one round are joined: "mean" (by weights) or "sum".
        dtype: torch.float32 or torch.float64.
        max_rows: rows in the servers' memory, 0 for no bound; `evict` says which make room for new
            ones: "lru", updated least recently, or "lfu", updated least frequently.

    Raises:
        InvalidValue: an id out of range, or not an integer.
        UsageError: gradients of a thousand batches have not been pushed.

    Example:
        >>> words = shoal.nn.Embedding(None, 16)                          # doctest: +SKIP
        >>> loss = (words(torch.tensor([[3, 17], [3, 99]])) ** 2).mean()  # doctest: +SKIP
        >>> loss.backward()                                               # doctest: +SKIP
        >>> shoal.nn.push(words)                                          # doctest: +SKIP
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        table: str = "",
        access: Access | None = None,
        init: Init | None = None,
        consistency: Consistency | None = None,
        merge: Literal["mean", "sum"] = "mean",
        dtype: torch.dtype = torch.float32,
        max_rows: int = 0,
        evict: Literal["lru", "lfu"] = "lru",
        context: Context | None = None,
    ) -> None:
        super().__init__()
        if num_embeddings is not None and num_embeddings < 1:
            raise InvalidValue(f"num_embeddings is None or at least 1, not {num_embeddings}")
        if padding_idx is not None and num_embeddings is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise InvalidValue(f"padding_idx {padding_idx} is not within num_embeddings")
            padding_idx %= num_embeddings
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self._context = context or current()
        if not table:
            table = f"embedding{self._context.models or ''}"
            self._context.models += 1
        names = {kind: name for name, kind in DTYPES.items()}
        spec = TableSpec(
            table,
            0,
            (embedding_dim,),
            names.get(dtype, str(dtype)),
            init or Init("normal", 0.0, 1.0, zlib.crc32(table.encode())),
            access or Access("adagrad", {"lr": 0.01}),
            consistency or asp(),
            merge,
            kind="sparse",
            max_rows=max_rows,
            evict=evict,
        )
        self.spec = self.client.create_table(spec)
        self.pending: list[tuple[np.ndarray, Tensor]] = []  # keys, and rows that have gradients
        self._ahead: _Lookup | None = None

    @property
    def client(self) -> Client:
        return self._context.client

    def forward(self, ids: Tensor) -> Tensor:
        lookup = self._look_up(ids)
        return functional.embedding(lookup.numbers, lookup.rows, lookup.padding)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, table={self.spec.name!r}"

    def _look_up(self, ids: Tensor) -> _Lookup:
        ahead = self._ahead
        if ahead is None or ahead.ids is not ids or ahead.version != ids._version:
            prefetch((self, ids))
        lookup, self._ahead = self._ahead, None
        assert lookup is not None
        if torch.is_grad_enabled():
            if len(self.pending) >= PENDING_MOST:
                raise UsageError(
                    f"table {self.spec.name!r} has gradients of {PENDING_MOST} batches that were "
                    "not pushed: call shoal.nn.push(model) after backward"
                )
            keys = lookup.keys
            lookup.rows.requires_grad_()
            hook: Any = lookup.rows.register_post_accumulate_grad_hook
            hook(lambda rows: self._landed(keys, rows))
        return lookup

    def _landed(self, keys: np.ndarray, rows: Tensor) -> None:
        """`backward` has been here."""
        if not any(known is rows for _, known in self.pending):
            self.pending.append((keys, rows))

    def _wanted(self, ids: Tensor) -> _Lookup:
        if not isinstance(ids, Tensor):
            raise InvalidValue(
                f"table {self.spec.name!r}: ids are a torch.Tensor, not a {type(ids).__name__}"
            )
        if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise InvalidValue(f"table {self.spec.name!r}: ids are integers, not {ids.dtype}")
        most = self.num_embeddings
        if most is not None and ids.numel():
            low, high = (int(each) for each in torch.aminmax(ids))
            if low < 0 or high >= most:
                wrong = low if low < 0 else high
                raise InvalidValue(
                    f"table {self.spec.name!r}: id {wrong} is not below num_embeddings={most}"
                )
        return _Lookup(ids, self.padding_idx)


class EmbeddingBag(Embedding):
    """`torch.nn.EmbeddingBag` on servers: the sum or mean of each bag's rows, (bags, dim).

    Args:
        mode: "sum" or "mean".
        options: as `Embedding` has them.

    Call it with ids (bags, n); or with flat ids and `offsets`, where each bag begins. With
    `per_sample_weights`, shaped as the ids, a bag is the weighted sum (mode "sum" only).
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mode: Literal["sum", "mean"] = "mean",
        **options: Any,
    ) -> None:
        if mode not in ("sum", "mean"):
            raise InvalidValue(f"an EmbeddingBag's mode is 'sum' or 'mean', not {mode!r}")
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        self.mode = mode

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        lookup = self._look_up(ids)
        return functional.embedding_bag(
            lookup.numbers,
            lookup.rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            padding_idx=lookup.padding,
        )


Wanted = tuple[Embedding, Tensor]


def prefetch(*wanted: Wanted) -> None:
    """Pull the rows that modules are about to use, in one message a server for all of them.

    The next call of each module with that very tensor uses them.

    >>> shoal.nn.prefetch((users, user_ids), (items, item_ids))          # doctest: +SKIP
    >>> score = (users(user_ids) * items(item_ids)).sum(1)               # doctest: +SKIP
    """
    if wanted:
        _exchange((), wanted, 1.0, wanted[0][0].client)


def push(
    *modules: torch.nn.Module, weight: float = 1.0, then: Sequence[Wanted] = ()
) -> Future | None:
    """Send the gradients of all embeddings in `modules`, in one message a server.

    The future is done when they are applied; nobody has to wait for it, for a later pull of the
    same table comes after. None where there was nothing to send. Call it before the optimizer's
    `step` where the tables are bsp() or ssp(): that is what ends the clock.

    weight: of this worker's gradients in a round's mean, such as its batch size
    then:   what the next batch looks up, as `prefetch` has it: it comes back with the answer, so
            that a step takes one message. This waits for it. For tables that are asp()

    Raises:
        NotFinite: a gradient has a NaN or an infinity; nothing was sent, and it is forgotten
    """
    gradients: dict[str, list[tuple[np.ndarray, Tensor]]] = {}
    specs: dict[str, TableSpec] = {}
    for each in _embeddings(modules):
        for keys, rows in each.pending:
            if rows.grad is not None:
                specs[each.spec.name] = each.spec
                found = keys, rows.grad[: len(keys)]  # without the padding's
                gradients.setdefault(each.spec.name, []).append(found)
                rows.grad = None  # another backward through these rows is another gradient
        each.pending.clear()
    pushes = []
    for name, several in gradients.items():
        keys = np.concatenate([keys for keys, _ in several])
        pushes.append((specs[name], keys, torch.cat([grad for _, grad in several])))
    if not pushes and not then:
        return None
    if not modules:
        raise UsageError("shoal.nn.push needs the modules whose gradients it is to send")
    client = then[0][0].client if then else _embeddings(modules)[0].client
    return _exchange(pushes, then, weight, client)


def _exchange(
    pushes: Sequence[tuple[TableSpec, np.ndarray, Tensor]],
    wanted: Sequence[Wanted],
    weight: float,
    client: Client,
) -> Future:
    """Push, and pull; waits where there is something to pull."""
    view = client.view
    lookups = [module._wanted(ids) for module, ids in wanted]
    pulls = [
        pull_op(module.spec, Batch(module.spec, lookup.keys, view), None)
        for (module, _), lookup in zip(wanted, lookups, strict=True)
    ]
    ops = [push_op(spec, Batch(spec, keys, view), values) for spec, keys, values in pushes]
    future = client.exchange(
        Exchange(tuple(ops), False, tuple(op for op, _ in pulls), weight=weight)
    )
    if wanted:
        future.wait()
    for (module, _), lookup, (_, finish) in zip(wanted, lookups, pulls, strict=True):
        lookup.fill(finish())
        module._ahead = lookup
    return future


def _embeddings(modules: Iterable[torch.nn.Module]) -> list[Embedding]:
    found = [part for each in modules for part in each.modules() if isinstance(part, Embedding)]
    return list(dict.fromkeys(found))
