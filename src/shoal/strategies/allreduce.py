"""Gradients summed by a collective, every worker applying the same update.

    g = sum_i w_i g_i / sum_i w_i        one AllReduce of the flat gradient with its weight behind

Weights are counted in usual batches, so that a usual batch's gradient travels as it is, from where
`backward` has left it. The optimizer is the same access method that a server would run, on the
worker's own rows.
"""

from __future__ import annotations

from collections.abc import Generator
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.collective.base import AllReduce
from shoal.strategies.base import Model, Program, StepResult, Strategy, StrategyOptions, strategies
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from torch import Tensor


class AllReduceSGD(Strategy):
    name: ClassVar[str] = "allreduce"
    summary: ClassVar[str] = "synchronous SGD without servers, by allreduce"
    in_step: ClassVar[bool] = True
    uses_servers: ClassVar[bool] = False

    def __init__(self, options: StrategyOptions) -> None:
        from shoal.tables.methods import make

        super().__init__(options)
        self._access = make(options.access)
        self._slots: dict[str, dict[str, Tensor]] = {}
        self.lr: float | None = None
        self.updates = 0

    def tables(self, model: Model) -> list[TableSpec]:
        return []

    def begin(self, model: Model, rank: int) -> Program:
        import torch

        for dtype, values in sorted(model.values.items()):
            if dtype not in self._slots:
                self._slots[dtype] = {
                    slot: torch.full_like(values, self._access.initial(slot))
                    for slot in self._access.slots()
                }
            if rank != 0:
                values.zero_()  # the sum is then rank 0's
            yield AllReduce(values)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        share, total = weight / self.options.batch, 0.0
        for dtype, wire in sorted(model.wires.items()):
            update = wire[:-1]
            if not share:
                update.zero_()
            elif share != 1:
                update.mul_(share)
            wire[-1] = share
            yield AllReduce(wire, mean=True)
            total = float(wire[-1])  # of the workers' mean batch, in usual ones
            if total:
                if total != 1:
                    update.div_(total)
                slots = self._slots[dtype]
                self._access.apply(model.values[dtype], slots, update, self.updates, self.lr)
        self.updates += total > 0
        return StepResult(loss, weight, total * self.options.batch)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "slots": self._slots}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        self._slots = dict(state["slots"])


strategies.add(AllReduceSGD.name, AllReduceSGD)
