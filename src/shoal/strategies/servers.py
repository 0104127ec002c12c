"""Gradients to servers, parameters back: `sync`, `ssp` and `asgd`.

One step is one exchange: push the gradient, advance the clock, pull the parameters. The three
differ only in the tables' consistency.

    sync   BSP: everybody reads the same parameters at the same clock. On n workers with batches of
           b it equals one process with batches of n b (weights by batch size).
    ssp    SSP(s): a worker runs at most s clocks ahead of the slowest (Ho et al. 2013).
    asgd   ASP: nobody waits (Dean et al. 2012, Downpour with n_fetch = n_push = 1).
"""

from __future__ import annotations

from collections.abc import Generator
from math import nan
from typing import Any, ClassVar

from shoal.errors import InvalidValue
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import EnterBarrier, Exchange
from shoal.strategies.base import (
    Model,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    TableOps,
    strategies,
    table_specs,
)
from shoal.tables.spec import Consistency, TableSpec, asp, bsp, ssp


class ServerStrategy(Strategy):
    """Push, advance, pull in one exchange; leaves give the consistency."""

    consistency: Consistency

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._ops: TableOps | None = None
        self._asked: Exchange | None = None
        self.lr: float | None = None  # overrides the tables' rate, for torch's lr_schedulers
        self.clock = 0

    def tables(self, model: Model) -> list[TableSpec]:
        return table_specs(model, self.options, self.consistency)

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        self._ops, self._asked = TableOps(model, self.options.prefix), None
        self.clock = clock
        if rank == 0 and not clock:
            yield Exchange(self._ops.assigns, assign=True)
        yield EnterBarrier(f"{self.options.prefix} written")
        yield Exchange(pulls=self._ops.pulls)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        outcome: Outcome = yield self._exchange(weight)
        self.clock += 1
        behind = max(0, self.clock - outcome.clock_min) if outcome.clock_min >= 0 else 0
        return StepResult(loss, weight, outcome.round_weight, behind)

    def _exchange(self, weight: float) -> Exchange:
        """A step's; the last one again where it is the same, because that is routed already."""
        assert self._ops is not None, "begin comes first"
        pushes, weight = self._ops.pushes if weight else (), weight or 1.0
        ask = self._asked
        if ask is None or (ask.pushes, ask.weight, ask.lr) != (pushes, weight, self.lr):
            pulls = self._ops.pulls
            ask = Exchange(pushes, advance=True, pulls=pulls, weight=weight, lr=self.lr)
            self._asked = ask
        return ask

    def end(self, model: Model) -> Program:
        """After everybody has finished, so that all leave with the same parameters."""
        assert self._ops is not None
        yield Exchange(advance=True, last=True)  # nobody waits for this worker any more
        yield EnterBarrier(f"{self.options.prefix} done")
        yield Exchange(pulls=self._ops.pulls)


class Sync(ServerStrategy):
    name: ClassVar[str] = "sync"
    summary: ClassVar[str] = "synchronous SGD through servers (BSP)"
    in_step: ClassVar[bool] = True
    consistency = bsp()


class StaleSync(ServerStrategy):
    name: ClassVar[str] = "ssp"
    summary: ClassVar[str] = "stale synchronous: at most --staleness clocks ahead of the slowest"
    takes_copies: ClassVar[bool] = True

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        if options.apply_at not in ("arrival", "round_end"):
            raise InvalidValue(f"apply_at is 'arrival' or 'round_end', not {options.apply_at!r}")
        self.consistency = ssp(
            options.staleness, "round_end" if options.apply_at == "round_end" else "arrival"
        )


class Async(ServerStrategy):
    name: ClassVar[str] = "asgd"
    summary: ClassVar[str] = "asynchronous SGD: nobody waits (Downpour)"
    takes_copies: ClassVar[bool] = True
    consistency = asp()


for each in (Sync, StaleSync, Async):
    strategies.add(each.name, each)
