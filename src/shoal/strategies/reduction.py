"""What strategies without servers share: a weighted mean over the workers, by allreduce."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.collective.base import AllReduce
from shoal.protocol.requests import EnterBarrier
from shoal.strategies.base import Model, Program

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Group:
    """The values of one buffer, prepared for all steps.

    Attributes:
        values: a view of the buffer that is reduced.
        share: the element behind them: this worker's weight, then the mean weight.
        reduction: the allreduce of both.
    """

    values: Tensor
    share: Tensor
    reduction: AllReduce


class WeightedMean:
    """The mean of values over the workers: sum_i w_i v_i / sum_i w_i.

    Args:
        wires: by buffer, (n + 1,): the values, with an element behind them for their weight.
    """

    def __init__(self, wires: Mapping[str, Tensor]) -> None:
        self._groups = [
            _Group(wire[:-1], wire[-1], AllReduce(wire, mean=True))
            for _, wire in sorted(wires.items())
        ]

    def over_workers(self, share: float) -> Generator[Any, Any, float]:
        """Replace the values by their mean, this worker's with weight `share`.

        Returns the workers' mean weight; with 0 the values are void.
        """
        total = 0.0
        for group in self._groups:
            if not share:
                group.values.zero_()
            elif share != 1:
                group.values.mul_(share)
            group.share.fill_(share)
            yield group.reduction
            total = group.share.item()
            if total and total != 1:
                group.values.div_(total)
        return total


def leave_together(prefix: str) -> Program:
    """Wait until all workers have their last sum: one may lack what another has sent for it."""
    yield EnterBarrier(f"{prefix} done")


def spread_values(model: Model, writes: bool) -> Program:
    """Replace the parameters by those of the worker that `writes`."""
    for _, values in sorted(model.values.items()):
        if not writes:
            values.zero_()  # the sum is then the writer's
        yield AllReduce(values)
