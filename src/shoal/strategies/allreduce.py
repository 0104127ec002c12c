"""Synchronous SGD by allreduce: gradients are averaged, and every worker applies the same update.

One AllReduce sums the flat gradient with its weight behind it::

    g = sum_i w_i g_i / sum_i w_i

Weights are in units of `StrategyOptions.batch`, so that the gradient of a full batch is sent from
where `backward` has left it. The optimizer is the access method that a server would run, on the
worker's own parameters.
"""

from __future__ import annotations

from collections.abc import Generator
from math import nan
from typing import Any, ClassVar

from shoal.strategies.base import (
    Model,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    strategies,
)
from shoal.strategies.reduction import WeightedMean, leave_together, spread_values
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.spec import TableSpec


class AllReduceSGD(Strategy):
    """Strategy "allreduce": synchronous SGD without servers.

    Update rule, on each worker::

        g = sum_i w_i g_i / sum_i w_i        theta <- update(theta, g)

    State: the parameters; the access method's slots and the number of updates, in `state_dict`, or
    the caller's own with `StrategyOptions.update`. They are the same on all workers.

    Args:
        options: the optimizer (`access`) and the usual batch weight (`batch`).

    References:
        Patarasuk & Yuan 2009, section 3 (ring allreduce).
    """

    name: ClassVar[str] = "allreduce"
    summary: ClassVar[str] = "synchronous SGD without servers, by allreduce"
    in_step: ClassVar[bool] = True
    uses_servers: bool = False
    on_workers: ClassVar[bool] = True
    source: ClassVar[str] = "Patarasuk & Yuan 2009, section 3"
    kept: ClassVar[str] = "on each worker; checkpoints have it"
    late: ClassVar[str] = "all workers are waited for; there is no drop"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._optimizer = WorkerOptimizer(options)
        self._gradients: WeightedMean | None = None

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return self._optimizer.updates

    def tables(self, model: Model) -> list[TableSpec]:
        return []

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        yield from self.spread(model, rank == 0)
        self._optimizer.bind(model, {buffer: wire[:-1] for buffer, wire in model.wires.items()})
        self._gradients = WeightedMean(model.wires)

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the parameters by those of the worker that `writes`."""
        yield from spread_values(model, writes)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        total = yield from self.average(weight)
        if total:
            self._optimizer.step(self.rates)
        self.clock += 1
        return StepResult(loss, weight, total * self.options.batch)

    def average(self, weight: float) -> Generator[Any, Any, float]:
        """Replace the gradients by their weighted mean over the workers.

        Returns the workers' mean weight, in units of `StrategyOptions.batch`.
        """
        assert self._gradients is not None, "begin comes first"
        return (yield from self._gradients.over_workers(weight / self.options.batch))

    def end(self, model: Model) -> Program:
        yield from leave_together(self.options.prefix)

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)


strategies.add(AllReduceSGD.name, AllReduceSGD)
