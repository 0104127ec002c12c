"""DiLoCo: many steps of an inner optimizer, then one step of an outer one, in step or not."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Exchange, PullOp
from shoal.strategies.base import WAITED_FOR, Model, Program, StrategyOptions, strategies
from shoal.strategies.local_updates import LocalUpdates, momentum_sgd
from shoal.strategies.settings import (
    ExchangeBy,
    QuorumSettings,
    StrategySettings,
    quorum_of,
    setting,
)
from shoal.strategies.table_ops import byte_view
from shoal.tables.consistency import bsp
from shoal.tables.spec import Access


# fmt: off
class DiLoCoSettings(QuorumSettings, frozen=True, kw_only=True):
    """Settings of "diloco"."""

    tau: Annotated[int, setting("H: inner steps between two exchanges", ge=1)] = 50
    mode: Annotated[Literal["sync", "async"], setting("async: what comes late for its round goes into the present one")] = "sync"
    outer_lr: Annotated[float, setting("learning rate of the outer optimizer", gt=0)] = 0.7
    outer_momentum: Annotated[float, setting("Nesterov momentum of the outer optimizer; 0: none", ge=0, lt=1)] = 0.9
    staleness_power: Annotated[float, setting("p: what comes s rounds late is divided by (1 + s)^p; async", ge=0)] = 0.5
    exchange: ExchangeBy = "servers"
# fmt: on


class DiLoCo(LocalUpdates):
    """Strategy "diloco": distributed low-communication training.

    An inner optimizer (the paper's is AdamW) takes `tau` steps on each worker; an outer one, SGD
    with Nesterov momentum, updates the parameters by the mean displacement.

    With `quorum` = k a round takes the displacements of k workers, and of those that push within
    `grace_s` seconds after the k-th. Later ones are dropped, and their workers continue with the
    batches of the present round.

    With `mode` "async" a worker looks up the present round of the others before it pushes. If its
    own round has closed, its displacement goes into the present round, s rounds late, divided by
    (1 + s)^p and weighted by its samples. It is dropped only if that round closes between lookup
    and push. Thus workers of different speeds do not wait for each other.

    References:
        Douillard et al. 2023, algorithm 1 (H: tau; outer SGD, Nesterov momentum 0.9, rate 0.7); Liu
        et al. 2024, "Asynchronous Local-SGD Training for Language Modeling", section 3.
    """

    name: ClassVar[str] = "diloco"
    summary: ClassVar[str] = "many inner steps, then an outer Nesterov step (DiLoCo)"
    Settings: ClassVar[type[StrategySettings]] = DiLoCoSettings
    source: ClassVar[str] = "Douillard et al. 2023, algorithm 1; Liu et al. 2024, section 3"
    traits = replace(
        LocalUpdates.traits,
        late_workers=(
            "with quorum or mode=async the round goes on without late workers; otherwise they "
            f"{WAITED_FOR} (exchange=allreduce: there is no drop)"
        ),
    )

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        of, workers = self.settings, options.workers
        self._async = of.mode == "async"
        self._look: tuple[PullOp, ...] = ()
        if not self.traits.uses_servers and (self._async or of.quorum):
            raise InvalidValue("exchange 'allreduce' waits for all: no quorum, and no mode async")
        quorum = of.quorum or (max(1, workers - 1) if self._async else 0)
        self.consistency = bsp(quorum_of(quorum, of.grace_s, workers))
        self.traits = replace(self.traits, skips_closed_rounds=quorum > 0 and not self._async)

    def outer(self) -> Access:
        return momentum_sgd(self.settings.outer_lr, self.settings.outer_momentum, nesterov=True)

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        yield from super().begin(model, rank, clock)
        buffer, values = min(model.values.items())
        row = KeyRange(0, 1), byte_view(values.new_empty(1))
        self._look = (PullOp(f"{self.options.prefix}.{buffer}", *row),)  # one row, for its clock

    def _round_for(self, share: float) -> Generator[Any, Any, tuple[int, float]]:
        if not self._async or not share:
            return (yield from super()._round_for(share))
        outcome: Outcome = yield Exchange(pulls=self._look)
        late = max(0, outcome.clock_min - self.clock)
        for moved in self._moved.values() if late else ():
            moved.div_((1 + late) ** self.settings.staleness_power)
        return self.clock + late, share


strategies.add(DiLoCo.name, DiLoCo)
