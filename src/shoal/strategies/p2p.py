"""Training from worker to worker: each mixes its parameters with those of its neighbours.

The workers are the nodes of a graph, which is complete or a ring. Each takes a step of its own
optimizer, sends its parameters to its d neighbours, and replaces them by the mean of its own and
the neighbours'::

    x_i <- x_i - lr g_i(x_i)        x_i <- (x_i + sum_j x_j) / (d + 1)

A worker that has taken all its steps continues to mix and send, so that a ring stays connected,
until it knows that all workers have finished. This knowledge spreads from neighbour to neighbour.
At the end all workers take the mean over all workers, weighted by their steps: the trained model.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import reduce
from math import nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from shoal.errors import InvalidValue, NotFinite, RingBroken
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import NeighbourExchange, Neighbourhood
from shoal.protocol.views import FOREVER
from shoal.strategies.base import (
    WIRE_TAIL,
    Model,
    Program,
    StepResult,
    Strategy,
    StrategyOptions,
    Traits,
    strategies,
)
from shoal.strategies.reduction import WeightedMean, leave_together, spread_values
from shoal.strategies.settings import StrategySettings, setting
from shoal.strategies.table_ops import byte_view
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.spec import TableSpec

CHUNK = 1 << 16  # elements that are mixed while they are in the cache
CASTS = MappingProxyType({"fp16": "float16", "bf16": "bfloat16"})  # codecs, and what is sent

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# fmt: off
class PeerToPeerSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "p2p"."""

    graph: Annotated[Literal["complete", "ring"], setting("whose neighbours workers are: of all others, or of the next rank on either side")] = "complete"
    mode: Annotated[Literal["sync", "async"], setting("async: mix with the newest parameters that have arrived, without waiting")] = "sync"
# fmt: on


class PeerToPeer(Strategy):
    """Strategy "p2p": decentralized parallel SGD (D-PSGD), without servers.

    With mode "sync" a worker mixes with the parameters of its own round, and is at most one batch
    ahead of its neighbours. On a complete graph that is synchronous SGD with the workers' mean
    gradient, as long as all have data. With mode "async" it mixes with the newest parameters of
    each neighbour that have arrived, without waiting (Tsitsiklis et al. 1986)::

        x_i <- x_i + sum_{j: x_j is new} (x_j - x_i) / (d + 1)

    State: the parameters and the optimizer's slots of each worker. A checkpoint has them if every
    worker reaches its clock: there is no checkpoint after a worker has no batches left. With
    `--on-worker-loss drop` the others continue without a lost worker, and its two neighbours on a
    ring become neighbours. If a worker is lost during the mean at the end, the others keep their
    own parameters. `shoal.Optimizer.flush` takes that mean as well; until then workers differ.

    References:
        Lian et al. 2017, algorithm 1, whose gradient may also be taken before the mean (section 3).
    """

    name: ClassVar[str] = "p2p"
    summary: ClassVar[str] = "each worker mixes its parameters with its neighbours', no servers"
    traits = Traits(
        uses_servers=False,
        optimizer_on_workers=True,
        sends_gradients=False,
        allows_redundancy=True,
        survives_worker_loss=True,
        state="on each worker; checkpoints have it, while all workers have batches",
        late_workers=(
            "late neighbours are waited for; drop: the others go on without them until they are "
            "back; mode=async: no worker waits"
        ),
    )
    Settings: ClassVar[type[StrategySettings]] = PeerToPeerSettings
    source: ClassVar[str] = "Lian et al. 2017, algorithm 1"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self._inner = WorkerOptimizer(options)
        self._in_order = self.settings.mode == "sync"
        self._phase = 0  # the number of means over all workers so far
        self._steps = 0  # the steps of this worker in this phase
        self._clocks: dict[int, int] = {}  # by rank: the latest known clock of this phase
        self._average: WeightedMean | None = None
        self._ranks = frozenset(range(options.workers))  # the ranks of the workers that are left
        self._left: dict[str, Tensor] = {}  # by buffer: what rounding has left out
        self._sent = str(options.codec) if options.codec_name else ""  # the codec, one of CASTS

    def _check_codecs(self) -> None:
        super()._check_codecs()
        if self.options.codec_name and self.options.codec not in [*CASTS]:
            raise InvalidValue(
                f"strategy {self.name!r} sends parameters from worker to worker, which bear less "
                f"rounding than gradients: use codec {' or '.join(CASTS)}, not "
                f"{self.options.codec_name!r}"
            )

    def tables(self, model: Model) -> list[TableSpec]:
        return []

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        if not self.options.start_clock:
            yield from self.spread(model, rank == 0)
        self._inner.bind(model, model.grads)
        self._average = WeightedMean(model.wires)

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the parameters by those of the worker that `writes`."""
        yield from spread_values(model, writes)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        loss, weight = (nan, 0.0) if batch is None else model.gradient(batch)
        if weight:
            self._inner.step(self.rates, model.absent)
        self._steps += 1
        self.clock += 1
        self._clocks[self.options.rank] = self._steps
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
        for number, (_, values) in enumerate(own if found.values else ()):
            self._mix(values, found, number)

    def _request(
        self, model: Model, wait: Literal["all", "any", "none"], sends: bool = True
    ) -> NeighbourExchange:
        own = [byte_view(self._sent_of(model, buffer)) for buffer in sorted(model.values) if sends]
        return NeighbourExchange(
            self.options.prefix,
            self.settings.graph,
            tuple(own),
            self._in_order,
            wait,
            self._clocks.get(self.options.rank) != FOREVER,
            self._phase,
            self._clocks,
        )

    def _sent_of(self, model: Model, buffer: str) -> Tensor:
        """Return a buffer as it is sent: with a codec rounded, after what rounding has left out.

        Without that, steps that are smaller than a half's last bit would never reach a neighbour,
        whose values would hold this worker's parameters in place.
        """
        values = model.values[buffer]
        if not self._sent:
            return values
        whole = values + self._left[buffer] if buffer in self._left else values
        cast = whole.to(_dtype_of(self._sent))
        if not bool(cast.isfinite().all()):
            raise NotFinite(f"a parameter is NaN, infinite, or too large for codec {self._sent}")
        self._left[buffer] = whole - cast
        return cast

    def _mix(self, values: Tensor, found: Neighbourhood, number: int) -> None:
        """Replace a buffer by the mean, in the order of ranks, so that equal sums have equal bits.

        A neighbour without a new version counts with this worker's own values. They already include
        its last version, and mixing that again would pull this worker back.
        """
        import torch

        absent = found.degree - len(found.values)
        below = sum(each.rank < self.options.rank for each in found.values)
        dtype = _dtype_of(self._sent) if self._sent else values.dtype
        theirs = [torch.frombuffer(each.buffers[number], dtype=dtype) for each in found.values]
        for start in range(0, len(values), CHUNK):
            own = values[start : start + CHUNK]
            others = [each[start : start + CHUNK].to(values.dtype) for each in theirs]
            if absent:
                own.mul_(1 + absent)
            if below:
                own.add_(reduce(torch.add, others[:below]))
            for other in others[below:]:
                own.add_(other)
            own.mul_(1 / (found.degree + 1))

    def owes(self) -> bool:
        return self._steps > 0

    def settle(self, model: Model) -> Program:
        """Exchange with the neighbours until all workers have finished; then take the mean."""
        self._clocks[self.options.rank] = FOREVER
        told: dict[int, int] = {}
        while not all(self._clocks.get(rank) == FOREVER for rank in self._ranks):
            if self._in_order:
                yield from self._exchange(model, "all")
            elif self._clocks != told:  # some worker has taken a step: tell the neighbours
                told = dict(self._clocks)
                yield from self._exchange(model, "none")
            else:
                yield from self._exchange(model, "any", sends=False)
        yield self._request(model, "none")  # tells the neighbours that all have finished
        steps, self._steps = self._steps, 0
        self._phase += 1
        self._clocks.clear()
        yield from self._mean(model, steps)

    def _mean(self, model: Model, steps: int) -> Program:
        """Replace the parameters by their mean over all workers; keep them if a worker is lost.

        The weights are the numbers of steps: a worker without data may have begun late, and mixed
        little.
        """
        assert self._average is not None, "begin comes first"
        sums = {buffer: wire[:-WIRE_TAIL] for buffer, wire in model.wires.items()}
        for buffer, values in model.values.items():
            sums[buffer].copy_(values)
        mean = yield from self._average.over_workers(float(steps))
        if mean.weight:
            for buffer, values in model.values.items():
                values.copy_(sums[buffer])

    def end(self, model: Model) -> Program:
        try:
            yield from self.settle(model)
        except RingBroken:  # leave at once, so that others do not wait for a sum with this worker
            return
        yield from leave_together(self.options.prefix)

    def state_dict(self) -> dict[str, Any]:
        left = {"left": dict(self._left)} if self._left else {}
        return {**self._inner.state_dict(), "steps": self._steps, **left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state)
        self._steps = int(state["steps"])
        self._left = {name: each.clone() for name, each in state.get("left", {}).items()}


def _dtype_of(codec: str) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, CASTS[codec])
    return found


strategies.add(PeerToPeer.name, PeerToPeer)
