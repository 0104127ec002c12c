"""Synchronous SGD by allreduce: gradients are averaged, and every worker applies the same update.

One AllReduce sums the flat gradient with its weight behind it::

    g = sum_i w_i g_i / sum_i w_i

Weights are in units of `StrategyOptions.batch`, so that the gradient of a full batch is sent from
the memory that `backward` has written. The optimizer is the access method that a server would run,
on the worker's own parameters.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from math import isclose, nan
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.errors import UsageError
from shoal.strategies.base import (
    Model,
    Numbers,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    Traits,
    names_of,
    strategies,
)
from shoal.strategies.reduced_buffers import codecs_of
from shoal.strategies.reduction import (
    CODECS,
    Mean,
    WeightedMean,
    codec_state,
    leave_together,
    spread_values,
)
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from shoal.tables.encoding import LayerFigures

RATES_NEAR = 0.02  # relative tolerance: rates travel in a buffer's dtype, such as bfloat16


class AllReduceSGD(Strategy):
    """Strategy "allreduce": synchronous SGD without servers.

    Update rule, on each worker::

        g = sum_i w_i g_i / sum_i w_i        theta <- update(theta, g)

    State: the parameters, the access method's slots and the number of updates. The latter two are
    in `state_dict`; with `StrategyOptions.update` the slots are the caller's. The state is the same
    on all workers, except what a codec has left out of a worker's gradients.

    Args:
        options: the optimizer (`access`) and the usual batch weight (`batch`).

    References:
        Patarasuk & Yuan 2009, section 3 (ring allreduce).
    """

    name: ClassVar[str] = "allreduce"
    summary: ClassVar[str] = "synchronous SGD without servers, by allreduce"
    traits = Traits(
        in_step=True,
        uses_servers=False,
        optimizer_on_workers=True,
        state="on each worker; checkpoints have it",
        late_workers="all workers are waited for; there is no drop",
    )
    source: ClassVar[str] = "Patarasuk & Yuan 2009, section 3"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._optimizer = WorkerOptimizer(options)
        self._gradients: WeightedMean | None = None
        self._kept: Mapping[str, Any] = {}  # what codecs have kept in an earlier run
        self._wrote = ""  # the parameters that the caller has written to since the last step

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return self._optimizer.updates

    def tables(self, model: Model) -> list[TableSpec]:
        return []

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        yield from self.spread(model, rank == 0)
        self._optimizer.bind(model, model.grads)
        codecs = codecs_of(model, self.options)
        self._gradients = WeightedMean(model.wires, model.spans, tuple(model.idle), codecs)
        self._gradients.load_state_dict(self._kept)

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the parameters by those of the worker that `writes`."""
        yield from spread_values(model, writes)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        mean = yield from self.average(model, weight)
        if mean.weight:
            self._optimizer.step(self.rates, mean.absent)
        self.clock += 1
        return StepResult(loss, weight, mean.weight * self.options.batch)

    def average(self, model: Model, weight: float) -> Generator[Any, Any, Mean]:
        """Replace the gradients by their weighted mean over the workers.

        Returns the result, with its weight in units of `StrategyOptions.batch`.

        Raises:
            UsageError: only some of the workers have written to their parameters, or their
                learning rates differ.
        """
        assert self._gradients is not None, "begin comes first"
        share = weight / self.options.batch
        wrote, self._wrote = self._wrote, ""
        mean = yield from self._gradients.over_workers(share, model.absent, bool(wrote), self.rates)
        if 0 < mean.flagged < 1:
            told = f"has written to {wrote}" if wrote else "has not, and others have"
            raise UsageError(
                "only some of the workers have written to their parameters since the last step: "
                f"this one {told}. With 'allreduce' all workers have to, and alike"
            )
        for buffer, rate in mean.rates.items() if share else ():
            own = self.rates.get(buffer, 0.0)
            if not isclose(rate, own, rel_tol=RATES_NEAR):
                raise UsageError(
                    f"the workers' learning rates of {buffer} differ: this one has {own:g}, and "
                    f"their mean is {rate:g}. With 'allreduce' all of them need the same schedule"
                )
        return mean

    def rewrite(self, model: Model, written: Numbers, writes: bool) -> Program:
        """Note that the caller has written to parameters; all workers have to write alike."""
        yield from ()
        self._wrote = names_of(model, written)

    def end(self, model: Model) -> Program:
        yield from leave_together(self.options.prefix)

    def codec_figures(self) -> list[LayerFigures]:
        return [] if self._gradients is None else self._gradients.codec_figures()

    def state_dict(self) -> dict[str, Any]:
        return {**self._optimizer.state_dict(), **codec_state(self._gradients, self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = state.get(CODECS, {})
        if self._gradients is not None:
            self._gradients.load_state_dict(self._kept)
        self._optimizer.load_state_dict(state)


strategies.add(AllReduceSGD.name, AllReduceSGD)
