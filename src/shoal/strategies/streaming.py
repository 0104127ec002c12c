"""Streaming DiLoCo: parameters in fragments, exchanged one after the other while steps go on."""

from __future__ import annotations

from collections.abc import Generator
from math import ceil, nan
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Exchange, PullOp, PushOp, Start, Wait
from shoal.strategies.base import (
    WAITED_FOR,
    Model,
    Program,
    StepResult,
    StrategyOptions,
    byte_view,
    strategies,
    table_specs,
)
from shoal.strategies.local_updates import LocalUpdates, momentum_sgd
from shoal.strategies.settings import StreamingDiLoCoSettings
from shoal.tables.spec import Access, TableSpec

if TYPE_CHECKING:
    from torch import Tensor


class StreamingDiLoCo(LocalUpdates):
    """Strategy "streaming_diloco": DiLoCo whose exchanges are spread over time.

    The parameters are cut into P `fragments`. Every tau / P steps the next one is exchanged: each
    of them every tau steps, and at most 1/P of the parameters at once. The `overlap` next steps are
    taken meanwhile; then what has come is mixed with what is there::

        theta_p <- mixing theta_p + (1 - mixing) theta_p(outer)

    At the end of an epoch all fragments are exchanged, one after the other. With one fragment and
    no overlap it is "diloco".

    State: the inner optimizer's slots, in `state_dict`; the outer optimizer's are in the tables.
    What a worker has not exchanged yet is in no checkpoint: `--resume` is refused, and a worker
    that takes the place of another begins from the tables, without what that one had not exchanged.
    A worker that is late for a round is waited for.

    References:
        Douillard et al. 2025, "Streaming DiLoCo with overlapping communication", section 2 (H: tau,
        tau: overlap, alpha: mixing), algorithm 2.
    """

    name: ClassVar[str] = "streaming_diloco"
    summary: ClassVar[str] = "DiLoCo in fragments, exchanged in turn while inner steps go on"
    Settings = StreamingDiLoCoSettings
    source: ClassVar[str] = "Douillard et al. 2025, section 2"
    resumes: ClassVar[bool] = False
    kept: ClassVar[str] = (
        "what is not exchanged yet is in no checkpoint, so that there is no resume"
    )
    late: ClassVar[str] = f"late workers {WAITED_FOR}"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        of = self.settings
        if of.tau % of.fragments:
            raise InvalidValue(
                f"tau {of.tau} of strategy {self.name!r} is no multiple of its {of.fragments} "
                "fragments, each of which is exchanged every tau steps"
            )
        if of.overlap >= self.period(0):
            raise InvalidValue(
                f"overlap {of.overlap} of strategy {self.name!r} has to be less than tau / "
                f"fragments = {self.period(0)}, because one fragment is exchanged at a time"
            )
        self._fresh: dict[str, Tensor] = {}  # by buffer: what is pulled
        self._fragments: list[tuple[tuple[PushOp, ...], tuple[PullOp, ...]]] = []
        self._owed: list[float] = []  # by fragment: weight of the batches since its last exchange
        self._under_way: tuple[int, int] | None = None  # the ticket and the fragment

    def outer(self) -> Access:
        return momentum_sgd(self.settings.outer_lr, self.settings.outer_momentum, nesterov=True)

    def period(self, clock: int) -> int:
        return int(self.settings.tau // self.settings.fragments)

    def tables(self, model: Model) -> list[TableSpec]:
        from msgspec.structs import replace

        specs = table_specs(model, self.options, self.consistency, self.outer())
        return [replace(spec, fragment_rows=self._rows(spec.rows)) for spec in specs]

    def _rows(self, rows: int) -> int:
        return ceil(rows / int(self.settings.fragments))

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        import torch

        yield from super().begin(model, rank, clock)
        self._fresh = {buffer: torch.empty_like(each) for buffer, each in model.values.items()}
        made = [self._ops_of(number) for number in range(self.settings.fragments)]
        self._fragments = [each for each in made if each[0]]  # of small models, some have no rows
        self._owed = [0.0] * len(self._fragments)
        self._under_way = None
        self.idle_rounds = len(self._fragments)  # until none is owed any more

    def _range(self, number: int, values: Tensor) -> KeyRange:
        rows = self._rows(len(values))
        return KeyRange(min(number * rows, len(values)), min((number + 1) * rows, len(values)))

    def _ops_of(self, number: int) -> tuple[tuple[PushOp, ...], tuple[PullOp, ...]]:
        """The pushes and pulls of a fragment: a range of each buffer that reaches so far."""
        pushes, pulls = [], []
        for buffer, fresh in sorted(self._fresh.items()):
            held, table = self._range(number, fresh), f"{self.options.prefix}.{buffer}"
            part = slice(held.start, held.stop)
            if held.start < held.stop:
                pushes.append(PushOp(table, held, byte_view(self._moved[buffer][part])))
                pulls.append(PullOp(table, held, byte_view(fresh[part])))
        return tuple(pushes), tuple(pulls)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        if self._steps == self.settings.overlap:
            yield from self._take(model)
        result = yield from super().step(model, batch)
        self._owed = [owed + result.weight for owed in self._owed]
        return result

    def _exchange(
        self, model: Model, loss: float, weight: float
    ) -> Generator[Any, Any, StepResult]:
        """Begin to exchange the next fragment; without a batch, wait for it."""
        yield from self._take(model)
        self._steps, number = 0, self.round % len(self._fragments)
        share = self._owed[number] + weight
        for buffer, values in model.values.items():
            held = self._range(number, values)
            part = slice(held.start, held.stop)
            self._moved[buffer][part].copy_(self._before[buffer][part]).sub_(values[part])
        pushes, pulls = self._fragments[number]
        exchange = Exchange(pushes if share else (), advance=True, pulls=pulls, weight=share or 1.0)
        self._owed[number] = -weight  # `step` adds it, and it is in this exchange
        self._under_way = (yield Start(exchange)), number
        self.clock += 1
        waits = not weight or not self.settings.overlap
        others = (yield from self._take(model)) if waits else -1.0
        return StepResult(loss, weight, others)

    def _take(self, model: Model) -> Generator[Any, Any, float]:
        """Mix in the fragment that is under way, if one is; return its round's weight."""
        if self._under_way is None:
            return -1.0
        (ticket, number), self._under_way = self._under_way, None
        outcome: Outcome = yield Wait(ticket)
        mixing = self.settings.mixing if self._steps else 0.0
        for buffer, values in model.values.items():
            held = self._range(number, values)
            part = slice(held.start, held.stop)
            fresh = self._fresh[buffer][part]
            values[part].mul_(mixing).add_(fresh, alpha=1 - mixing)
            self._before[buffer][part].copy_(fresh)
        return outcome.round_weight

    def flush(self, model: Model) -> Program:
        yield from super().flush(model)
        yield from self._take(model)

    def settle(self, model: Model) -> Program:
        """Exchange every fragment, with the steps since its last exchange."""
        yield from self.flush(model)
        for _ in self._fragments:  # as many rounds on all workers, whatever they owe
            yield from self._exchange(model, nan, 0.0)

    def spread(self, model: Model, writes: bool) -> Program:
        if self._under_way is not None:  # it belongs to the parameters that are replaced
            yield Wait(self._under_way[0])
            self._under_way = None
        yield from super().spread(model, writes)
        self._owed = [0.0] * len(self._fragments)

    def end(self, model: Model) -> Program:
        yield from self.settle(model)
        yield from super().end(model)


strategies.add(StreamingDiLoCo.name, StreamingDiLoCo)
