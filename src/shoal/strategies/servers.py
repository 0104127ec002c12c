"""Server strategies `sync`, `ssp` and `asgd`: push gradients, pull parameters.

One step is one exchange: push the gradient, advance the clock, pull the parameters. The three
strategies differ only in the tables' consistency.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

from shoal.errors import InvalidValue, RoundClosed, UsageError
from shoal.keys import KeyRange
from shoal.protocol.layout import Layout
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import DeclareTable, EnterBarrier, Exchange, PullOp, PushOp
from shoal.strategies.base import (
    NOBODY_WAITS,
    WAITED_FOR,
    Model,
    Numbers,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    names_of,
    strategies,
)
from shoal.strategies.settings import QuorumSettings, StrategySettings, quorum_of, setting
from shoal.strategies.table_ops import TableOps, byte_view, table_specs
from shoal.tables.consistency import Consistency, Cover, asp, bsp, ssp
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class OptimizerState:
    """The state of the optimizer of one buffer of flat parameters.

    Attributes:
        updates: the number of updates so far, for each parameter.
        slots: by name in the access method's `slots()`, a tensor shaped as the parameters.
    """

    updates: list[int]
    slots: dict[str, Tensor]


@runtime_checkable
class StateInTables(Protocol):
    """A strategy whose optimizer's state is in tables on servers, as `shoal.Optimizer` needs it."""

    def begin(
        self,
        model: Model,
        rank: int,
        clock: int = 0,
        states: Mapping[str, OptimizerState] | None = None,
    ) -> Program:
        """Begin as `Strategy.begin` does, with the optimizer's `states` of rank 0, by buffer."""
        ...

    def read_state(self, model: Model) -> Generator[Any, Any, dict[str, OptimizerState]]:
        """Return copies of the optimizer's state, by buffer."""
        ...

    def write_state(
        self, model: Model, states: Mapping[str, OptimizerState], writes: bool
    ) -> Program:
        """Replace the parameters and the state by those of the worker that `writes`."""
        ...


class ServerStrategy(Strategy):
    """Base class of strategies that push, advance and pull in one exchange.

    Subclasses define the consistency. A push leaves out the parameters without a gradient, as
    torch's optimizers do: their values and their optimizer's state stay as they are. In a round, a
    parameter that only some workers have a gradient for gets the mean over those workers.
    """

    consistency: Consistency
    rewritable: ClassVar[bool] = True  # whether one worker alone may write to its parameters

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._ops: TableOps | None = None
        self._asked: Exchange | None = None
        self._asked_with: tuple[Any, ...] = ()

    def tables(self, model: Model) -> list[TableSpec]:
        return table_specs(model, self.options, self.consistency)

    def begin(
        self,
        model: Model,
        rank: int,
        clock: int = 0,
        states: Mapping[str, OptimizerState] | None = None,
    ) -> Program:
        """Distribute rank 0's parameters, and its optimizer's `states` by buffer if given."""
        self._ops, self._asked = TableOps(model, self.options.prefix), None
        self.clock = clock
        writes = rank == 0 and not clock
        if writes and states:
            yield from self._assign(model, states)
        yield from self._ops.begin(writes and not states)
        self._bind(model)

    def _bind(self, model: Model) -> None:
        """Allocate the buffers that steps need, after the model has got its parameters."""

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        try:
            outcome: Outcome = yield self._exchange(model, weight)
        except RoundClosed:  # others went on without this gradient
            outcome = yield Exchange(pulls=self._ops.pulls if self._ops else ())
        self.clock = outcome.clock
        at = self.clock + self.options.start_clock if self.traits.skips_closed_rounds else -1
        return StepResult(loss, weight, outcome.round_weight, self._behind(outcome), at)

    def _behind(self, outcome: Outcome) -> int:
        """Return the number of clocks by which the slowest worker is behind this one."""
        return max(0, self.clock - outcome.clock_min) if outcome.clock_min >= 0 else 0

    def _exchange(self, model: Model, weight: float) -> Exchange:
        """Return the exchange of a step; the last object if equal, which is routed already."""
        assert self._ops is not None, "begin comes first"
        with_ = weight, self.rates, model.absent, model.idle
        if self._asked is None or self._asked_with != with_:
            pushes = self._ops.pushes(self.rates, model.absent) if weight else ()
            pulls = self._ops.pulls
            self._asked = Exchange(pushes, advance=True, pulls=pulls, weight=weight or 1.0)
            self._asked_with = weight, dict(self.rates), model.absent, model.idle
        return self._asked

    def rewrite(self, model: Model, written: Numbers, writes: bool) -> Program:
        """Assign parameters that all workers have written to alike, before the round's gradients.

        If workers are not in step, an update of another worker may come in between. Then only a
        worker that is the only one of the run may write to parameters.
        """
        assert self._ops is not None, "begin comes first"
        together = self.consistency == bsp() and self.traits.in_step
        alone = self.options.workers == 1
        if not self.rewritable or not (alone or together):
            why = "" if self.rewritable else ", which has gradients under way"
            raise UsageError(
                f"parameters were written to since the last step ({names_of(model, written)}), but "
                f"servers have them, and strategy {self.name!r}{why} trains them meanwhile. Use "
                "'sync' or 'allreduce'; or write to them before the optimizer is made, or before "
                "its load_state_dict"
            )
        if not alone:  # the round is open until this worker has pushed
            yield EnterBarrier(f"{self.options.prefix} written to at clock {self.clock}")
        yield from self._ops.forget(written)
        if writes:
            yield Exchange(self._ops.assigns(written), assign=True)

    def read_state(self, model: Model) -> Generator[Any, Any, dict[str, OptimizerState]]:
        """Return copies of the optimizer's state, by buffer; one worker may ask alone.

        Under "sync" the state is that at this worker's clock. Otherwise each fragment is of one
        moment, and all are of the same moment only after a barrier.
        """
        import torch

        found = {}
        for buffer, spec, names in self._tables_of(model):
            values = model.values[buffer]
            state = OptimizerState([], {name: torch.empty_like(values) for name in names})
            spec = (yield DeclareTable(spec)).value
            for span in spans_of(spec) if names else ():
                updates = 0
                for piece in Layout(spec).pieces(span, STATE_BYTES, len(names)):
                    rows = slice(piece.start, piece.stop)
                    out = byte_view(torch.empty_like(values[rows]))  # not used
                    slots = tuple(byte_view(slot[rows]) for slot in state.slots.values())
                    outcome = yield Exchange(pulls=(PullOp(spec.name, piece, out, slots=slots),))
                    updates = max(updates, outcome.updates)
                state.updates.append(updates)
            found[buffer] = state
        return found

    def write_state(
        self, model: Model, states: Mapping[str, OptimizerState], writes: bool
    ) -> Program:
        """Replace the parameters and the optimizer's state by those of the worker that `writes`.

        All workers take part: the others pull the parameters into their models.
        """
        assert self._ops is not None, "begin comes first"
        yield EnterBarrier(f"{self.options.prefix} loading")  # no push is under way any more
        yield from self._ops.forget()
        if writes:
            yield from self._assign(model, states)
        yield EnterBarrier(f"{self.options.prefix} loaded")
        yield Exchange(pulls=self._ops.pulls)

    def _assign(self, model: Model, states: Mapping[str, OptimizerState]) -> Program:
        """Assign the model's parameters with the optimizer's state, in bounded pieces."""
        for buffer, spec, names in self._tables_of(model):
            values, state = model.values[buffer], states[buffer]
            spec = (yield DeclareTable(spec)).value
            for span, updates in joined(spans_of(spec), state.updates):
                for piece in Layout(spec).pieces(span, STATE_BYTES, len(names)):
                    rows = slice(piece.start, piece.stop)
                    slots = tuple(byte_view(state.slots[name][rows]) for name in names)
                    push = PushOp(spec.name, piece, byte_view(values[rows]), slots=slots)
                    yield Exchange((push,), assign=True, updates=updates)

    def _tables_of(self, model: Model) -> Iterator[tuple[str, TableSpec, tuple[str, ...]]]:
        """Yield each buffer, its table and the names of its slots."""
        from shoal.tables.dense.methods import make

        for buffer, spec in zip(sorted(model.values), self.tables(model), strict=True):
            yield buffer, spec, make(spec.access).slots()

    def exact(self, model: Model) -> Program:
        if self.options.server_codec and self._ops is not None:
            yield from self._ops.exact()

    def end(self, model: Model) -> Program:
        assert self._ops is not None
        yield from self._ops.end()


STATE_BYTES = 64 << 20  # bytes of rows and slots that one request reads or writes


def spans_of(spec: TableSpec) -> list[KeyRange]:
    """Return the rows of each span of a table; all rows if it has no spans."""
    starts = [span.start for span in spec.spans] or [0]
    return [KeyRange(*edge) for edge in pairwise([*starts, spec.rows])]


def joined(spans: Sequence[KeyRange], updates: Sequence[int]) -> Iterator[tuple[KeyRange, int]]:
    """Yield the spans with their numbers of updates; join adjacent spans of equal numbers.

    >>> [(str(rows), count) for rows, count in joined([KeyRange(0, 2), KeyRange(2, 5)], [3, 3])]
    [('[0:5)', 3)]
    """
    for count, some in groupby(zip(spans, updates, strict=True), key=lambda pair: pair[1]):
        rows = [span for span, _ in some]
        yield KeyRange(rows[0].start, rows[-1].stop), count


# fmt: off
class SyncSettings(QuorumSettings, frozen=True, kw_only=True):
    """Settings of "sync"."""

    merge: Annotated[Literal["mean", "median", "trimmed_mean"], setting("how gradients are merged; median and trimmed_mean tolerate faulty workers")] = "mean"
    trim: Annotated[float, setting("share of the gradients left out at either end, of trimmed_mean", ge=0, lt=0.5)] = 0.0
# fmt: on


class Sync(ServerStrategy):
    """Strategy "sync": synchronous SGD through servers (BSP).

    Every worker reads the same parameters at the same clock::

        g = sum_i w_i g_i / sum_i w_i        theta <- update(theta, g)

    On P workers with batches of b it equals one process with batches of P b.

    With `quorum` = k a step takes the gradients of k workers, and of those that push within
    `grace_s` seconds after the k-th (backup workers). A gradient that comes later is dropped, and
    its worker skips the batches of steps that are over. Workers without data count in a quorum as
    well, so that a quorum fits even splits. With `merge` "median" or "trimmed_mean" one worker with
    wrong gradients has little influence: g is then taken element by element, without weights.

    State: in the tables only. The others wait for a worker that is late for a step; with a quorum
    they continue without it.

    References:
        Valiant 1990 (BSP); Chen et al. 2016, section 3 (backup workers); Yin et al. 2018, section 4
        (median and trimmed mean).
    """

    name: ClassVar[str] = "sync"
    summary: ClassVar[str] = "synchronous SGD through servers (BSP)"
    traits = replace(
        ServerStrategy.traits,
        in_step=True,
        state="in the tables, which checkpoints have",
        late_workers=f"late workers {WAITED_FOR}; with quorum the round goes on without them",
    )
    Settings: ClassVar[type[StrategySettings]] = SyncSettings
    source: ClassVar[str] = "Valiant 1990; Chen et al. 2016, section 3; Yin et al. 2018, section 4"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        of = self.settings
        self.consistency = bsp(quorum_of(of.quorum, of.grace_s, options.workers))
        self.traits = replace(self.traits, skips_closed_rounds=of.quorum > 0)

    def tables(self, model: Model) -> list[TableSpec]:
        merges = {"merge": self.settings.merge, "trim": self.settings.trim}
        return table_specs(model, self.options, self.consistency, **merges)


class GradientCoding(ServerStrategy):
    """Strategy "gradient_coding": synchronous SGD on replicated blocks, which ignores stragglers.

    The n workers form groups of r = `--redundancy`; all workers of a group have the same batches. A
    step takes the first gradient of each group, so that it is exactly the step of n / r workers
    without copies, even if up to r - 1 workers of each group are late or dead::

        g = sum_j w_j g_j / sum_j w_j        over groups j        theta <- update(theta, g)

    Workers of a group compute the same gradients only if the model draws no random numbers (no
    dropout). A late worker skips the batches whose steps are over.

    State: in the tables only. A late worker delays no other worker, as long as another worker of
    its group is not late.

    Raises:
        InvalidValue: r is less than 2, or the number of workers cannot be divided by r.

    References:
        Tandon et al. 2017, section 4 (fractional repetition scheme).
    """

    name: ClassVar[str] = "gradient_coding"
    summary: ClassVar[str] = "synchronous SGD on replicated blocks: exact without the stragglers"
    traits = replace(
        ServerStrategy.traits,
        in_step=True,
        allows_redundancy=True,
        replicates_batches=True,
        skips_closed_rounds=True,
        state="in the tables, which checkpoints have",
        late_workers=(
            "late workers are left out where another of their group is there; drop: they leave "
            "the run"
        ),
    )
    source: ClassVar[str] = "Tandon et al. 2017, section 4"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        copies, workers = options.redundancy, options.workers
        if copies < 2 or workers % copies:
            raise InvalidValue(
                f"gradient_coding has groups of --redundancy workers with the same blocks, 2 or "
                f"more: {workers} workers and redundancy {copies} make none"
            )
        groups = [tuple(range(at, at + copies)) for at in range(0, workers, copies)]
        self.consistency = bsp(Cover(tuple(groups)))


class StaleSync(ServerStrategy):
    """Strategy "ssp": stale synchronous SGD through servers, SSP(s).

    A worker is at most s = `staleness` clocks ahead of the slowest. Gradients are applied on
    arrival, or at the end of their round with apply_at "round_end".

    Raises:
        InvalidValue: a negative staleness, or an unknown `apply_at`.

    References:
        Ho et al. 2013, section 2.
    """

    name: ClassVar[str] = "ssp"
    summary: ClassVar[str] = (
        "stale synchronous SGD: at most --staleness clocks ahead of the slowest"
    )
    traits = replace(
        ServerStrategy.traits,
        allows_redundancy=True,
        state="in the tables, which checkpoints have",
        late_workers=f"workers further behind than the staleness {WAITED_FOR}",
    )
    source: ClassVar[str] = "Ho et al. 2013, section 2"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        if options.apply_at not in ("arrival", "round_end"):
            raise InvalidValue(f"apply_at is 'arrival' or 'round_end', not {options.apply_at!r}")
        self.consistency = ssp(
            options.staleness, "round_end" if options.apply_at == "round_end" else "arrival"
        )


class Async(ServerStrategy):
    """Strategy "asgd": asynchronous SGD through servers (ASP). No worker waits for another.

    A worker pushes a gradient and pulls the current parameters in every step::

        theta <- update(theta, g_i)          for each gradient on arrival

    References:
        Dean et al. 2012, section 4.1 (Downpour SGD with n_fetch = n_push = 1).
    """

    name: ClassVar[str] = "asgd"
    summary: ClassVar[str] = "asynchronous SGD: no worker waits for another (Downpour)"
    traits = replace(
        ServerStrategy.traits,
        allows_redundancy=True,
        state="in the tables, which checkpoints have",
        late_workers=NOBODY_WAITS,
    )
    source: ClassVar[str] = "Dean et al. 2012, section 4.1"
    consistency = asp()


for each in (Sync, GradientCoding, StaleSync, Async):
    strategies.add(each.name, each)
