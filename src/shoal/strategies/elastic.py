"""Elastic averaging: workers and a centre that pull at each other (EASGD, EAMSGD).

Every tau steps worker i moves towards the centre c, and the centre by as much towards the worker::

    d = alpha (x_i - c)        x_i <- x_i - d        c <- c + d        alpha = beta / p

The centre is a table that adds up the pushes. A worker pulls it before it pushes, so that both move
by the same amount, whatever others push meanwhile. A push is applied exactly once, even if it is
sent again or a server dies.
"""

from __future__ import annotations

from collections.abc import Generator
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from shoal.errors import InvalidValue
from shoal.protocol.requests import Exchange
from shoal.strategies.base import (
    NOBODY_WAITS,
    Model,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    Traits,
    restore,
    strategies,
)
from shoal.strategies.settings import StrategySettings, setting
from shoal.strategies.table_ops import TableOps, table_specs
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.consistency import asp
from shoal.tables.spec import Access, TableSpec

if TYPE_CHECKING:
    from torch import Tensor


# fmt: off
class ElasticSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "easgd"."""

    tau: Annotated[int, setting("tau: steps between two exchanges with the centre", ge=1)] = 10
    beta: Annotated[float, setting("beta = p alpha, of p workers: what all together move the centre", gt=0)] = 0.9
# fmt: on


class EASGD(Strategy):
    """Strategy "easgd": elastic averaging SGD, asynchronous.

    Algorithm 1 of the paper: the gradient is that at the parameters before the elastic move, and
    the step of the worker's own optimizer comes after the move.

    State: the parameters and the optimizer's slots on each worker; the centre in the tables. A
    worker that joins begins at the centre. A late worker delays no other worker.

    References:
        Zhang, Choromanska, LeCun 2015, algorithm 1 (tau, beta = p alpha).
    """

    name: ClassVar[str] = "easgd"
    summary: ClassVar[str] = "elastic averaging: workers and a centre pull at each other"
    traits = Traits(
        optimizer_on_workers=True,
        sends_gradients=False,
        allows_redundancy=True,
        state=(
            "the centre in the tables, parameters and optimizer on each worker; checkpoints have "
            "both"
        ),
        late_workers=NOBODY_WAITS,
    )
    Settings: ClassVar[type[StrategySettings]] = ElasticSettings
    source: ClassVar[str] = "Zhang et al. 2015, algorithm 1"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self.alpha = self.settings.beta / options.workers
        if self.alpha > 1:
            raise InvalidValue(
                f"beta {self.settings.beta} of {options.workers} workers is alpha = "
                f"{self.alpha:g}; above 1 a worker would be thrown beyond the centre: give a beta "
                f"of {options.workers} or less"
            )
        self._inner = WorkerOptimizer(options)
        self._ops: TableOps | None = None
        self._centre: dict[str, Tensor] = {}
        self._moves: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}  # the model's, or those of the run before
        self._steps = 0

    def tables(self, model: Model) -> list[TableSpec]:
        return table_specs(model, self.options, asp(), Access("sum"))

    def period(self, clock: int) -> int:
        return int(self.settings.tau)

    def batches_at(self, clock: int) -> int:
        return max(0, (clock - 1) * self.period(0) + 1)  # a period's first step exchanges

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        import torch

        from shoal.transport.tensors import shared_zeros

        self._centre = {buffer: torch.empty_like(each) for buffer, each in model.values.items()}
        self._moves = {b: shared_zeros(len(v), dtype=v.dtype) for b, v in model.values.items()}
        self._ops = TableOps(model, self.options.prefix, self._moves, self._centre)
        self._inner.bind(model, model.grads)
        yield from self._ops.begin(writes=rank == 0 and not clock)
        for buffer, values in model.values.items():
            values.copy_(self._values.get(buffer, self._centre[buffer]))
        self._values = model.values

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the centre and all workers' parameters by those of the one that `writes`."""
        assert self._ops is not None, "begin comes first"
        yield from self._ops.spread(writes)
        for buffer, values in model.values.items():
            values.copy_(self._centre[buffer])

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        if self._steps % self.settings.tau == 0:
            yield from self._meet(model)
        self._steps += 1
        if weight:
            self._update(model)
        return StepResult(loss, weight)

    def _update(self, model: Model) -> None:
        """Update the worker's parameters from its gradients."""
        self._inner.step(self.rates, model.absent)

    def _meet(self, model: Model) -> Program:
        """Pull the centre; then move both towards each other."""
        assert self._ops is not None, "begin comes first"
        yield Exchange(pulls=self._ops.pulls)
        for buffer, values in model.values.items():
            move = self._moves[buffer]
            move.copy_(values).sub_(self._centre[buffer]).mul_(self.alpha)
        pushes = (msgspec.structs.replace(op, decodes=True) for op in self._ops.pushes({}))
        yield Exchange(tuple(pushes), advance=True)
        for buffer, values in model.values.items():
            values.sub_(self._moves[buffer])  # what the servers have added

    def end(self, model: Model) -> Program:
        """Pull the centre, which is the trained model, after all workers have finished."""
        assert self._ops is not None
        yield from self._ops.end()
        for buffer, values in model.values.items():
            values.copy_(self._centre[buffer])

    def state_dict(self) -> dict[str, Any]:
        return {**self._inner.state_dict(), "values": self._values, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state)
        self._steps = int(state["steps"])
        restore(self._values, state["values"])


# fmt: off
class ElasticMomentumSettings(ElasticSettings, frozen=True, kw_only=True):
    """Settings of "eamsgd"."""

    optimizer: ClassVar[str] = "sgd"  # the paper's: the momentum is the strategy's own
    delta: Annotated[float, setting("delta: Nesterov momentum of a worker", ge=0, lt=1)] = 0.99
# fmt: on


class EAMSGD(EASGD):
    """Strategy "eamsgd": EASGD whose workers have Nesterov momentum.

    With the gradient g at x + delta v, and the worker's rate eta::

        v <- delta v - eta g        x <- x + v

    The elastic move is of x. Between steps the model holds x + delta v. The worker's optimizer is
    SGD without a momentum of its own (`--optimizer sgd`): its step is -eta g.

    State: that of EASGD, and the velocity v on each worker.

    References:
        Zhang, Choromanska, LeCun 2015, algorithm 2.
    """

    name: ClassVar[str] = "eamsgd"
    summary: ClassVar[str] = "elastic averaging with momentum on the workers"
    Settings: ClassVar[type[StrategySettings]] = ElasticMomentumSettings
    source: ClassVar[str] = "Zhang et al. 2015, algorithm 2"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        accesses = [options.access, *options.accesses.values()]
        if options.update is None and any(each.name != "sgd" for each in accesses):
            raise InvalidValue("eamsgd is SGD with momentum on the workers: add --optimizer sgd")
        if any(each.options.get("momentum") for each in accesses):
            raise InvalidValue("eamsgd has the momentum delta: leave out the optimizer's")
        self._velocity: dict[str, Tensor] = {}

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        import torch

        yield from super().begin(model, rank, clock)
        for buffer, values in model.values.items():
            self._velocity.setdefault(buffer, torch.zeros_like(values))

    def _meet(self, model: Model) -> Program:
        delta = self.settings.delta
        for buffer, values in model.values.items():
            values.sub_(self._velocity[buffer], alpha=delta)
        yield from super()._meet(model)
        for buffer, values in model.values.items():
            values.add_(self._velocity[buffer], alpha=delta)

    def _update(self, model: Model) -> None:
        delta = self.settings.delta
        for buffer, values in model.values.items():
            values.sub_(self._velocity[buffer].mul_(delta))
            self._centre[buffer].copy_(values)  # its memory is free until the next pull
        super()._update(model)
        for buffer, values in model.values.items():
            before = self._centre[buffer]
            velocity = self._velocity[buffer].add_(values).sub_(before)
            values.copy_(before).add_(velocity, alpha=1 + delta)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "velocity": self._velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        restore(self._velocity, state["velocity"])


for each in (EASGD, EAMSGD):
    strategies.add(each.name, each)
