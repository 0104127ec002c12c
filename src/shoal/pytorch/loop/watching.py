"""Watches: which parameters a training loop writes to between two steps.

torch counts writes to a tensor in its version, but not those to `p.data` or to the array of
`p.detach().numpy()`, which share its memory under a version of their own. So once a parameter is
watched, reading its `data` and calling its `detach` first notes its values, to compare them later;
setting `data` is noted as well. For that, both are redefined on `torch.nn.Parameter`; parameters
that are not watched behave as before. No step looks at the values of a parameter whose memory
nobody has asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn

SMALL = 1 << 16  # elements: of smaller parameters a copy is kept, of larger ones sums
_COLUMNS = 256
_ODD = 0x1E3779B97F4A7C15  # by which weights of rows differ

_BASE: Any = torch._C.TensorBase
# Past the watches:
data_of_parameter: Callable[[Tensor], Tensor] = _BASE.data.__get__
set_data: Callable[[Tensor, Tensor], None] = _BASE.data.__set__


class Watch:
    """A record of the changes to the memory of some parameters since `begin`.

    A watch ends when its owner drops it.

    Args:
        parameters: the parameters to watch.

    Attributes:
        replaced: the numbers of the parameters whose `data` was set.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        _define()
        self._numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._parameters = parameters
        self._before: dict[int, Tensor] = {}
        self.replaced: set[int] = set()
        for parameter in parameters:
            known = _watches.get(id(parameter))
            if known is None or known[0]() is not parameter:
                forget = partial(_forget, id(parameter))
                known = _watches[id(parameter)] = ref(parameter, forget), WeakSet()
            known[1].add(self)

    def begin(self) -> None:
        """Forget what was noted: a step has ended."""
        self._before.clear()
        self.replaced.clear()

    def lend(self, parameter: Tensor) -> None:
        """Note the values of a parameter whose memory a caller is about to get."""
        number = self._numbers[id(parameter)]
        if number not in self._before:
            self._before[number] = noted(data_of_parameter(parameter))

    def replace(self, parameter: Tensor) -> None:
        """Note that a parameter gets other memory."""
        self.replaced.add(self._numbers[id(parameter)])

    def written(self) -> set[int]:
        """Return the numbers of the parameters whose values changed since their memory was lent."""
        return {
            number
            for number, before in self._before.items()
            if not torch.equal(before, noted(data_of_parameter(self._parameters[number])))
        }


# By the id of a parameter: a reference to it, and its watches.
_watches: dict[int, tuple[ref[nn.Parameter], WeakSet[Watch]]] = {}


def _forget(number: int, parameter: ref[nn.Parameter]) -> None:
    """Drop a parameter that was freed, unless another one has its id already."""
    if number in _watches and _watches[number][0] is parameter:
        del _watches[number]


@cache
def _define() -> None:
    """Define `data` and `detach` on torch.nn.Parameter, once."""

    def get(self: nn.Parameter) -> Tensor:
        for each in _watches_of(self):
            each.lend(self)
        return data_of_parameter(self)

    def replace(self: nn.Parameter, values: Tensor) -> None:
        for each in _watches_of(self):
            each.replace(self)
        set_data(self, values)

    def detach(self: nn.Parameter) -> Tensor:
        for each in _watches_of(self):
            each.lend(self)
        return plain_detach(self)

    plain_detach: Callable[[Tensor], Tensor] = _BASE.detach
    kind: Any = nn.Parameter
    kind.data = property(get, replace, doc=_BASE.data.__doc__)
    detach.__doc__ = _BASE.detach.__doc__
    kind.detach = detach


def _watches_of(parameter: Tensor) -> Iterable[Watch]:
    known = _watches.get(id(parameter))
    return known[1] if known is not None and known[0]() is parameter else ()


def noted(values: Tensor) -> Tensor:
    """Return the bytes of values or, if there are many, sums over their rows and columns."""
    data = values.reshape(-1).view(torch.uint8)
    if values.numel() < SMALL:
        return data.clone()
    left = len(data) % (8 * _COLUMNS)
    whole, rest = data[: len(data) - left], data[len(data) - left :]
    table = whole.view(torch.int64).view(-1, _COLUMNS)
    rows, columns = table.sum(1), table.sum(0)
    weights = torch.arange(1, len(rows) + 1) * _ODD
    return torch.cat([(rows * weights).sum().view(1), columns, rest.to(torch.int64)])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and dtype have the same bits."""
    return torch.equal(*(each.reshape(-1).view(torch.uint8) for each in (one, other)))
