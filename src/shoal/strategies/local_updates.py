"""Local-update strategies: H steps on a worker's own parameters, then one exchange with the others.

All of them are one algorithm. Worker i starts from the global parameters theta and takes H steps of
the inner optimizer with its own batches, to theta_i. It pushes its displacement. Servers average
the displacements, weighted by samples, and an outer optimizer uses the mean as a gradient::

    g = sum_i w_i (theta - theta_i) / sum_i w_i        theta <- outer(theta, g)

(FedOpt: Reddi et al. 2021, algorithm 1.) The strategies differ in H, in the workers that take part,
and in the outer optimizer. With SGD at rate 1 the new parameters are the average of the workers'.

With `exchange` "allreduce" there are no servers: the workers average among themselves, and each
runs the outer optimizer, on the same values.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from shoal.errors import InvalidValue, RoundClosed
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Exchange
from shoal.strategies.base import (
    WAITED_FOR,
    WIRE_TAIL,
    Model,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    Traits,
    strategies,
)
from shoal.strategies.reduced_buffers import codecs_of
from shoal.strategies.reduction import (
    CODECS,
    WeightedMean,
    codec_state,
    leave_together,
    spread_values,
)
from shoal.strategies.settings import ExchangeBy, StrategySettings, Tau, setting
from shoal.strategies.table_ops import TableOps, table_specs
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.consistency import Consistency, bsp
from shoal.tables.spec import Access, Span, TableSpec

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.tables.encoding import LayerFigures


# fmt: off
class AveragingSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "model_averaging"."""

    tau: Tau = 16
    exchange: ExchangeBy = "servers"
# fmt: on


class LocalUpdates(Strategy):
    """Base class of strategies with H local steps and an outer optimizer on the displacements.

    Subclasses define the outer optimizer (`outer`), the number of local steps (`period`, by default
    `tau`) and the workers that take part (`takes_part`).

    State: the inner optimizer's slots on each worker, in `state_dict`; the outer optimizer's slots
    and the parameters of the last exchange in the tables. Without servers all of it is on workers,
    the same on all of them except the inner optimizer's slots. Workers wait for a worker that is
    late for a round, unless `consistency` has another rule.
    """

    traits = Traits(
        in_step=True,
        optimizer_on_workers=True,
        sends_gradients=False,
        state=(
            "the inner optimizer's on each worker, the rest in the tables (exchange=allreduce: on "
            "each worker); checkpoints have both"
        ),
        late_workers=f"late workers {WAITED_FOR} (exchange=allreduce: there is no drop)",
    )
    Settings: ClassVar[type[StrategySettings]] = AveragingSettings
    consistency: Consistency = bsp()

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._inner = WorkerOptimizer(options)
        self._outer: WorkerOptimizer | None = None  # without servers
        self._mean: WeightedMean | None = None
        self._ops: TableOps | None = None
        self._moved: dict[str, Tensor] = {}  # by buffer: the displacement, which is pushed
        self._before: dict[str, Tensor] = {}  # by buffer: the parameters of the last exchange
        self._kept: Mapping[str, Any] = {}  # what codecs have kept in an earlier run
        self._weight = 0.0  # the weight of the batches since then
        self._steps = 0

    @classmethod
    def traits_with(cls, settings: Mapping[str, Any]) -> Traits:
        servers = bool(settings.get("exchange", "servers") == "servers")
        return replace(cls.traits, uses_servers=servers)

    @property
    def round(self) -> int:
        """The number of the present round, with those of the run that this one continues."""
        return self.clock + self.options.start_clock

    def outer(self) -> Access:
        """Return the outer optimizer, as the tables' access method."""
        return Access("sgd", {"lr": 1.0})

    def takes_part(self, clock: int) -> bool:
        """Return whether this worker trains in the round of this clock."""
        return True

    def tables(self, model: Model) -> list[TableSpec]:
        if not self.traits.uses_servers:
            return []
        return table_specs(model, self.options, self.consistency, self.outer())

    def period(self, clock: int) -> int:
        return int(self.settings.tau)

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        import torch

        from shoal.transport.tensors import shared_zeros

        wires = {
            buffer: shared_zeros(len(values) + WIRE_TAIL, dtype=values.dtype)
            for buffer, values in model.values.items()
        }
        self._moved = {buffer: wire[:-WIRE_TAIL] for buffer, wire in wires.items()}
        self._ops = TableOps(model, self.options.prefix, self._moved)
        self._inner.bind(model, model.grads)
        self.clock = clock
        if self.traits.uses_servers:
            yield from self._ops.begin(writes=rank == 0 and not clock)
        else:
            yield from spread_values(model, rank == 0)
        self._before = {buffer: torch.clone(values) for buffer, values in model.values.items()}
        self._weight, self._steps = 0.0, 0
        if not self.traits.uses_servers:
            usual = self.options.batch * max(1, self.period(0))
            codecs = codecs_of(model, self.options, usual)
            self._mean = WeightedMean(wires, model.spans, tuple(model.idle), codecs)
            self._mean.load_state_dict(self._kept)
            self._outer = self._outer or self._new_outer()
            self._outer.bind(_Parameters(self._before, model.spans), self._moved)

    def _new_outer(self) -> WorkerOptimizer:
        return WorkerOptimizer(replace(self.options, access=self.outer(), accesses={}, update=None))

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the parameters of workers and tables by those of the worker that `writes`."""
        assert self._ops is not None, "begin comes first"
        if self.traits.uses_servers:
            yield from self._ops.spread(writes)
        else:
            yield from spread_values(model, writes)
        for buffer, values in model.values.items():
            self._before[buffer].copy_(values)
        self._weight, self._steps = 0.0, 0

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        if batch is None:  # no data left in this epoch, and others may have some
            return (yield from self._exchange(model, nan, 0.0))
        loss, weight = nan, 0.0
        if self.takes_part(self.round):
            loss, weight = model.gradient(batch)
            self._inner.step(self.rates, model.absent)
        else:
            self._inner.skip()  # all workers have to be at the same step of the rate's schedule
        self._weight += weight
        self._steps += 1
        if self._steps == self.period(self.round):
            return (yield from self._exchange(model, loss, weight))
        return StepResult(loss, weight)

    def _exchange(
        self, model: Model, loss: float, weight: float
    ) -> Generator[Any, Any, StepResult]:
        """Push the displacement since the last exchange, and pull the new parameters."""
        assert self._ops is not None, "begin comes first"
        share, self._weight, self._steps = self._weight, 0.0, 0
        for buffer, values in model.values.items():
            self._moved[buffer].copy_(self._before[buffer]).sub_(values)
        if self._mean is not None:
            others = yield from self._average(model, share)
            return StepResult(loss, weight, others)
        pushes = self._ops.pushes({}) if share else ()
        at, share = yield from self._round_for(share)
        try:
            outcome: Outcome = yield Exchange(
                pushes, advance=True, pulls=self._ops.pulls, weight=share or 1.0, at=at
            )
        except RoundClosed:  # others went on without this worker's steps
            outcome = yield Exchange(pulls=self._ops.pulls)
        self.clock = outcome.clock
        for buffer, values in model.values.items():
            self._before[buffer].copy_(values)
        at = self.round if self.traits.skips_closed_rounds else -1
        return StepResult(loss, weight, outcome.round_weight, clock=at)

    def _average(self, model: Model, share: float) -> Generator[Any, Any, float]:
        """Exchange without servers; return the workers' mean weight."""
        assert self._mean is not None
        assert self._outer is not None
        idle = {buffer: tuple(range(len(model.spans[buffer]))) for buffer in model.idle}
        mean = yield from self._mean.over_workers(share, idle)
        self.clock += 1
        if mean.weight:
            self._outer.step({}, mean.absent)
        for buffer, values in model.values.items():
            values.copy_(self._before[buffer])
        return mean.weight

    def _round_for(self, share: float) -> Generator[Any, Any, tuple[int, float]]:
        """Return the clock of the round for this worker's displacement, and its weight there."""
        yield from ()
        return self.clock, share

    def owes(self) -> bool:
        return self._steps > 0

    def flush(self, model: Model) -> Program:
        if self._steps:
            yield from self._exchange(model, nan, 0.0)

    def end(self, model: Model) -> Program:
        yield from self.flush(model)
        yield from self._leave()

    def exact(self, model: Model) -> Program:
        if self.options.server_codec and self._ops is not None:
            yield from self._ops.exact()
            for buffer, values in model.values.items():
                self._before[buffer].copy_(values)

    def _leave(self) -> Program:
        """Wait until all workers have finished."""
        assert self._ops is not None
        if self.traits.uses_servers:
            yield from self._ops.end()
        else:
            yield from leave_together(self.options.prefix)

    def codec_figures(self) -> list[LayerFigures]:
        return [] if self._mean is None else self._mean.codec_figures()

    def state_dict(self) -> dict[str, Any]:
        outer = {"outer": self._outer.state_dict()} if self._outer is not None else {}
        return {**self._inner.state_dict(), **outer, **codec_state(self._mean, self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = state.get(CODECS, {})
        if self._mean is not None:
            self._mean.load_state_dict(self._kept)
        self._inner.load_state_dict(state)
        if not self.traits.uses_servers:
            self._outer = self._new_outer()
            self._outer.load_state_dict(state["outer"])


class ModelAveraging(LocalUpdates):
    """Strategy "model_averaging": BSP model averaging, weighted by samples.

    Every `tau` steps each worker gets the average of all workers' parameters::

        theta <- sum_i w_i theta_i / sum_i w_i        w_i: samples since the last exchange

    With tau = 1 and plain SGD as the inner optimizer it equals "sync" and "allreduce" (up to their
    rates: the average of steps is the step of the average).

    References:
        McDonald et al. 2010 (iterative parameter mixing); Zinkevich et al. 2010.
    """

    name: ClassVar[str] = "model_averaging"
    summary: ClassVar[str] = "averages the workers' parameters every tau steps (BSP)"
    source: ClassVar[str] = "McDonald et al. 2010, section 4"


# fmt: off
class PostLocalSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "local_sgd"."""

    tau: Tau = 16
    after: Annotated[int, setting("t': rounds with one step each before the first with tau steps", ge=0)] = 0
    exchange: ExchangeBy = "servers"
# fmt: on


class LocalSGD(LocalUpdates):
    """Strategy "local_sgd": post-local SGD.

    The first `after` rounds have one step each, as synchronous SGD; all later ones have `tau`.

    References:
        Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD", section 3 (H_t = 1 for
        t <= t', H after that); Stich 2019 (local SGD).
    """

    name: ClassVar[str] = "local_sgd"
    summary: ClassVar[str] = "local SGD: averages every step at first, every tau steps later"
    Settings: ClassVar[type[StrategySettings]] = PostLocalSettings
    source: ClassVar[str] = "Lin et al. 2020, section 3"

    def period(self, clock: int) -> int:
        return 1 if clock < self.settings.after else int(self.settings.tau)


# fmt: off
class FedAvgSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "fedavg"."""

    fraction: Annotated[float, setting("C: share of the workers that take part in a round", gt=0, le=1)] = 1.0
    local_epochs: Annotated[int, setting("E: passes of a worker over its own data in a round", ge=1)] = 1
    seed: Annotated[int, setting("seed of the draws of who takes part", ge=0)] = 0
    exchange: ExchangeBy = "servers"
# fmt: on


class FedAvg(LocalUpdates):
    """Strategy "fedavg": federated averaging.

    In each round a share `fraction` of the workers, drawn anew, passes `local_epochs` times over
    its own data. The new parameters are their average, weighted by samples. `--assignment noniid`
    gives splits that are not iid.

    References:
        McMahan et al. 2017, algorithm 1 (C: fraction, E: local_epochs, B: --batch-size).
    """

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "federated averaging: some workers pass over their data, then average"
    Settings: ClassVar[type[StrategySettings]] = FedAvgSettings
    source: ClassVar[str] = "McMahan et al. 2017, algorithm 1"
    # all workers have one round, whatever the number of their batches
    traits = replace(LocalUpdates.traits, idle_rounds=0)
    _due = False

    def period(self, clock: int) -> int:
        return 0

    def exchanges_after(self, epoch: int) -> bool:
        exchanges = (epoch + 1) % int(self.settings.local_epochs) == 0
        self._due = not exchanges  # an exchange is due if no other epoch comes
        return exchanges

    def flush(self, model: Model) -> Program:
        yield from self._exchange(model, nan, 0.0)  # a worker without data as well

    def end(self, model: Model) -> Program:
        if self._due or self._steps:
            yield from self.flush(model)
        yield from self._leave()

    def takes_part(self, clock: int) -> bool:
        workers = self.options.workers
        some = max(1, round(self.settings.fraction * workers))
        drawn = sorted(range(workers), key=lambda rank: _hash(self.settings.seed, clock, rank))
        return self.options.rank in drawn[:some]


# fmt: off
class BMUFSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "bmuf"."""

    tau: Tau = 16
    block_momentum: Annotated[float, setting("eta: momentum of the blocks; -1 for 1 - 1/N with N workers", ge=-1, lt=1)] = -1.0
    block_lr: Annotated[float, setting("zeta: learning rate of the blocks", gt=0)] = 1.0
    nesterov: Annotated[bool, setting("workers start from where the momentum leads (NBM), not from the classic position (CBM)")] = False
    exchange: ExchangeBy = "servers"
# fmt: on


class BMUF(LocalUpdates):
    """Strategy "bmuf": blockwise model-update filtering.

    After each block of `tau` steps, with G the mean of the workers' displacements::

        Delta_t = eta Delta_(t-1) + zeta G_t        theta_t = theta_(t-1) + Delta_t

    Classic (CBM): the next block starts at theta_t. Nesterov (NBM): it starts at theta_t + eta
    Delta_t, and the tables hold that. The form with one smoothing factor m, d = m d' + (1 - m) lr
    sum G over N workers, is eta = m and zeta = (1 - m) lr N.

    References:
        Chen & Huo 2016, "Scalable Training of Deep Learning Machines by Incremental Block Training
        with Intra-block Parallel Optimization and Blockwise Model-Update Filtering", section 2.
    """

    name: ClassVar[str] = "bmuf"
    summary: ClassVar[str] = "model averaging with momentum of the blocks (BMUF)"
    Settings: ClassVar[type[StrategySettings]] = BMUFSettings
    source: ClassVar[str] = "Chen & Huo 2016, section 2"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        momentum = self.settings.block_momentum
        if -1 < momentum < 0:
            raise InvalidValue(f"block_momentum is between 0 and 1, or -1, not {momentum}")
        self.momentum = 1 - 1 / options.workers if momentum < 0 else momentum

    def outer(self) -> Access:
        return momentum_sgd(self.settings.block_lr, self.momentum, self.settings.nesterov)


@dataclass(frozen=True)
class _Parameters:
    """Values that an optimizer updates, in the form of a model's."""

    values: dict[str, Tensor]
    spans: Mapping[str, Sequence[Span]]


def _hash(*numbers: int) -> bytes:
    return blake2b(repr(numbers).encode(), digest_size=8).digest()


def momentum_sgd(lr: float, momentum: float, nesterov: bool) -> Access:
    """Return SGD with momentum as the outer optimizer; plain SGD if the momentum is 0."""
    if not momentum:
        return Access("sgd", {"lr": lr})
    return Access("sgd", {"lr": lr, "momentum": momentum, "nesterov": nesterov})


for each in (ModelAveraging, LocalSGD, FedAvg, BMUF):
    strategies.add(each.name, each)
