"""Translates a torch.optim optimizer to the access method that computes the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.errors import InvalidValue, UnknownName
from shoal.tables.access import AccessMethod
from shoal.tables.dense.optimizers import SGD, Adadelta, Adagrad, Adam, RMSprop
from shoal.tables.methods import make
from shoal.tables.spec import Access, Options

# The supported optimizers, each with the access method that computes the same.
_SAME: dict[type[torch.optim.Optimizer], type[AccessMethod]] = {
    torch.optim.SGD: SGD,
    torch.optim.Adagrad: Adagrad,
    torch.optim.RMSprop: RMSprop,
    torch.optim.Adadelta: Adadelta,
    torch.optim.Adam: Adam,
    torch.optim.AdamW: Adam,
}
KERNEL_CHOICES = {"foreach", "fused", "capturable"}  # torch options that do not change results


def from_torch(optimizer: torch.optim.Optimizer) -> Access:
    """The access method, with its options, that computes what `optimizer` computes.

    The rate is the optimizer's current one, without a schedule: a worker whose rate is changed by a
    torch.optim.lr_scheduler sends it with each push. The optimizer's accumulated state is not read.

    Args:
        optimizer: SGD, Adagrad, RMSprop, Adadelta, Adam or AdamW of torch.optim.

    Returns:
        The access method for a table's specification.

    Raises:
        UnknownName: another class; a subclass too, because it may compute anything.
        InvalidValue: parameter groups that differ in more than their parameters, or an option
            that no access method has.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> from_torch(torch.optim.Adagrad(model.parameters(), lr=0.5)).name
        'adagrad'
    """
    kind = type(optimizer)
    if kind not in _SAME:
        supported = ", ".join(each.__name__ for each in _SAME)
        raise UnknownName(
            f"no access method computes what {kind.__module__}.{kind.__qualname__} does "
            f"(supported: torch.optim's {supported})"
        )
    first, *others = [
        {name: _plain(group[name]) for name in optimizer.defaults}
        for group in optimizer.param_groups
    ]
    for other in others:
        for name, value in first.items():
            if other[name] != value:
                raise InvalidValue(
                    f"{kind.__name__} has parameter groups with {name}={value!r} and "
                    f"{name}={other[name]!r}, but a table has one access method; use one "
                    f"group, or one optimizer per group"
                )
    access = Access(_SAME[kind].name, _options(kind, first))
    make(access)  # refuses, by name, values out of range that torch accepts (alpha > 1)
    return access


def _plain(value: object) -> Any:
    """A number that torch keeps in a tensor (a rate, a beta), as a number."""
    if isinstance(value, Tensor):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _options(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> Options:
    """A parameter group's hyper-parameters as options of the access method for `kind`."""
    method = _SAME[kind]
    options: Options = {}
    if method is Adam:
        # torch before 2.6 has no decoupled_weight_decay; the class decides there
        is_adamw = kind is torch.optim.AdamW
        options["decoupled"] = group.pop("decoupled_weight_decay", is_adamw)
        options["beta1"], options["beta2"] = group.pop("betas")
    for name, value in group.items():
        if name in method.options:
            as_default = type(method.options[name])  # momentum=0 is an int in torch, 0.0 here
            options[name] = as_default(value)
        elif value and name not in KERNEL_CHOICES:
            raise InvalidValue(
                f"the access method {method.name} has no {name}, which this {kind.__name__} sets "
                f"to {value!r} (known: {', '.join(method.options)})"
            )
    return options
