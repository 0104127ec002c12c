"""Streaming DiLoCo: parameters in fragments, exchanged one after the other during the steps."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from math import ceil, nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import structs

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
    restore,
    strategies,
)
from shoal.strategies.local_updates import LocalUpdates, momentum_sgd
from shoal.strategies.settings import StrategySettings, setting
from shoal.strategies.table_ops import byte_view, table_specs
from shoal.tables.spec import Access, TableSpec

if TYPE_CHECKING:
    from torch import Tensor


# fmt: off
class StreamingDiLoCoSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "streaming_diloco"."""

    tau: Annotated[int, setting("H: inner steps between two exchanges of a fragment, a multiple of fragments", ge=1)] = 40
    fragments: Annotated[int, setting("P: parts of the parameters, exchanged one after the other", ge=1, le=1024)] = 4
    overlap: Annotated[int, setting("tau: inner steps that are taken while a fragment is exchanged", ge=0)] = 1
    mixing: Annotated[float, setting("alpha: weight of a worker's own parameters where they meet what has come meanwhile", ge=0, lt=1)] = 0.5
    outer_lr: Annotated[float, setting("learning rate of the outer optimizer", gt=0)] = 0.7
    outer_momentum: Annotated[float, setting("Nesterov momentum of the outer optimizer; 0: none", ge=0, lt=1)] = 0.9
# fmt: on


class StreamingDiLoCo(LocalUpdates):
    """Strategy "streaming_diloco": DiLoCo whose exchanges are spread over time.

    The parameters are cut into P `fragments`. Every tau / P steps the next one is exchanged: each
    of them every tau steps, and at most 1/P of the parameters at once. The worker takes the next
    `overlap` steps meanwhile, and then mixes the fragment with its own parameters::

        theta_p <- mixing theta_p + (1 - mixing) theta_p(outer)

    At the end of an epoch all fragments are exchanged, one after the other. With one fragment and
    no overlap it is "diloco".

    State: the parameters and the inner optimizer's slots on each worker, in `state_dict`; the outer
    optimizer's slots and the parameters of each fragment's last exchange in the tables. A worker
    that replaces another begins from the tables, without the steps that the other had not
    exchanged. The others wait for a worker that is late for a round.

    References:
        Douillard et al. 2025, "Streaming DiLoCo with overlapping communication", section 2 (H: tau,
        tau: overlap, alpha: mixing), algorithm 2.
    """

    name: ClassVar[str] = "streaming_diloco"
    summary: ClassVar[str] = "DiLoCo in fragments, exchanged in turn while inner steps go on"
    Settings = StreamingDiLoCoSettings
    source: ClassVar[str] = "Douillard et al. 2025, section 2"
    traits = replace(
        LocalUpdates.traits,
        state=(
            "the parameters and the inner optimizer's on each worker, the outer's in the tables; "
            "checkpoints have both"
        ),
        late_workers=f"late workers {WAITED_FOR}",
    )

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
        self._fresh: dict[str, Tensor] = {}  # by buffer: the pulled parameters
        self._fragments: list[tuple[tuple[PushOp, ...], tuple[PullOp, ...]]] = []
        self._owed: list[float] = []  # by fragment: weight of the batches since its last exchange
        # The ticket (None for an exchange of the run before) and the number of the fragment.
        self._under_way: tuple[int | None, int] | None = None
        self._values: dict[str, Tensor] = {}  # the model's, or those of the run before

    def outer(self) -> Access:
        return momentum_sgd(self.settings.outer_lr, self.settings.outer_momentum, nesterov=True)

    def period(self, clock: int) -> int:
        return int(self.settings.tau // self.settings.fragments)

    def tables(self, model: Model) -> list[TableSpec]:
        specs = table_specs(model, self.options, self.consistency, self.outer())
        return [structs.replace(spec, fragment_rows=self._rows(spec.rows)) for spec in specs]

    def _rows(self, rows: int) -> int:
        return ceil(rows / int(self.settings.fragments))

    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        yield from super().begin(model, rank, clock)
        self._fresh = {buffer: each.clone() for buffer, each in model.values.items()}
        made = [self._ops_of(number) for number in range(self.settings.fragments)]
        self._fragments = [each for each in made if each[0]]  # in small models some have no rows
        # one idle round for each fragment, so that none is owed any more
        self.traits = replace(self.traits, idle_rounds=len(self._fragments))
        self._continue(model)

    def _continue(self, model: Model) -> None:
        """Continue the run before, if there is one; its fragment under way is in the tables."""
        if not self._values:
            self._owed, self._under_way = [0.0] * len(self._fragments), None
        elif len(self._owed) != len(self._fragments):
            raise InvalidValue(
                f"the run before had {len(self._owed)} fragments, and not {len(self._fragments)}: "
                "resume it with as many"
            )
        for buffer, values in model.values.items():
            values.copy_(self._values.get(buffer, values))
        self._values = model.values

    def _range(self, number: int, values: Tensor) -> KeyRange:
        rows = self._rows(len(values))
        return KeyRange(min(number * rows, len(values)), min((number + 1) * rows, len(values)))

    def _ops_of(self, number: int) -> tuple[tuple[PushOp, ...], tuple[PullOp, ...]]:
        """Return the pushes and pulls of a fragment: for the buffers that have rows in it."""
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
        """Begin the exchange of the next fragment; wait for it without a batch or an overlap."""
        yield from self._take(model)
        self._steps, number = 0, self.round % len(self._fragments)
        share = self._owed[number] + weight
        for buffer, values in model.values.items():
            held = self._range(number, values)
            part = slice(held.start, held.stop)
            self._moved[buffer][part].copy_(self._before[buffer][part]).sub_(values[part])
        pushes, pulls = self._fragments[number]
        exchange = Exchange(pushes if share else (), advance=True, pulls=pulls, weight=share or 1.0)
        self._owed[number] = -weight  # `step` adds the weight, which is in this exchange
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
        weight = yield from self._outcome(ticket)
        mixing = self.settings.mixing if self._steps else 0.0
        for buffer, values in model.values.items():
            held = self._range(number, values)
            part = slice(held.start, held.stop)
            fresh = self._fresh[buffer][part]
            values[part].mul_(mixing).add_(fresh, alpha=1 - mixing)
            self._before[buffer][part].copy_(fresh)
        return weight

    def _outcome(self, ticket: int | None) -> Generator[Any, Any, float]:
        """Wait for an exchange and return its round's weight; -1 for one of the run before."""
        if ticket is None:
            return -1.0
        outcome: Outcome = yield Wait(ticket)
        return outcome.round_weight

    def owes(self) -> bool:
        return super().owes() or any(self._owed) or self._under_way is not None

    def flush(self, model: Model) -> Program:
        yield from super().flush(model)
        yield from self._take(model)

    def settle(self, model: Model) -> Program:
        """Exchange every fragment, with the steps since its last exchange."""
        yield from self.flush(model)
        for _ in self._fragments:  # as many rounds on all workers, whatever they owe
            yield from self._exchange(model, nan, 0.0)

    def spread(self, model: Model, writes: bool) -> Program:
        if self._under_way is not None:  # its parameters are replaced
            yield from self._outcome(self._under_way[0])
            self._under_way = None
        yield from super().spread(model, writes)
        self._owed = [0.0] * len(self._fragments)

    def end(self, model: Model) -> Program:
        yield from self.settle(model)
        yield from super().end(model)

    def state_dict(self) -> dict[str, Any]:
        under_way = -1 if self._under_way is None else self._under_way[1]
        more = {"values": self._values, "owed": self._owed, "under_way": under_way}
        return {**super().state_dict(), **more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        restore(self._values, state["values"])
        self._owed = [float(each) for each in state["owed"]]
        number = int(state["under_way"])
        self._under_way = None if number < 0 else (None, number)


strategies.add(StreamingDiLoCo.name, StreamingDiLoCo)
