"""Embeddings whose rows are in sparse tables on servers: `shoal.nn`.

A forward pass pulls the distinct rows of its batch as a leaf of the autograd graph. `backward`
leaves their gradients there, and `push` sends the gradients to the table's access method
(server-side optimizer). A worker never holds more than the rows of a batch, and the dense
parameters of the same model train in any other way.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from shoal.client.client import Client
from shoal.client.context import Context, current
from shoal.client.sparse.exchanges import Batch, pull_op, push_op
from shoal.errors import InvalidValue, UsageError
from shoal.node.future import Future
from shoal.protocol.requests import Exchange
from shoal.pytorch.lookup import Lookup, version_of
from shoal.tables.consistency import Consistency, asp
from shoal.tables.dense.rows import DTYPES
from shoal.tables.init import Init
from shoal.tables.spec import Access, TableSpec

PENDING_MOST = 1000
PENDING_USUAL = 2  # then a warning comes, once: a push was forgotten, or gradients are added up
DEFAULT_STD = 0.05
PUSH_ROWS = 1 << 16  # in one request
NOT_HERE = {  # options of torch's modules, and why not
    "max_norm": "rows are changed by their access method only",
    "norm_type": "it belongs to max_norm",
    "scale_grad_by_freq": "scale the loss instead",
    "device": "rows are in the servers' memory",
    "_weight": "use from_pretrained",
    "_freeze": "use from_pretrained",
}


class Embedding(torch.nn.Module):
    """`torch.nn.Embedding` with its rows in a sparse table: integer ids to rows.

    Calling the module maps ids of any shape S to a tensor (S, embedding_dim). A row is created when
    its id is first used, from `init` and the id alone, so that ids may be 64-bit hashes. The
    gradient of a row is the sum over its uses in a batch. `shoal.Optimizer.step` or
    `shoal.nn.push` sends it.

    Args:
        num_embeddings: the bound of the ids, which are in [0, num_embeddings); None for any 64-bit
            id.
        embedding_dim: the number of elements per row.
        padding_idx: the id whose row is zero and never trained.
        table: the name of the table; modules with the same name share its rows. Numbered by
            default, so that all workers have to construct their modules in the same order.
        access: the access method of the rows; Access("adagrad", {"lr": 0.01}) by default.
        init: the initial rows; N(0, 0.05²) with the table name's CRC-32 as seed by default. torch's
            default is N(0, 1), which AdaGrad's small steps take long to leave:
            `shoal.tables.Init.normal()`.
        consistency: the consistency of the table; asp() by default.
        merge: the merge of the gradients of one round: "mean" (weighted) or "sum".
        dtype: the dtype of the rows: torch.float32 or torch.float64.
        max_rows: the bound on the rows in the servers' memory; 0 for no bound.
        evict: the row that makes room for a new one: "lru", pushed least recently, or "lfu", pushed
            least frequently.
        key_lists: "cached" if servers keep lists of ids, so that a batch that comes again names its
            list by a digest.
        codec: the codec of the gradients of rows, such as "int:8" or "fp16"; "" for none.
        server_codec: the same of the rows that are looked up.
        context: the context of `shoal.init()` by default.
        options: torch's other options. `sparse` is accepted: gradients are always sparse. The
            others are refused by name if they are set.

    Attributes:
        frozen: whether the rows are not trained (`from_pretrained`).

    Raises:
        InvalidValue: an argument out of its range; when called, an id out of range or no integer.
        UsageError: when called, the gradients of 1,000 batches have not been pushed.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> sgd = shoal.tables.Access("sgd", {"lr": 1.0})
        >>> ones = shoal.tables.Init("constant", 1.0)
        >>> words = shoal.nn.Embedding(None, 2, access=sgd, init=ones, table="docs/words")
        >>> words(torch.tensor([3, 99, 3])).sum().backward()
        >>> shoal.nn.push(words).wait()
        >>> words(torch.tensor([3, 99])).tolist()
        [[-1.0, -1.0], [0.0, 0.0]]

    References:
        Li et al. 2014, section 3.2 (range-based push and pull of sparse models).
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
        key_lists: Literal["sent", "cached"] = "sent",
        codec: str = "",
        server_codec: str = "",
        context: Context | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        _check_options(type(self).__name__, options)
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
            init or Init.normal(std=DEFAULT_STD, seed=zlib.crc32(table.encode())),
            access or Access("adagrad", {"lr": 0.01}),
            consistency or asp(),
            merge,
            kind="sparse",
            max_rows=max_rows,
            evict=evict,
            key_lists=key_lists,
            codec=codec,
            server_codec=server_codec,
        )
        self.spec = self.client.create_table(spec)
        self._warned = False
        self.frozen = False
        self.pending: list[tuple[np.ndarray, Tensor]] = []  # keys, and rows that have gradients
        self._ahead: Lookup | None = None
        self._context.embeddings.add(self)

    @property
    def client(self) -> Client:
        """The client of the module's context."""
        return self._context.client

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of integer ids of any shape S, as (S, embedding_dim)."""
        lookup = self._look_up(ids)
        return functional.embedding(lookup.numbers, lookup.rows, lookup.padding)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> Self:
        """Make a module with these rows.

        All workers call it; the rows of the worker of the lowest rank go to the servers.

        Args:
            embeddings: the (num_embeddings, embedding_dim) rows of the ids from 0 on.
            freeze: whether the rows are not trained, as in torch by default.
            padding_idx: the id whose row is zero and never trained.
            options: the other arguments of the module.

        Raises:
            InvalidValue: `embeddings` is no matrix.

        Example:
            >>> import shoal, torch
            >>> context = shoal.init()
            >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
            >>> words = shoal.nn.Embedding.from_pretrained(rows, table="docs/pretrained")
            >>> words(torch.tensor([1])).tolist()
            [[3.0, 4.0]]
        """
        if embeddings.dim() != 2:
            raise InvalidValue(f"embeddings are a matrix of rows, not {tuple(embeddings.shape)}")
        made = cls(len(embeddings), embeddings.shape[1], padding_idx, **options)
        client, rows = made.client, embeddings.detach().to(DTYPES[made.spec.dtype])
        if client.rank == client.first_rank:
            for start in range(0, len(rows), PUSH_ROWS):
                some = rows[start : start + PUSH_ROWS].contiguous()
                keys = range(start, start + len(some))
                client.push(made.spec.name, some, keys, assign=True).wait()
        client.barrier(f"{made.spec.name} pretrained")
        made.frozen = freeze
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Embedding:
        raise UsageError(self._not_copied("copied"))

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError(self._not_copied("pickled"))

    def _not_copied(self, how: str) -> str:
        return (
            f"rows of table {self.spec.name!r} are on servers and cannot be {how} with the module: "
            "shoal.save(model, folder) writes all of a model, and shoal.load reads it into another "
            "one; a module with the same `table` shares the rows"
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, table={self.spec.name!r}"

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        warnings.warn(
            f"this state_dict has no rows of table {self.spec.name!r}, which are on servers: "
            "shoal.save(model, folder) saves all of a model",
            stacklevel=2,
        )

    def _look_up(self, ids: Tensor) -> Lookup:
        ahead = self._ahead
        if ahead is None or ahead.ids is not ids or ahead.version != version_of(ids):
            prefetch((self, ids))
        lookup, self._ahead = self._ahead, None
        assert lookup is not None
        if torch.is_grad_enabled() and not self.frozen:
            if len(self.pending) >= PENDING_MOST:
                raise UsageError(
                    f"table {self.spec.name!r} has gradients of {PENDING_MOST} batches that were "
                    "not pushed: call shoal.nn.push(model) after each backward"
                )
            if len(self.pending) == PENDING_USUAL and not self._warned:
                self._warned = True
                warnings.warn(
                    f"table {self.spec.name!r} has gradients of {PENDING_USUAL} batches that were "
                    "not pushed: step a shoal.Optimizer, or call shoal.nn.push(model), after each "
                    "backward",
                    stacklevel=4,
                )
            keys = lookup.keys
            lookup.rows.requires_grad_()
            hook: Any = lookup.rows.register_post_accumulate_grad_hook
            hook(lambda rows: self._landed(keys, rows))
        return lookup

    def _landed(self, keys: np.ndarray, rows: Tensor) -> None:
        """Note that `backward` has computed the gradients of these rows."""
        if not any(known is rows for _, known in self.pending):
            self.pending.append((keys, rows))

    def _wanted(self, ids: Tensor) -> Lookup:
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
        return Lookup(ids, self.padding_idx)


Wanted = tuple[Embedding, Tensor]


def prefetch(*wanted: Wanted) -> None:
    """Pull the rows of several modules' next lookups, in one message per server.

    The next call of each module uses these rows if its ids are the same tensor object, unchanged.

    Args:
        wanted: the pairs (module, ids).

    Raises:
        InvalidValue: an id out of range, or not an integer.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> users = shoal.nn.Embedding(None, 2, table="docs/users")
        >>> items = shoal.nn.Embedding(None, 2, table="docs/items")
        >>> user_ids, item_ids = torch.tensor([1, 2]), torch.tensor([7, 7])
        >>> shoal.nn.prefetch((users, user_ids), (items, item_ids))
        >>> (users(user_ids) * items(item_ids)).sum(1).shape
        torch.Size([2])
    """
    if wanted:
        _exchange((), wanted, 1.0, wanted[0][0].client)


def push(
    *modules: torch.nn.Module, weight: float = 1.0, then: Sequence[Wanted] = ()
) -> Future | None:
    """Push the gradients of all embeddings in `modules`, in one message per server.

    A later pull of the same table sees the push, so that waiting for the future is optional. With
    tables that are bsp() or ssp() call it before `Optimizer.step`, which ends the clock.

    Args:
        modules: the modules that contain embeddings.
        weight: the weight of this worker's gradients in the round's mean, such as its batch size.
        then: the pairs (module, ids) of the next batch, whose rows come back in the same message,
            as with `prefetch`; for asp() tables. The call waits for them.

    Returns:
        A future, done when the push is applied or accepted for its round; None where there was
        nothing to send.

    Raises:
        NotFinite: a gradient holds a NaN or an infinity; nothing was sent, and the gradients are
            dropped.
        UsageError: `then` without modules.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> words = shoal.nn.Embedding(None, 2, table="docs/pushed")
        >>> words(torch.tensor([5])).sum().backward()
        >>> shoal.nn.push(words).wait()
    """
    gradients: dict[str, tuple[TableSpec, list[np.ndarray], list[Tensor]]] = {}
    for each in embeddings_of(modules):
        for keys, rows in each.pending:
            if rows.grad is not None:
                _, its_keys, grads = gradients.setdefault(each.spec.name, (each.spec, [], []))
                its_keys.append(keys)
                grads.append(rows.grad[: len(keys)])  # without the padding's row
                rows.grad = None  # another backward through these rows is another gradient
        each.pending.clear()
    pushes = [
        (spec, np.concatenate(its_keys), torch.cat(grads))
        for spec, its_keys, grads in gradients.values()
    ]
    if not pushes and not then:
        return None
    if not modules:
        raise UsageError("shoal.nn.push has no modules; give those whose gradients it should push")
    client = then[0][0].client if then else embeddings_of(modules)[0].client
    return _exchange(pushes, then, weight, client)


def _exchange(
    pushes: Sequence[tuple[TableSpec, np.ndarray, Tensor]],
    wanted: Sequence[Wanted],
    weight: float,
    client: Client,
) -> Future:
    """Push and pull in one exchange, and wait if it pulls."""
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


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options of torch's modules that rows on servers do not have, if they are set."""
    for option, value in options.items():
        usual = not isinstance(value, Tensor) and value in (None, False, 2.0)
        if option in NOT_HERE and not usual:
            raise InvalidValue(f"shoal.nn.{name} has no {option}: {NOT_HERE[option]}")
        if option not in NOT_HERE and option != "sparse":
            raise InvalidValue(f"shoal.nn.{name} has no option {option!r}")


def embeddings_of(modules: Iterable[torch.nn.Module]) -> list[Embedding]:
    """Return the embeddings in these modules, each once."""
    found = [part for each in modules for part in each.modules() if isinstance(part, Embedding)]
    return list(dict.fromkeys(found))
