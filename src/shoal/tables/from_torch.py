"""Translates a torch.optim optimizer to the access method that computes the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.errors import InvalidValue, UnknownName
from shoal.tables.access import AccessMethod
from shoal.tables.dense.methods import make
from shoal.tables.dense.optimizers import SGD, Adadelta, Adagrad, Adam, RMSprop
from shoal.tables.dense.torch_methods import ASGD, OPTIONS_OF_TORCH, Adamax, NAdam, RAdam, Rprop
from shoal.tables.spec import Access, Options

# The supported optimizers, each with the access method that computes the same.
_SAME: dict[type[torch.optim.Optimizer], type[AccessMethod]] = {
    torch.optim.SGD: SGD,
    torch.optim.Adagrad: Adagrad,
    torch.optim.RMSprop: RMSprop,
    torch.optim.Adadelta: Adadelta,
    torch.optim.Adam: Adam,
    torch.optim.AdamW: Adam,
    **{method.kind: method for method in (NAdam, RAdam, Adamax, ASGD, Rprop)},
}
KERNEL_CHOICES = {"foreach", "fused", "capturable"}  # torch options that do not change results


def from_torch(optimizer: torch.optim.Optimizer) -> list[Access]:
    """Return the equivalent access method, with its options, for each parameter group.

    The rate is the group's current one, without a schedule: a worker whose rate is changed by a
    torch.optim.lr_scheduler sends it with each push. The optimizer's accumulated state is not read.

    Args:
        optimizer: an SGD, Adagrad, RMSprop, Adadelta, Adam, AdamW, NAdam, RAdam, Adamax, ASGD or
            Rprop optimizer of torch.optim.

    Returns:
        The access methods for the specifications of the groups' tables.

    Raises:
        UnknownName: another class; a subclass too, because it may compute anything.
        InvalidValue: an option that no access method has.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> [each.name for each in from_torch(torch.optim.Adagrad(model.parameters(), lr=0.5))]
        ['adagrad']
    """
    kind = type(optimizer)
    if kind not in _SAME:
        supported = ", ".join(each.__name__ for each in _SAME)
        raise UnknownName(
            f"no access method computes what {kind.__module__}.{kind.__qualname__} does "
            f"(supported: torch.optim's {supported})"
        )
    found = []
    for group in optimizer.param_groups:
        options = {name: _plain(group[name]) for name in optimizer.defaults}
        found.append(Access(_SAME[kind].name, _options(kind, options)))
        make(found[-1])  # refuses, by name, values out of range that torch accepts (alpha > 1)
    return found


def _plain(value: object) -> Any:
    """Return an option without tensors: torch may keep a rate or a beta in one."""
    if isinstance(value, Tensor):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _options(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> Options:
    """Return a parameter group's hyper-parameters as options of the access method for `kind`."""
    method = _SAME[kind]
    options: Options = {}
    given: dict[str, Any] = {}
    for name, value in group.items():
        values = value if isinstance(value, tuple) else (value,)
        given |= dict(zip(OPTIONS_OF_TORCH.get(name, (name,)), values, strict=True))
    if method is Adam:  # torch before 2.6 has no option for it: the class decides there
        given.setdefault("decoupled", kind is torch.optim.AdamW)
    for name, value in given.items():
        if name in method.options:
            as_default = type(method.options[name])  # momentum=0 is an int in torch, 0.0 here
            options[name] = as_default(value)
        elif value and name not in KERNEL_CHOICES:
            raise InvalidValue(
                f"the access method {method.name} has no {name}, which this {kind.__name__} sets "
                f"to {value!r} (known: {', '.join(method.options)})"
            )
    return options
