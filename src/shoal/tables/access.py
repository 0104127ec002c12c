"""Access methods: server-side optimizers (update rules) of dense tables.

    sum, assign                              the update is a value: in this module
    sgd, adagrad, rmsprop, adadelta, adam    the update is a gradient: `tables.dense.optimizers`
    nadam, radam, adamax, asgd, rprop        by torch's implementation: `tables.dense.torch_methods`

`tables.dense.methods` finds a method by its name. All methods keep this contract:

* State belongs to the caller. A method holds options only; rows, slots (state tensors, one value
  per element) and the step are arguments. So migration moves plain tensors, and threads may share
  a method.
* Methods are element-wise. An update of some rows does to them what an update of the whole table
  would: rows may be cut into fragments in any way, each with its own step.
* Nothing of the model's size is allocated. Rows and slots change in place, and the update is read
  only (it may be a sender's borrowed buffer).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.registry import unknown
from shoal.tables.schedules import ANY, BELOW_ONE, NOT_NEGATIVE, PREFIX, UNIT, number
from shoal.tables.spec import ITEM_SIZES, Options

ANY_DTYPE = frozenset(ITEM_SIZES)
Slots = Mapping[str, Tensor]  # state tensors by name, each shaped and typed as the rows
Prepared = Callable[[int, float | None], object]  # (step, lr): one more update

NUMPY_ADDS = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
SMALL = 4096  # elements; up to here a call of torch costs more than the addition itself

# Defaults of methods that both dense and sparse tables have.
SGD_LR = 0.01
ADAGRAD_LR = 0.01
ADAM_OPTIONS: Options = {
    "lr": 0.001,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
}

# Allowed range of each option: an option means the same in every method.
RANGES = {
    "lr": NOT_NEGATIVE,
    "beta": NOT_NEGATIVE,
    "l1": NOT_NEGATIVE,
    "l2": NOT_NEGATIVE,
    "momentum": NOT_NEGATIVE,
    "dampening": ANY,
    "weight_decay": NOT_NEGATIVE,
    "lr_decay": NOT_NEGATIVE,
    "initial_accumulator_value": NOT_NEGATIVE,
    "eps": NOT_NEGATIVE,
    "alpha": UNIT,
    "rho": UNIT,
    "beta1": BELOW_ONE,
    "beta2": BELOW_ONE,
    "momentum_decay": NOT_NEGATIVE,
    "lambd": NOT_NEGATIVE,
    "t0": NOT_NEGATIVE,
    "eta_minus": BELOW_ONE,
    "eta_plus": NOT_NEGATIVE,
    "step_min": NOT_NEGATIVE,
    "step_max": NOT_NEGATIVE,
}


class AccessMethod(ABC):
    """The base class of access methods: how an update changes rows, and the state for it.

    A subclass defines `apply`; `state` if it has any; `options` if it has any (every option with
    its default; a method with `lr` also takes the options of schedules); and `dtypes` if it does
    not support all. `shoal.access_method` registers it, under a name.

    Args:
        options: the options of the table's `Access`; missing ones take their defaults.

    Raises:
        UnknownName: an option that this method does not have.
        InvalidValue: a value of the wrong type or out of its range.

    Example:
        >>> import torch
        >>> from shoal.tables.dense.methods import make
        >>> from shoal.tables.spec import Access
        >>> method = make(Access("sgd", {"lr": 0.5, "momentum": 0.5}))
        >>> rows, update = torch.tensor([8.0, 4.0]), torch.tensor([2.0, 4.0])
        >>> slots = {name: torch.zeros(2) + method.initial(name) for name in method.slots()}
        >>> for step in range(2):
        ...     method.apply(rows, slots, update, step)
        >>> rows, slots
        (tensor([ 5.5000, -1.0000]), {'momentum': tensor([3., 6.])})
    """

    name: ClassVar[str]
    options: ClassVar[Options] = {}
    dtypes: ClassVar[frozenset[str]] = ANY_DTYPE
    scalars: ClassVar[frozenset[str]] = frozenset()  # slots with one number for all rows

    def __init__(self, options: Options) -> None:
        self.settings = checked(self.name, self.options, options)

    @classmethod
    def supports(cls, dtype: str) -> bool:
        """Return whether tables of this dtype (a name in `ITEM_SIZES`) can have this method."""
        return dtype in cls.dtypes

    @final
    def slots(self) -> tuple[str, ...]:
        """Return the names of the state tensors that these options need, shaped as the rows."""
        return tuple(self.state())

    @final
    def initial(self, slot: str) -> float:
        """Return the initial value of every element of a slot."""
        state = self.state()
        if slot not in state:
            raise unknown(f"slot of {self.name}", slot, state)
        return state[slot]

    def state(self) -> dict[str, float]:
        """Return the slots that these options need, with their initial values; none by default.

        They depend on `settings` alone: a base class may call this in its constructor.
        """
        return {}

    @abstractmethod
    def apply(
        self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float | None = None
    ) -> None:
        """Apply one update to `rows` and `slots`, in place.

        Args:
            rows: the rows, (n, *row_shape), of a supported dtype, without gradient tracking.
            slots: a tensor shaped and typed as `rows`, for each name in `slots()`.
            update: the update, shaped and typed as `rows`; read only.
            step: the number of updates that these rows have had before, >= 0.
            lr: the rate in place of the schedule's, such as that of a worker's lr_scheduler.

        Raises:
            InvalidValue: the update has another shape or dtype than the rows.
        """

    def prepared(self, rows: Tensor, slots: Slots, update: Tensor) -> Prepared:
        """Return `apply` with its tensors bound, for updates that always arrive in the same memory.

        Training pushes the same rows in every step: checks and views are then made only once.
        """
        return partial(self.apply, rows, slots, update)

    @final
    def _number(self, option: str) -> float:
        return float(self.settings[option])

    @final
    def _flag(self, option: str) -> bool:
        return bool(self.settings[option])


def checked(owner: str, defaults: Options, given: Options) -> Options:
    """Return `defaults` overridden by `given`; check the type and range of every given option."""
    for option, value in given.items():
        if "lr" in defaults and option.startswith(PREFIX):
            continue  # `schedule_lr` checks the parameters of schedules
        if option not in defaults:
            raise unknown(f"option of {owner}", option, defaults)
        if isinstance(defaults[option], bool) and not isinstance(value, bool):
            raise InvalidValue(f"{owner}: {option}={value!r} is out of range; allowed: true, false")
        if isinstance(defaults[option], float):
            number(owner, option, value, RANGES.get(option, ANY))
    return {**defaults, **given}


def require_alike(owner: str, rows: Tensor, update: Tensor) -> None:
    """Refuse an update that torch would silently broadcast, or round to another dtype."""
    if update.shape != rows.shape or update.dtype != rows.dtype:
        raise InvalidValue(
            f"{owner}: an update {tuple(update.shape)} of {update.dtype} does not fit rows "
            f"{tuple(rows.shape)} of {rows.dtype}; both must be the same"
        )


class ValueMethod(AccessMethod):
    """An access method whose update is a value. It has no options and no state."""

    change: ClassVar[Callable[[Tensor, Tensor], Tensor]]  # (rows, update)

    @final
    def apply(
        self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float | None = None
    ) -> None:
        require_alike(self.name, rows, update)
        type(self).change(rows, update)


@final
class Sum(ValueMethod):
    """Sum: add the update, for counters and for workers that push differences.

    Update rule::

        θ ← θ + g

    State: none. It has no options.

    Example:
        >>> import torch
        >>> rows = torch.tensor([1, 2])
        >>> Sum({}).apply(rows, {}, torch.tensor([10, 20]), step=0)
        >>> rows
        tensor([11, 22])

    References:
        Dean et al. 2012, section 4.1.
    """

    name = "sum"
    change = Tensor.add_

    def prepared(self, rows: Tensor, slots: Slots, update: Tensor) -> Prepared:
        if rows.numel() > SMALL or rows.dtype not in NUMPY_ADDS:
            return super().prepared(rows, slots, update)
        require_alike(self.name, rows, update)
        target, added = rows.numpy(), update.numpy()
        return lambda step, lr: np.add(target, added, target)


@final
class Assign(ValueMethod):
    """Assign: replace the rows; the last push wins.

    Update rule::

        θ ← g

    State: none. It has no options.

    Example:
        >>> import torch
        >>> rows = torch.tensor([1, 2])
        >>> Assign({}).apply(rows, {}, torch.tensor([10, 20]), step=0)
        >>> rows
        tensor([10, 20])
    """

    name = "assign"
    change = Tensor.copy_
