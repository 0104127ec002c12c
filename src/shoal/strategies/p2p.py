"""Training from worker to worker: each mixes its parameters with those of its neighbours.

The workers are the nodes of a graph, which is complete or a ring. Each takes a step of its own
optimizer, sends its parameters to its neighbours, and replaces them by the mean of its own and
theirs, of d neighbours::

    x_i <- x_i - lr g_i(x_i)        x_i <- (x_i + sum_j x_j) / (d + 1)

A worker that has taken all its steps passes on what it gets, so that a ring stays one, until every
worker is known to have finished; who has finished goes from neighbour to neighbour as well. At the
end all take the mean over all workers, which is what was trained.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import reduce
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from shoal.collective.base import AllReduce
from shoal.errors import RingBroken
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import NeighbourExchange, Neighbourhood
from shoal.protocol.views import FOREVER
from shoal.strategies.base import (
    Model,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    byte_view,
    strategies,
)
from shoal.strategies.reduction import spread_values
from shoal.strategies.settings import PeerToPeerSettings, StrategySettings
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.spec import TableSpec

CHUNK = 1 << 16  # elements that are mixed while they are in the cache

if TYPE_CHECKING:
    from torch import Tensor


class PeerToPeer(Strategy):
    """Strategy "p2p": decentralized parallel SGD (D-PSGD), without servers.

    With mode "sync" a worker mixes with the parameters of its own round, and is at most one batch
    ahead of its neighbours. On a complete graph that is synchronous SGD with the workers' mean
    gradient, as long as all have data. With mode "async" it mixes with the newest parameters that
    have arrived, and waits for nobody (Tsitsiklis et al. 1986).

    State: the parameters and the optimizer's slots of each worker, in no checkpoint. With
    `--on-worker-loss drop` the others go on without a worker that is lost, and on a ring its
    neighbours become each other's. If one is lost in the mean at the end, the others keep their own
    parameters.

    References:
        Lian et al. 2017, algorithm 1, whose gradient may also be taken before the mean (section 3).
    """

    name: ClassVar[str] = "p2p"
    summary: ClassVar[str] = "each worker mixes its parameters with its neighbours', no servers"
    uses_servers: bool = False
    on_workers: ClassVar[bool] = True
    takes_copies: ClassVar[bool] = True
    resumes: ClassVar[bool] = False
    bears_losses: ClassVar[bool] = True
    Settings: ClassVar[type[StrategySettings]] = PeerToPeerSettings
    source: ClassVar[str] = "Lian et al. 2017, algorithm 1"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._inner = WorkerOptimizer(options)
        self._in_order = self.settings.mode == "sync"
        self._phase = 0  # how often all workers have come together
        self._clocks: dict[int, int] = {}  # by rank, in this phase, as far as known
        self._ranks = frozenset(range(options.workers))  # of the workers that are left

    def tables(self, model: Model) -> list[TableSpec]:
        return []

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        yield from self.spread(model, rank == 0)
        self._inner.bind(model, model.grads)

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the parameters by those of the worker that `writes`."""
        yield from spread_values(model, writes)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        if weight:
            self._inner.step(self.rates)
        self._clocks[self.options.rank] = self._clocks.get(self.options.rank, 0) + 1
        yield from self._exchange(model, "all" if self._in_order else "none")
        return StepResult(loss, weight)

    def _exchange(
        self, model: Model, wait: Literal["all", "any", "none"], sends: bool = True
    ) -> Program:
        """Send the parameters, and mix them with the neighbours'."""
        own = sorted(model.values.items())
        outcome: Outcome = yield self._request(model, wait, sends)
        found: Neighbourhood = outcome.value
        self._ranks = frozenset(found.ranks)
        for each in found.values:
            for rank, clock in each.clocks.items():
                self._clocks[rank] = max(clock, self._clocks.get(rank, 0))
        for number, (_, values) in enumerate(own):
            self._mix(values, found, number)

    def _request(
        self, model: Model, wait: Literal["all", "any", "none"], sends: bool = True
    ) -> NeighbourExchange:
        buffers = (byte_view(values) for _, values in sorted(model.values.items()))
        return NeighbourExchange(
            self.options.prefix,
            self.settings.graph,
            tuple(buffers) if sends else (),
            self._in_order,
            wait,
            self._phase,
            self._clocks,
        )

    def _mix(self, values: Tensor, found: Neighbourhood, number: int) -> None:
        """Replace a buffer by the mean, in the order of ranks, so that equal sums are equal bits.

        A neighbour that has sent nothing yet counts as being where this worker is.
        """
        import torch

        absent = found.degree - len(found.values)
        below = sum(each.rank < self.options.rank for each in found.values)
        theirs = [
            torch.frombuffer(each.buffers[number], dtype=values.dtype).split(CHUNK)
            for each in found.values
        ]
        for own, *others in zip(values.split(CHUNK), *theirs, strict=True):
            if absent:
                own.mul_(1 + absent)
            if below:
                own.add_(reduce(torch.add, others[:below]))
            for other in others[below:]:
                own.add_(other)
            own.mul_(1 / (found.degree + 1))

    def settle(self, model: Model) -> Program:
        """Pass on what comes until all workers have finished; then take the mean over all."""
        self._clocks[self.options.rank] = FOREVER
        told: dict[int, int] = {}
        while not all(self._clocks.get(rank) == FOREVER for rank in self._ranks):
            if self._in_order:
                yield from self._exchange(model, "all")
            elif self._clocks != told:  # some worker has taken a step: pass it on
                told = dict(self._clocks)
                yield from self._exchange(model, "none")
            else:
                yield from self._exchange(model, "any", sends=False)
        yield self._request(model, "none")  # so that the neighbours know it as well
        yield from self._mean(model)
        self._phase += 1
        self._clocks.clear()

    def _mean(self, model: Model) -> Program:
        """Replace the parameters by their mean over all workers, if all are still there."""
        for _, values in sorted(model.values.items()):
            own = values.clone()
            try:
                yield AllReduce(values, mean=True)
            except RingBroken:
                values.copy_(own)

    def end(self, model: Model) -> Program:
        yield from self.settle(model)


strategies.add(PeerToPeer.name, PeerToPeer)
