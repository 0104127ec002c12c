"""The workload of whole states: workers assign rows with their optimizer state, and read them back.

Each assignment has a number of its own. It sets the number of updates to this number, and each row
and its momentum to this number plus a fraction that stands for the row. So each fragment is a
register whose parts have to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import msgspec
import numpy as np

from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Exchange, PullOp, PushOp, Start, Wait
from shoal.simulation.checkers.history import check_not_refused, violated
from shoal.simulation.node import Program
from shoal.tables.consistency import Consistency
from shoal.tables.spec import Access, TableSpec

ROWS, FRAGMENT = 8, 2
VISITS = 0.4  # share of the clocks in which a worker uses the table
TIMEOUT_S = 0.3


class Written(msgspec.Struct):
    """An assignment of `rows`, from its start until it was acknowledged."""

    rows: KeyRange
    started: float
    acknowledged: float = inf


class StateWorkload:
    """Assigns states and reads them, and checks what is read."""

    def __init__(self, rule: Consistency, now: Callable[[], float]) -> None:
        access = Access("sgd", {"lr": 0.5, "momentum": 0.5})
        self.spec = TableSpec(
            "state", ROWS, dtype="float64", fragment_rows=FRAGMENT, access=access, consistency=rule
        )
        self._now = now
        self._writes = {0: Written(self.spec.keys, -inf, -inf)}  # by the number that they write

    def visit(self, random: Random) -> Program:
        """Assign, read, or begin to assign and then read."""
        what = random.choice(["assign", "read", "both"]) if random.random() < VISITS else ""
        if what == "assign":
            number, exchange = self._assignment(random)
            self._assigned(number, (yield exchange))
        if what == "both":
            number, exchange = self._assignment(random)
            ticket = yield Start(exchange)
            yield from self._read(random)
            self._assigned(number, (yield Wait(ticket)))
        if what == "read":
            yield from self._read(random)

    def _assignment(self, random: Random) -> tuple[int, Exchange]:
        number, rows = len(self._writes), self._some_rows(random)
        self._writes[number] = Written(rows, self._now())
        values, momentum = (_bytes(number + _behind_point(rows)) for _ in range(2))
        push = PushOp(self.spec.name, rows, values, slots=(momentum,))
        timeout_s = random.choice([None, TIMEOUT_S])
        return number, Exchange((push,), assign=True, updates=number, timeout_s=timeout_s)

    def _assigned(self, number: int, outcome: Outcome) -> None:
        if outcome.error is None:
            self._writes[number].acknowledged = self._now()
        else:
            check_not_refused(outcome)

    def _read(self, random: Random) -> Program:
        rows, started = self._some_rows(random), self._now()
        values, momentum = (np.full(len(rows), -1.0) for _ in range(2))
        pull = PullOp(self.spec.name, rows, _bytes(values), slots=(_bytes(momentum),))
        outcome = yield Exchange(pulls=(pull,), timeout_s=random.choice([None, TIMEOUT_S]))
        if outcome.error is not None:
            check_not_refused(outcome)
            return
        self._check_whole(rows, values, momentum, outcome.updates)
        for at in range(0, len(rows), FRAGMENT):
            self._check_fresh(rows.start + at, int(values[at]), started)

    def _check_whole(
        self, rows: KeyRange, values: np.ndarray, momentum: np.ndarray, updates: int
    ) -> None:
        """Check `torn`: rows, momentum and the number of updates are those of one assignment."""
        numbers = np.floor(values).reshape(-1, FRAGMENT)
        written = numbers.ravel() + np.where(values > 0, _behind_point(rows), 0)
        torn = (values != momentum).any() or (values != written).any()
        if torn or (numbers != numbers[:, :1]).any() or updates != numbers.max():
            text = f"{values.tolist()}, momentum {momentum.tolist()}, {updates} updates"
            raise violated("torn", f"the state of rows {rows} is {text}")

    def _check_fresh(self, row: int, number: int, started: float) -> None:
        """Check `freshness`: a read sees no assignment that was replaced before the read began."""
        seen = self._writes.get(number)
        if seen is None or row not in seen.rows:
            raise violated("freshness", f"row {row} reads {number}, which nobody assigned")
        for other, write in self._writes.items():
            later = write.started > seen.acknowledged and write.acknowledged < started
            if later and row in write.rows:
                raise violated("freshness", f"row {row} reads {number}, after {other} was assigned")

    def _some_rows(self, random: Random) -> KeyRange:
        """Return the table's rows, or some whole fragments of it."""
        first, last = sorted(random.sample(range(ROWS // FRAGMENT + 1), 2))
        some = KeyRange(first * FRAGMENT, last * FRAGMENT)
        return random.choice([self.spec.keys, some])


def _behind_point(rows: KeyRange) -> np.ndarray:
    return np.arange(rows.start, rows.stop) / ROWS


def _bytes(values: np.ndarray) -> memoryview:
    return values.view(np.uint8).data
