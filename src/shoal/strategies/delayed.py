"""Strategies with delayed gradients, on purpose or with a compensation.

"downpour" exchanges every few batches, "dc_asgd" compensates for the pushes of others meanwhile,
"double_buffering" exchanges while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Exchange, PushOp, Start, Wait
from shoal.strategies.base import (
    NOBODY_WAITS,
    NONE,
    WAITED_FOR,
    Model,
    Numbers,
    Program,
    StepResult,
    StrategyOptions,
    restore,
    strategies,
)
from shoal.strategies.servers import ServerStrategy
from shoal.strategies.settings import StrategySettings, setting
from shoal.strategies.table_ops import TableOps
from shoal.tables.consistency import asp, bsp
from shoal.tables.schedules import schedule_lr

if TYPE_CHECKING:
    from torch import Tensor


# fmt: off
class DownpourSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "downpour"."""

    n_push: Annotated[int, setting("n_push: batches whose gradients are pushed together", ge=1)] = 4
    n_fetch: Annotated[int, setting("n_fetch: batches between two pulls of the parameters", ge=1)] = 4
    local_lr: Annotated[float, setting("alpha: rate of the steps on a worker's own parameters; -1: the optimizer's", ge=-1)] = -1.0
# fmt: on


class Downpour(ServerStrategy):
    """Strategy "downpour": asynchronous SGD that exchanges every few batches.

    A worker adds up the gradients of `n_push` batches and pushes the sum; it pulls the parameters
    every `n_fetch` batches, and until then takes plain steps of its own::

        x_i <- x_i - alpha g_i      accrued <- accrued + g_i      theta <- update(theta, accrued)

    The paper's optimizer on the servers is Adagrad (`--optimizer adagrad`). With n_push = n_fetch =
    1 it is "asgd".

    State: the gradients that a worker has accrued since its last push, of at most n_push batches,
    which are lost with it. A late worker delays no other worker.

    References:
        Dean et al. 2012, section 4.1 and algorithm 7.1.
    """

    name: ClassVar[str] = "downpour"
    summary: ClassVar[str] = "asynchronous SGD that pushes and pulls every few batches"
    traits = replace(
        ServerStrategy.traits,
        allows_redundancy=True,
        state=("in the tables, which checkpoints have, except gradients that are not pushed yet"),
        late_workers=NOBODY_WAITS,
    )
    Settings: ClassVar[type[StrategySettings]] = DownpourSettings
    source: ClassVar[str] = "Dean et al. 2012, section 4.1"
    consistency = asp()
    rewritable: ClassVar[bool] = False

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._accrued: dict[str, Tensor] = {}
        self._unused: Numbers | None = None  # parameters that had no gradient since the last push
        self._schedules: dict[str, Callable[[int], float]] = {}
        self._steps = 0

    def period(self, clock: int) -> int:
        return int(self.settings.n_push)

    def _bind(self, model: Model) -> None:
        from shoal.transport.tensors import shared_zeros

        for buffer in model.grads:
            options = self.options.access_of(buffer).options
            self._schedules[buffer] = schedule_lr({"lr": 0.0, **options})
        self._accrued = {b: shared_zeros(len(g), dtype=g.dtype) for b, g in model.grads.items()}
        self._ops = TableOps(model, self.options.prefix, self._accrued)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        assert self._ops is not None, "begin comes first"
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        self._steps += 1
        pushes = self._steps % self.settings.n_push == 0
        fetches = self._steps % self.settings.n_fetch == 0
        if weight:
            self._unused = common(self._unused, model.absent)
        for buffer, gradient in model.grads.items() if weight else ():
            self._accrued[buffer].add_(gradient)
            if not fetches:  # a pull would replace them
                model.values[buffer].sub_(gradient, alpha=self._rate(buffer))
        behind = 0
        if pushes or fetches:
            outcome: Outcome = yield Exchange(
                self._owed() if pushes else (),
                advance=pushes,
                pulls=self._ops.pulls if fetches else (),
            )
            self.clock += pushes
            behind = self._behind(outcome)
        for accrued in self._accrued.values() if pushes else ():
            accrued.zero_()
        return StepResult(loss, weight, staleness=behind)

    def owes(self) -> bool:
        return self._steps % int(self.settings.n_push) > 0

    def settle(self, model: Model) -> Program:
        """Push the accrued gradients, and pull the parameters."""
        assert self._ops is not None, "begin comes first"
        advance = self.owes()
        pushes = self._owed() if advance else ()
        yield Exchange(pushes, advance=advance, pulls=self._ops.pulls)
        self.clock += advance
        for accrued in self._accrued.values():
            accrued.zero_()
        self._steps = 0

    def end(self, model: Model) -> Program:
        assert self._ops is not None
        if self.owes():
            yield Exchange(self._owed(), advance=True)
        yield from super().end(model)

    def _owed(self) -> tuple[PushOp, ...]:
        """Return the pushes of the gradients accrued since the last push."""
        assert self._ops is not None
        unused, self._unused = self._unused or NONE, None
        return self._ops.pushes(self.rates, unused)

    def _rate(self, buffer: str) -> float:
        if self.settings.local_lr >= 0:
            return float(self.settings.local_lr)
        if buffer in self.rates:
            return self.rates[buffer]
        return self._schedules[buffer](self.clock * self.options.workers)  # all workers' pushes


# fmt: off
class DelayCompensationSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "dc_asgd"."""

    lam: Annotated[float, setting("lambda_0: strength of the compensation; the paper has 0.04 constant and 2 adaptive", ge=0)] = 2.0
    adaptive: Annotated[bool, setting("divide by the root of the gradients' mean square (DC-ASGD-a)")] = True
    mean_square: Annotated[float, setting("m: memory of that mean square", ge=0, lt=1)] = 0.95
    epsilon: Annotated[float, setting("added to the mean square", gt=0)] = 1e-7
# fmt: on


class DelayCompensated(ServerStrategy):
    """Strategy "dc_asgd": asynchronous SGD with delay compensation.

    A worker's gradient g is that at parameters x, which others have changed to theta since. Just
    before it pushes, it pulls theta and adds a first-order estimate of the change of g::

        g' = g + lambda g * g * (theta - x)

    Constant: lambda = lambda_0. Adaptive: lambda = lambda_0 / sqrt(s + epsilon), where s <- m s +
    (1 - m) g * g. In the paper servers do this, with a copy of x for each worker and one s of all
    workers' gradients. Here a worker does it, with an s of its own, between its pull and its push;
    others may push in between. With lambda_0 = 0 it is "asgd".

    State: the mean square s, on each worker.

    References:
        Zheng et al. 2017, equations 10 and 11, algorithm 2.
    """

    name: ClassVar[str] = "dc_asgd"
    summary: ClassVar[str] = "asynchronous SGD that compensates for its gradients' delay"
    traits = replace(
        ServerStrategy.traits,
        allows_redundancy=True,
        state="in the tables, and the mean square on each worker; checkpoints have both",
        late_workers=NOBODY_WAITS,
    )
    Settings: ClassVar[type[StrategySettings]] = DelayCompensationSettings
    source: ClassVar[str] = "Zheng et al. 2017, algorithm 2"
    consistency = asp()

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._now: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}
        self._look: TableOps | None = None

    def _bind(self, model: Model) -> None:
        import torch

        self._now = {buffer: torch.empty_like(each) for buffer, each in model.values.items()}
        self._look = TableOps(model, self.options.prefix, pulled=self._now)
        for buffer, each in model.values.items():
            self._squares.setdefault(buffer, torch.zeros_like(each))

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        assert self._look is not None, "begin comes first"
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        if weight and self.settings.lam:
            yield Exchange(pulls=self._look.pulls)
            for buffer, gradient in model.grads.items():
                self._compensate(buffer, gradient, model.values[buffer])
        outcome: Outcome = yield self._exchange(model, weight)
        self.clock += 1
        return StepResult(loss, weight, staleness=self._behind(outcome))

    def _compensate(self, buffer: str, gradient: Tensor, used: Tensor) -> None:
        """Correct a gradient at the parameters `used` for those that were just pulled."""
        square = gradient.square()
        strength: Any = self.settings.lam
        if self.settings.adaptive:
            memory, squares = self.settings.mean_square, self._squares[buffer]
            squares.mul_(memory).add_(square, alpha=1 - memory)
            strength = self.settings.lam / (squares + self.settings.epsilon).sqrt()
        gradient.add_(square.mul_(self._now[buffer] - used).mul_(strength))

    def state_dict(self) -> dict[str, Any]:
        return {"mean_square": self._squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._squares.update(state["mean_square"])


class DoubleBuffering(ServerStrategy):
    """Strategy "double_buffering": synchronous SGD that exchanges while it computes.

    The gradients of step t travel while those of step t + 1 are computed, on the parameters of the
    step before. A step takes the longer of both times, not their sum, with gradients one step old::

        theta_(t+1) = update(theta_t, g(theta_(t-1)))

    State: the parameters of the step before, on each worker.

    References:
        Langford et al. 2009, "Slow Learners are Fast", section 3 (delayed updates, delay 1).
    """

    name: ClassVar[str] = "double_buffering"
    summary: ClassVar[str] = "synchronous SGD that exchanges while it computes, a step late"
    traits = replace(
        ServerStrategy.traits,
        in_step=True,
        idle_rounds=2,
        state=("in the tables, and the parameters before on each worker; checkpoints have both"),
        late_workers=f"late workers {WAITED_FOR}",
    )
    source: ClassVar[str] = "Langford et al. 2009, section 3"
    consistency = bsp()
    rewritable: ClassVar[bool] = False

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._sent: dict[str, Tensor] = {}
        self._fresh: dict[str, Tensor] = {}
        self._buffers: TableOps | None = None
        self._ticket: int | None = None
        self._values: dict[str, Tensor] = {}  # the model's, or those of the run before
        self._pulled = False  # whether `_fresh` has newer parameters

    def _bind(self, model: Model) -> None:
        import torch

        from shoal.transport.tensors import shared_zeros

        self._ticket = None
        self._sent = {b: shared_zeros(len(g), dtype=g.dtype) for b, g in model.grads.items()}
        self._fresh = {buffer: torch.empty_like(each) for buffer, each in model.values.items()}
        self._buffers = TableOps(model, self.options.prefix, self._sent, self._fresh)
        for buffer, values in model.values.items():
            self._fresh[buffer].copy_(values)
            values.copy_(self._values.get(buffer, values))
        self._values, self._pulled = model.values, bool(self._values)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        assert self._buffers is not None, "begin comes first"
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        others = yield from self._await(model)
        for buffer, gradient in model.grads.items() if weight else ():
            self._sent[buffer].copy_(gradient)
        pushes = self._buffers.pushes(self.rates, model.absent) if weight else ()
        exchange = Exchange(pushes, advance=True, pulls=self._buffers.pulls, weight=weight or 1.0)
        self._ticket = yield Start(exchange)
        self.clock += 1
        return StepResult(loss, weight, others)

    def _await(self, model: Model) -> Generator[Any, Any, float]:
        """Wait for the exchange that is under way, and copy its parameters into the model.

        Returns:
            The weight of the round; 1 if no exchange is under way, so that the epoch continues.
        """
        weight = 1.0
        if self._ticket is not None:
            outcome: Outcome = yield Wait(self._ticket)
            self._ticket, self._pulled, weight = None, True, outcome.round_weight
        for buffer, values in model.values.items() if self._pulled else ():
            values.copy_(self._fresh[buffer])
        return weight

    def owes(self) -> bool:
        return self._ticket is not None

    def flush(self, model: Model) -> Program:
        yield from self._await(model)

    def end(self, model: Model) -> Program:
        yield from self._await(model)
        yield from super().end(model)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self._values, state["values"])


def common(before: Numbers | None, absent: Numbers) -> Numbers:
    """Return the parameters that are in both; `absent` if `before` is None."""
    if before is None:
        return absent
    both = {buffer: {*before[buffer]} & {*absent[buffer]} for buffer in before.keys() & absent}
    return {buffer: tuple(sorted(numbers)) for buffer, numbers in both.items() if numbers}


for each in (Downpour, DelayCompensated, DoubleBuffering):
    strategies.add(each.name, each)
