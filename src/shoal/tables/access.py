"""Access methods: what a server does to its rows with an update.

    sum, assign                                    the update is a value: here
    sgd, adagrad, rmsprop, adadelta, adam          the update is a gradient: `tables.optimizers`

`tables.methods` finds one by its name. All give a server what it needs:

* State is the caller's. A method holds options only; rows, slots (state tensors, one value per
  element) and the step are arguments. So a hand-off moves plain tensors, and threads may share it.
* Everything is element by element. An update of some rows does to them what an update of the whole
  table would: rows may be cut into fragments in any way, each with its own step.
* Nothing of the model's size is allocated. Rows and slots change in place, and the update is only
  read (it may be a sender's borrowed buffer).
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
Prepared = Callable[[int, float | None], object]  # (step, lr): one more update

NUMPY_ADDS = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
SMALL = 4096  # elements; up to here calling torch costs more than the addition itself

# One option, one meaning: a range belongs to the name, whichever method has it.
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
}


class AccessMethod(ABC):
    """How rows change when an update of them arrives, and which state that needs.

    A subclass gives `name`, `options` (every option with its default; one that has `lr` takes the
    options of schedules too), `dtypes`, `state` and `apply`.

    Args:
        options: what the table's `Access` says. Missing options take their defaults.

    Raises:
        UnknownName: an option that this method does not have.
        InvalidValue: a value of the wrong type or out of its range.

    Example:
        >>> import torch
        >>> from shoal.tables.methods import make
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
    options: ClassVar[Options]
    dtypes: ClassVar[frozenset[str]]

    def __init__(self, options: Options) -> None:
        self.settings = checked(self.name, self.options, options)

    @classmethod
    def supports(cls, dtype: str) -> bool:
        """Whether a table of this dtype (a name in `ITEM_SIZES`) can have this method."""
        return dtype in cls.dtypes

    @final
    def slots(self) -> tuple[str, ...]:
        """The names of the state tensors that these options need, each shaped as the rows are."""
        return tuple(self.state())

    @final
    def initial(self, slot: str) -> float:
        """What every element of a slot is before the first update."""
        state = self.state()
        if slot not in state:
            raise unknown(f"slot of {self.name}", slot, state)
        return state[slot]

    @abstractmethod
    def state(self) -> dict[str, float]:
        """The slots that these options need, with the value that each starts from.

        A function of `settings` alone: the constructor calls it before a subclass's own is done.
        """

    @abstractmethod
    def apply(
        self,
        rows: Tensor,
        slots: Mapping[str, Tensor],
        update: Tensor,
        step: int,
        lr: float | None = None,
    ) -> None:
        """Change `rows` and `slots` in place by one update.

        Tensors that are not contiguous are one block, whatever their size.

        Args:
            rows: (n, *row_shape), of a dtype that `supports` knows, without gradient tracking.
            slots: a tensor for every name in `slots()`, shaped and typed as `rows`.
            update: shaped and typed as `rows`; it is read only.
            step: how many updates these rows have had before this one; 0 for the first.
            lr: the rate to use instead of the schedule's: a worker's own scheduler sends it.

        Raises:
            InvalidValue: the update is not shaped and typed as the rows are.
        """

    def prepared(self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor) -> Prepared:
        """`apply` for tensors that come again and again with other values in them.

        Training pushes the same rows for ever, into the same staging memory: what can be checked
        or made once is not done at every push.
        """
        return partial(self.apply, rows, slots, update)

    @final
    def _number(self, option: str) -> float:
        return float(self.settings[option])

    @final
    def _flag(self, option: str) -> bool:
        return bool(self.settings[option])


def checked(owner: str, defaults: Options, given: Options) -> Options:
    """`given`, every option checked against its default's type and its range, and the defaults."""
    for option, value in given.items():
        if "lr" in defaults and option.startswith(PREFIX):
            continue  # schedule_lr knows which schedule has which parameters
        if option not in defaults:
            raise unknown(f"option of {owner}", option, defaults)
        if isinstance(defaults[option], bool) and not isinstance(value, bool):
            raise InvalidValue(f"{owner}: {option}={value!r} is out of range; allowed: true, false")
        if isinstance(defaults[option], float):
            number(owner, option, value, RANGES.get(option, ANY))
    return {**defaults, **given}


def require_alike(owner: str, rows: Tensor, update: Tensor) -> None:
    """torch would broadcast one row over many, or round a float64 to a float32, and say nothing."""
    if update.shape != rows.shape or update.dtype != rows.dtype:
        raise InvalidValue(
            f"{owner}: an update {tuple(update.shape)} of {update.dtype} does not fit rows "
            f"{tuple(rows.shape)} of {rows.dtype}; both must be the same"
        )


@final
class Sum(AccessMethod):
    """θ ← θ + g: counters, and workers that send differences (Dean et al. 2012, section 4.1).

    >>> import torch
    >>> rows = torch.tensor([1, 2])
    >>> Sum({}).apply(rows, {}, torch.tensor([10, 20]), step=0)
    >>> rows
    tensor([11, 22])
    """

    name = "sum"
    options: ClassVar[Options] = {}
    dtypes = ANY_DTYPE

    def state(self) -> dict[str, float]:
        return {}

    def apply(
        self,
        rows: Tensor,
        slots: Mapping[str, Tensor],
        update: Tensor,
        step: int,
        lr: float | None = None,
    ) -> None:
        require_alike(self.name, rows, update)
        rows.add_(update)

    def prepared(self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor) -> Prepared:
        if rows.numel() > SMALL or rows.dtype not in NUMPY_ADDS:
            return super().prepared(rows, slots, update)
        require_alike(self.name, rows, update)
        target, added = rows.numpy(), update.numpy()
        return lambda step, lr: np.add(target, added, target)


@final
class Assign(AccessMethod):
    """θ ← g: the last writer wins.

    >>> import torch
    >>> rows = torch.tensor([1, 2])
    >>> Assign({}).apply(rows, {}, torch.tensor([10, 20]), step=0)
    >>> rows
    tensor([10, 20])
    """

    name = "assign"
    options: ClassVar[Options] = {}
    dtypes = ANY_DTYPE

    def state(self) -> dict[str, float]:
        return {}

    def apply(
        self,
        rows: Tensor,
        slots: Mapping[str, Tensor],
        update: Tensor,
        step: int,
        lr: float | None = None,
    ) -> None:
        require_alike(self.name, rows, update)
        rows.copy_(update)
