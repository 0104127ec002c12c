"""Synchronous SGD by allreduce: gradients are averaged, and every worker applies the same update.

One AllReduce sums the flat gradient with its weight behind it::

    g = sum_i w_i g_i / sum_i w_i

Weights are in units of `StrategyOptions.batch`, so that the gradient of a full batch is sent from
where `backward` has left it. The optimizer is the access method that a server would run, on the
worker's own parameters.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.collective.base import AllReduce
from shoal.strategies.base import (
    Model,
    OptimizerState,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    strategies,
)
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.tables.access import Prepared


@dataclass(frozen=True)
class _Group:
    """The parameters of one dtype, prepared for all steps.

    Attributes:
        update: the flat gradient, a view of the buffer that is reduced.
        share: the element behind it: this worker's weight, then the mean weight.
        reduction: the allreduce of both.
        apply: the access method, bound to the parameters.
    """

    update: Tensor
    share: Tensor
    reduction: AllReduce
    apply: Prepared


class AllReduceSGD(Strategy):
    """Strategy "allreduce": synchronous SGD without servers.

    Update rule, with the access method's `update` on each worker::

        g = sum_i w_i g_i / sum_i w_i        theta <- update(theta, g)

    State: the access method's slots and the number of updates, in `state_dict`.

    Args:
        options: the optimizer (`access`) and the usual batch weight (`batch`).

    References:
        Patarasuk & Yuan 2009, section 3 (ring allreduce).
    """

    name: ClassVar[str] = "allreduce"
    summary: ClassVar[str] = "synchronous SGD without servers, by allreduce"
    in_step: ClassVar[bool] = True
    uses_servers: ClassVar[bool] = False

    def __init__(self, options: StrategyOptions) -> None:
        from shoal.tables.methods import make

        super().__init__(options)
        self._access = make(options.access)
        self._slots: dict[str, dict[str, Tensor]] = {}
        self._groups: list[_Group] = []
        self.lr: float | None = None
        self.updates = 0

    def tables(self, model: Model) -> list[TableSpec]:
        return []

    def begin(
        self,
        model: Model,
        rank: int,
        clock: int = 0,
        states: Mapping[str, OptimizerState] | None = None,
    ) -> Program:
        import torch

        for dtype, values in model.values.items():
            if dtype not in self._slots:
                self._slots[dtype] = {
                    slot: torch.full_like(values, self._access.initial(slot))
                    for slot in self._access.slots()
                }
        yield from self.write_state(model, states or {}, rank == 0)
        self._groups.clear()
        for dtype, values in sorted(model.values.items()):
            wire = model.wires[dtype]
            prepared = self._access.prepared(values, self._slots[dtype], wire[:-1])
            self._groups.append(_Group(wire[:-1], wire[-1], AllReduce(wire, mean=True), prepared))

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        share, total = weight / self.options.batch, 0.0
        for group in self._groups:
            if not share:
                group.update.zero_()
            elif share != 1:
                group.update.mul_(share)
            group.share.fill_(share)
            yield group.reduction
            total = group.share.item()  # the workers' mean weight, in units of `batch`
            if total:
                if total != 1:
                    group.update.div_(total)
                group.apply(self.updates, self.lr)
        self.updates += total > 0
        return StepResult(loss, weight, total * self.options.batch)

    def read_state(self, model: Model) -> Generator[Any, Any, dict[str, OptimizerState]]:
        yield from ()
        return {
            dtype: OptimizerState(self.updates, {name: slots[name].clone() for name in slots})
            for dtype, slots in self._slots.items()
        }

    def write_state(
        self, model: Model, states: Mapping[str, OptimizerState], writes: bool
    ) -> Program:
        import torch

        for dtype, state in states.items() if writes else ():
            self.updates = state.updates
            for name, slot in self._slots[dtype].items():
                slot.copy_(state.slots[name])
        shared = [each for _, each in sorted(model.values.items())]
        given = float(writes and (self.updates > 0 or bool(states)))
        known = torch.tensor([self.updates * given, given], dtype=torch.float64)
        yield AllReduce(known)
        self.updates = int(known[0].item())
        if known[1].item():  # else all slots are as they were opened
            shared += [slot for _, slots in sorted(self._slots.items()) for slot in slots.values()]
        for each in shared:
            if not writes:
                each.zero_()  # the sum is then the writer's
            yield AllReduce(each)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "slots": self._slots}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        for dtype, slots in state["slots"].items():  # in place: `_groups` holds these tensors
            for name, values in slots.items():
                self._slots.setdefault(dtype, {}).setdefault(name, values).copy_(values)


strategies.add(AllReduceSGD.name, AllReduceSGD)
