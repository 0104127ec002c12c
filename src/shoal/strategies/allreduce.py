"""Synchronous SGD by allreduce: gradients are averaged, and every worker applies the same update.

One AllReduce sums the flat gradient with its weight behind it::

    g = sum_i w_i g_i / sum_i w_i

Weights are in units of `StrategyOptions.batch`, so that the gradient of a full batch is sent from
where `backward` has left it. The optimizer is the access method that a server would run, on the
worker's own parameters.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.collective.base import AllReduce
from shoal.strategies.base import (
    Model,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    strategies,
)
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Group:
    """The parameters of one buffer, prepared for all steps.

    Attributes:
        update: the flat gradient, a view of the buffer that is reduced.
        share: the element behind it: this worker's weight, then the mean weight.
        reduction: the allreduce of both.
    """

    update: Tensor
    share: Tensor
    reduction: AllReduce


class AllReduceSGD(Strategy):
    """Strategy "allreduce": synchronous SGD without servers.

    Update rule, on each worker::

        g = sum_i w_i g_i / sum_i w_i        theta <- update(theta, g)

    State: the access method's slots and the number of updates, in `state_dict`; the caller's own
    with `StrategyOptions.update`.

    Args:
        options: the optimizer (`access`) and the usual batch weight (`batch`).

    References:
        Patarasuk & Yuan 2009, section 3 (ring allreduce).
    """

    name: ClassVar[str] = "allreduce"
    summary: ClassVar[str] = "synchronous SGD without servers, by allreduce"
    in_step: ClassVar[bool] = True
    uses_servers: ClassVar[bool] = False
    on_workers: ClassVar[bool] = True
    source: ClassVar[str] = "Patarasuk & Yuan 2009, section 3"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._optimizer = WorkerOptimizer(options)
        self._groups: list[_Group] = []

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return self._optimizer.updates

    def tables(self, model: Model) -> list[TableSpec]:
        return []

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        yield from self.spread(model, rank == 0)
        wires = sorted(model.wires.items())
        self._optimizer.bind(model, {buffer: wire[:-1] for buffer, wire in wires})
        self._groups = [
            _Group(wire[:-1], wire[-1], AllReduce(wire, mean=True)) for _, wire in wires
        ]

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the parameters by those of the worker that `writes`."""
        for _, values in sorted(model.values.items()):
            if not writes:
                values.zero_()  # the sum is then the writer's
            yield AllReduce(values)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        total = yield from self.average(weight)
        if total:
            self._optimizer.step(self.rates)
        return StepResult(loss, weight, total * self.options.batch)

    def average(self, weight: float) -> Generator[Any, Any, float]:
        """Replace the gradients by their weighted mean over the workers.

        Returns the workers' mean weight, in units of `StrategyOptions.batch`.
        """
        share, total = weight / self.options.batch, 0.0
        for group in self._groups:
            if not share:
                group.update.zero_()
            elif share != 1:
                group.update.mul_(share)
            group.share.fill_(share)
            yield group.reduction
            total = group.share.item()
            if total and total != 1:
                group.update.div_(total)
        return total

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)


strategies.add(AllReduceSGD.name, AllReduceSGD)
