"""Row methods: the access methods of sparse tables, compiled loops over the rows of a push.

    sum, assign                 the update is a value
    sgd, adagrad, adam, ftrl    the update is a gradient

A row and its state lie side by side in one *record*, `stride` elements long: the row's `width`
first, then what the method keeps. A dense table's method of the same name computes the same; here
each row has its own past, so that Adam's t is in the row's record.

Below, θ is a row, g its update, η the rate: `lr`, or the table's schedule at the number of updates
that the shard has had, or what the push says.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar, final

import numpy as np

from shoal.errors import InvalidValue, UnknownName
from shoal.registry import Registry
from shoal.tables.access import ANY_DTYPE, checked
from shoal.tables.dense.optimizers import ADAGRAD_LR, ADAM_LR, SCHEDULE_OPTIONS, SGD_LR
from shoal.tables.schedules import schedule_lr
from shoal.tables.sparse import records
from shoal.tables.sparse.jit import U
from shoal.tables.spec import Options, TableSpec

COMPILED = frozenset({"float32", "float64"})
FTRL_LR = 0.1


class RowMethod(ABC):
    """How records change when updates of their rows arrive.

    A subclass gives `name`, `options`, `dtypes`, `state`, and its loop:

    update:   (records, places, updates, stride, *scalars), from `tables.records` mostly
    scalars:  which options it takes, after the rate where the method has one
    at_once:  how many records are changed before they are read: as many as stay in the cache; 0
              where none is read before all are changed

    It keeps nothing but its settings. `read` and `merge` are what most need: the row itself, and a
    sum.
    """

    name: ClassVar[str]
    options: ClassVar[Options]
    update: ClassVar[Callable[..., None]]
    scalars: ClassVar[tuple[str, ...]] = ()
    at_once: ClassVar[int] = 1024
    dtypes: ClassVar[frozenset[str]] = COMPILED

    def __init__(self, options: Options) -> None:
        self.settings = checked(self.name, self.options, options)
        self._rate = schedule_lr(self.settings) if "lr" in self.options else None

    def state(self, width: int) -> np.ndarray:
        """What a new row's state is, (n,) values for a row of `width`."""
        return np.empty(0)

    def check(self, spec: TableSpec) -> None:  # noqa: B027
        """Refuse a table that the method cannot work on, other than for its dtype."""

    @property
    def creates(self) -> bool:
        """Whether `create` has a say in how rows begin."""
        return False

    def create(  # noqa: B027
        self, rows: np.ndarray, width: int, keys: np.ndarray, seed: int
    ) -> None:
        """Change new records, (n, stride), which are as the table's Init has them."""

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
        """Change the records at `places` in place, one after the other.

        Args:
            memory: flat, a record of `stride` elements at `place * stride`.
            places: (n,) uint64.
            updates: (n, width), of their dtype; only read.
            step: updates that the shard has had before this one.
            lr: the rate to use instead of the schedule's.
        """
        scalars = map(memory.dtype.type, self.values(step, lr))
        self.change(memory, places, updates, U(stride), *scalars)

    @final
    def values(self, step: int, lr: float | None) -> list[Any]:
        """What the loop gets after the stride: the rate, where there is one, and `scalars`."""
        values: list[Any] = [self.settings[option] for option in self.scalars]
        if self._rate is not None:
            values.insert(0, self._rate(step) if lr is None else lr)
        return values

    def change(
        self, memory: np.ndarray, places: np.ndarray, updates: np.ndarray, *rest: Any
    ) -> None:
        """Run the loop, with the stride and the scalars."""
        type(self).update(memory, places, updates, *rest)

    def merge(
        self, into: np.ndarray, numbers: np.ndarray, updates: np.ndarray, factor: float
    ) -> None:
        """into[numbers[i]] += factor updates[i]: the pushes of a round, or of equal keys."""
        records.add_rows(into.reshape(-1), numbers, updates, into.dtype.type(factor))

    def read(self, memory: np.ndarray, places: np.ndarray, out: np.ndarray, stride: int) -> None:
        """What a pull gets of the records at `places`: (n, width) into `out`."""
        records.gather(memory, places, out, U(stride))


@final
class SumRows(RowMethod):
    """θ ← θ + g."""

    name = "sum"
    update = records.add
    options: ClassVar[Options] = {}
    dtypes = ANY_DTYPE - {"float16", "bfloat16"}


@final
class AssignRows(RowMethod):
    """θ ← g: the last writer wins."""

    name = "assign"
    update = records.scatter
    options: ClassVar[Options] = {}
    dtypes = SumRows.dtypes


@final
class SGDRows(RowMethod):
    """θ ← θ - η (g + λ θ), λ weight_decay: of the rows that a push carries."""

    name = "sgd"
    update = records.sgd
    scalars = ("weight_decay",)
    options: ClassVar[Options] = {"lr": SGD_LR, "weight_decay": 0.0, **SCHEDULE_OPTIONS}


@final
class AdagradRows(RowMethod):
    """g' = g + λ θ;  s ← s + g'²;  θ ← θ - η g' / (√s + ε). Duchi et al. 2011, figure 1.

    State: s (width), from initial_accumulator_value.
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
    """Kingma & Ba 2015, algorithm 1, with t the updates of the row: the lazy form for sparse rows.

        m ← β₁ m + (1 - β₁) g';  v ← β₂ v + (1 - β₂) g'²;  g' = g + λ θ
        θ ← θ - η m̂ / (√v̂ + ε),  m̂ = m / (1 - β₁ᵗ),  v̂ = v / (1 - β₂ᵗ)

    State: m (width), v (width), t.
    """

    name = "adam"
    update = records.adam
    scalars = ("weight_decay", "beta1", "beta2", "eps")
    options: ClassVar[Options] = {
        "lr": ADAM_LR,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        **SCHEDULE_OPTIONS,
    }

    def state(self, width: int) -> np.ndarray:
        return np.zeros(2 * width + 1)


@final
class FTRLRows(RowMethod):
    """FTRL-Proximal: follow the regularised leader, with exact zeros from its L1 term.

        σ = (√(n + g²) - √n) / η;  z ← z + g - σ θ;  n ← n + g²
        θ ← 0 where |z| <= λ₁, else -(z - sign(z) λ₁) / ((β + √n) / η + λ₂)

    McMahan et al. 2013, algorithm 1 (its α is η here). State: z (width), n (width).
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
                f"table {spec.name!r}: ftrl computes its rows from its sums of gradients, so that "
                f"they begin at zero: init is Init('zeros'), not {spec.init.kind!r}"
            )


row_methods: Registry[type[RowMethod]] = Registry(
    "access method of sparse tables", "shoal.row_methods"
)
for _method in (SumRows, AssignRows, SGDRows, AdagradRows, AdamRows, FTRLRows):
    row_methods.add(_method.name, _method)


_OWN = (
    "a method of your own is known where its module was imported: start servers with "
    "--import MODULE or shoal.init(imports=[MODULE])"
)


def row_method_of(spec: TableSpec) -> RowMethod:
    """The row method of a sparse table, which can work on its rows.

    Raises:
        UnknownName: no such method, or it has no such option.
        InvalidValue: an option out of its range, or rows of a dtype that it cannot work on.
    """
    try:
        kind = row_methods[spec.access.name]
    except UnknownName as error:
        raise UnknownName(f"{error.message}; {_OWN}") from None
    method = kind(spec.access.options)
    if spec.dtype not in method.dtypes:
        raise InvalidValue(
            f"table {spec.name!r}: access method {spec.access.name!r} cannot work on sparse "
            f"{spec.dtype} rows (it can on {', '.join(sorted(method.dtypes))})"
        )
    method.check(spec)
    return method
