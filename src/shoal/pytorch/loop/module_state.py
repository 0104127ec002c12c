"""Tensors of a module that no optimizer trains: buffers, and parameters that are left out of it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.client.context import Context, current
from shoal.collective.base import AllReduce
from shoal.errors import InvalidValue
from shoal.pytorch.flat_parameters import FlatParams

Buffers = Literal["rank0", "mean", "local"]
BUFFERS = ("rank0", "mean", "local")


def broadcast(module: torch.nn.Module, context: Context | None = None) -> None:
    """Replace all parameters and buffers of a module by those of the worker of the lowest rank.

    All workers call it, with a module of the same structure; values are bit for bit the same then.
    Rows of `shoal.nn.Embedding` are on servers, and the same already.

    Args:
        module: a module in the CPU's memory.
        context: the context of `shoal.init()` by default.

    Raises:
        UsageError: `shoal.init()` was not called.
        RingBroken: a worker has ended without taking part.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> shoal.broadcast(torch.nn.BatchNorm1d(3))
    """
    client = (context or current()).client
    with torch.no_grad():
        tensors = [*module.parameters(), *module.buffers()]
        client.drive(spread_bits(tensors, client.rank == client.first_rank))


def spread_bits(tensors: Iterable[Tensor], writes: bool) -> Generator[Any, Any, None]:
    """Replace tensors by those of the worker that `writes`: a sum to which others add zeros."""
    for each in tensors:
        if not each.numel():
            continue
        values = each.detach().clone(memory_format=torch.contiguous_format)
        bits = values.view(-1).view(torch.uint8)
        if not writes:
            bits.zero_()
        yield AllReduce(bits)
        each.copy_(values)


class ModuleState:
    """The tensors of a module that its optimizer does not train.

    Args:
        module: the module, or None.
        flat: the parameters that are trained.
        buffers: the treatment of buffers by `unify`: "rank0" spreads those of the worker of the
            lowest rank, "mean" takes the mean of those with floating-point numbers and spreads the
            others, "local" leaves them.

    Raises:
        InvalidValue: `buffers` is another word.
    """

    def __init__(self, module: torch.nn.Module | None, flat: FlatParams, buffers: Buffers) -> None:
        if buffers not in BUFFERS:
            raise InvalidValue(f"buffers is {', '.join(map(repr, BUFFERS))}, not {buffers!r}")
        self._module = module
        self._how = buffers
        trained = {id(parameter) for parameter in flat.parameters}
        parameters = module.parameters() if module is not None else ()
        self._others = [each for each in parameters if id(each) not in trained]

    def begin(self, writes: bool) -> Generator[Any, Any, None]:
        """Spread the tensors of the worker that `writes`; all workers take part."""
        yield from spread_bits([*self._others, *self._buffers()], writes)

    def unify(self, writes: bool) -> Generator[Any, Any, None]:
        """Make the buffers of all workers the same, unless they are "local"; all take part."""
        buffers = self._buffers() if self._how != "local" else []
        mean = [b for b in buffers if self._how == "mean" and b.is_floating_point() and b.numel()]
        for each in mean:
            values = each.clone(memory_format=torch.contiguous_format)
            yield AllReduce(values, mean=True)
            each.copy_(values)
        averaged = {id(each) for each in mean}
        yield from spread_bits([b for b in buffers if id(b) not in averaged], writes)

    def _buffers(self) -> list[Tensor]:
        return list(self._module.buffers()) if self._module is not None else []
