"""Sparse optimizers (row methods): access methods of sparse tables, as compiled loops over rows.

    sum, assign                 the update is a value
    sgd, adagrad, adam, ftrl    the update is a gradient

A row and its state are adjacent in one *record* of `stride` elements: the row's `width` elements,
then the state. A dense table's method of the same name computes the same, but here each row has its
own state, including Adam's t.

Below, θ is a row, g its update, and η is the learning rate: the push's `lr`, or the table's
schedule at the number of updates that the shard has had.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar, final

import numpy as np

from shoal.errors import InvalidValue, UnknownName
from shoal.jit import U
from shoal.registry import Registry
from shoal.tables.access import ADAGRAD_LR, ADAM_OPTIONS, ANY_DTYPE, SGD_LR, checked
from shoal.tables.schedules import SCHEDULE_OPTIONS, schedule_lr
from shoal.tables.sparse import records
from shoal.tables.spec import Options, TableSpec

COMPILED = frozenset({"float32", "float64"})
FTRL_LR = 0.1


class RowMethod(ABC):
    """The base class of row methods: how updates change the records of their rows.

    A subclass defines `name`, `options`, `dtypes`, `state` and its loop. It keeps only its
    settings. By default `read` copies the row and `merge` adds updates.

    Args:
        options: the options of the table's `Access`; missing ones take their defaults.

    Attributes:
        update: the loop, (records, places, updates, stride, *scalars); see `tables.sparse.records`.
        scalars: the names of the options that the loop receives, after the rate if there is one.
        creates: whether `create` changes new rows.
        at_once: the number of records that are changed before they are read, which fit the cache;
            0 if all records are changed before one is read.

    Raises:
        UnknownName: an option that this method does not have.
        InvalidValue: a value of the wrong type or out of its range.
    """

    name: ClassVar[str]
    options: ClassVar[Options]
    update: ClassVar[Callable[..., None]]
    scalars: ClassVar[tuple[str, ...]] = ()
    creates = False
    at_once: ClassVar[int] = 1024
    dtypes: ClassVar[frozenset[str]] = COMPILED

    def __init__(self, options: Options) -> None:
        self.settings = checked(self.name, self.options, options)
        self._rate = schedule_lr(self.settings) if "lr" in self.options else None

    def state(self, width: int) -> np.ndarray:
        """Return the initial state of a row of `width` elements, (n,)."""
        return np.empty(0)

    def check(self, spec: TableSpec) -> None:  # noqa: B027
        """Refuse a table that the method cannot use, for another reason than its dtype."""

    def create(  # noqa: B027
        self, rows: np.ndarray, width: int, keys: np.ndarray, seed: int
    ) -> None:
        """Change new records, (n, stride), after the table's Init has filled them."""

    @final
    def apply(
        self,
        memory: np.ndarray,
        places: np.ndarray,
        updates: np.ndarray,
        stride: int,
        step: int,
        lr: float | None,
    ) -> None:
        """Update the records at `places` in place, one after the other.

        Args:
            memory: the records, (m * stride,); the one of a place begins at `place * stride`.
            places: the places, (n,) uint64.
            updates: the updates, (n, width), of the memory's dtype; read only.
            stride: the number of elements per record.
            step: the number of updates that the shard has had before, >= 0.
            lr: the learning rate in place of the schedule's.
        """
        scalars = map(memory.dtype.type, self.values(step, lr))
        self.change(memory, places, updates, U(stride), *scalars)

    @final
    def values(self, step: int, lr: float | None) -> list[Any]:
        """Return the loop's arguments after the stride: the rate, if it has one, and `scalars`."""
        values: list[Any] = [self.settings[option] for option in self.scalars]
        if self._rate is not None:
            values.insert(0, self._rate(step) if lr is None else lr)
        return values

    def change(
        self, memory: np.ndarray, places: np.ndarray, updates: np.ndarray, *rest: Any
    ) -> None:
        """Run the loop with the stride and the scalars."""
        type(self).update(memory, places, updates, *rest)

    def merge(
        self, into: np.ndarray, numbers: np.ndarray, updates: np.ndarray, factor: float
    ) -> None:
        """Merge updates of a round or of equal keys: into[numbers[i]] += factor updates[i]."""
        records.add_rows(into.reshape(-1), numbers, updates, into.dtype.type(factor))

    def read(self, memory: np.ndarray, places: np.ndarray, out: np.ndarray, stride: int) -> None:
        """Fill `out`, (n, width), with the rows of the records at `places`."""
        records.gather(memory, places, out, U(stride))


@final
class SumRows(RowMethod):
    """Sum: add the update, for counters and for workers that push differences.

    Update rule::

        θ ← θ + g

    State: none. It has no options.

    References:
        Dean et al. 2012, section 4.1.
    """

    name = "sum"
    update = records.add
    options: ClassVar[Options] = {}
    dtypes = ANY_DTYPE - {"float16", "bfloat16"}


@final
class AssignRows(RowMethod):
    """Assign: replace the row; the last push wins.

    Update rule::

        θ ← g

    State: none. It has no options.
    """

    name = "assign"
    update = records.scatter
    options: ClassVar[Options] = {}
    dtypes = SumRows.dtypes


@final
class SGDRows(RowMethod):
    """SGD on the rows that a push carries.

    Update rule::

        θ ← θ - η (g + λ θ)

    State: none.

    Keyword Args:
        lr: η, >= 0; 0.01 by default.
        weight_decay: λ, >= 0; 0 by default.

    References:
        Robbins & Monro 1951.
    """

    name = "sgd"
    update = records.sgd
    scalars = ("weight_decay",)
    options: ClassVar[Options] = {"lr": SGD_LR, "weight_decay": 0.0, **SCHEDULE_OPTIONS}


@final
class AdagradRows(RowMethod):
    """AdaGrad on the rows that a push carries.

    Update rule::

        g' = g + λ θ
        s  ← s + g'²
        θ  ← θ - η g' / (√s + ε)

    State: s (width), from initial_accumulator_value.

    Keyword Args:
        lr: η, >= 0; 0.01 by default.
        weight_decay: λ, >= 0; 0 by default.
        initial_accumulator_value: initial s, >= 0; 0 by default.
        eps: ε, >= 0; 1e-10 by default.

    References:
        Duchi, Hazan & Singer 2011, figure 1 (diagonal, without a proximal term).
    """

    name = "adagrad"
    update = records.adagrad
    scalars = ("weight_decay", "eps")
    options: ClassVar[Options] = {
        "lr": ADAGRAD_LR,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
        **SCHEDULE_OPTIONS,
    }

    def state(self, width: int) -> np.ndarray:
        return np.full(width, self.settings["initial_accumulator_value"])


@final
class AdamRows(RowMethod):
    """Lazy Adam: Adam on the rows that a push carries, with t the number of updates of the row.

    Update rule::

        g' = g + λ θ
        m  ← β1 m + (1 - β1) g'
        v  ← β2 v + (1 - β2) g'²
        θ  ← θ - η m̂ / (√v̂ + ε),   m̂ = m / (1 - β1^t),   v̂ = v / (1 - β2^t)

    State: m (width), v (width), t.

    Keyword Args:
        lr: η, >= 0; 0.001 by default.
        beta1: β1, in [0, 1); 0.9 by default.
        beta2: β2, in [0, 1); 0.999 by default.
        eps: ε, >= 0; 1e-8 by default.
        weight_decay: λ, >= 0; 0 by default.

    References:
        Kingma & Ba 2015, algorithm 1.
    """

    name = "adam"
    update = records.adam
    scalars = ("weight_decay", "beta1", "beta2", "eps")
    options: ClassVar[Options] = {**ADAM_OPTIONS, **SCHEDULE_OPTIONS}

    def state(self, width: int) -> np.ndarray:
        return np.zeros(2 * width + 1)


@final
class FTRLRows(RowMethod):
    """FTRL-Proximal: follow the regularized leader, with exact zeros from its L1 term.

    Update rule::

        σ = (√(n + g²) - √n) / η
        z ← z + g - σ θ
        n ← n + g²
        θ ← 0 if |z| <= λ1, else -(z - sign(z) λ1) / ((β + √n) / η + λ2)

    State: z (width), n (width). The table's init has to be zeros.

    Keyword Args:
        lr: η (the paper's α), >= 0; 0.1 by default. At 0 nothing changes.
        beta: β, >= 0; 1 by default.
        l1: λ1, >= 0; 0 by default.
        l2: λ2, >= 0; 0 by default.

    References:
        McMahan et al. 2013, algorithm 1.
    """

    name = "ftrl"
    update = records.ftrl
    scalars = ("beta", "l1", "l2")
    options: ClassVar[Options] = {
        "lr": FTRL_LR,
        "beta": 1.0,
        "l1": 0.0,
        "l2": 0.0,
        **SCHEDULE_OPTIONS,
    }

    def state(self, width: int) -> np.ndarray:
        return np.zeros(2 * width)

    def check(self, spec: TableSpec) -> None:
        if spec.init.kind != "zeros":
            raise InvalidValue(
                f"table {spec.name!r}: ftrl computes rows from its sums of gradients, which start "
                f"at zero; use Init('zeros'), not {spec.init.kind!r}"
            )


row_methods: Registry[type[RowMethod]] = Registry(
    "access method of sparse tables", "shoal.row_methods"
)
for _method in (SumRows, AssignRows, SGDRows, AdagradRows, AdamRows, FTRLRows):
    row_methods.add(_method.name, _method)


_USER_DEFINED = (
    "for a method of your own start servers with --import MODULE or shoal.init(imports=[MODULE])"
)


def row_method_of(spec: TableSpec) -> RowMethod:
    """Return the row method of a sparse table.

    Raises:
        UnknownName: no such method, or the method has no such option.
        InvalidValue: an option out of its range, or a dtype that the method does not support.
    """
    try:
        kind = row_methods[spec.access.name]
    except UnknownName as error:
        raise UnknownName(f"{error.message}; {_USER_DEFINED}") from None
    method = kind(spec.access.options)
    if spec.dtype not in method.dtypes:
        raise InvalidValue(
            f"table {spec.name!r}: access method {spec.access.name!r} does not support sparse "
            f"{spec.dtype} rows (supported: {', '.join(sorted(method.dtypes))})"
        )
    method.check(spec)
    return method
