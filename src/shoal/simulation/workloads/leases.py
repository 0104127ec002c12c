"""Harvest: leased batches of a simulated run, each of which adds 1 to a row of its own.

What the scheduler's ledger calls done has to be in the table, once where rounds close together.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from shoal.protocol.machine import Outcome
from shoal.protocol.messages import Leased
from shoal.protocol.requests import PushOp, TakeLease
from shoal.protocol.scheduler.leases import Leases, LedgerRecord
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.tables.spec import Access, Consistency, TableSpec

EPOCHS, BATCHES = 2, 16


class LeaseWorkload:
    """Who does which batch, and what the table may read."""

    def __init__(self, consistency: Consistency) -> None:
        rows = EPOCHS * BATCHES
        self.spec = TableSpec(
            "harvest",
            rows,
            fragment_rows=rows // 4,
            access=Access("sum"),
            consistency=consistency,
            merge="sum",
        )
        self._exact = consistency.apply_at == "round_end"
        self.patient = consistency.name == "asp"
        self._held: dict[int, list[int]] = {}  # rows that are still to be done, by incarnation
        self._unsure: set[int] = set()

    def push(self, machine: WorkerMachine) -> Generator[Any, Any, PushOp | None]:
        """The push of this clock's batch, if there is one."""
        held = self._held.setdefault(machine.session.incarnation, [])
        if not held:
            outcome: Outcome = yield TakeLease(EPOCHS, BATCHES, self.patient)
            lease = outcome.value
            if not isinstance(lease, Leased):
                return None
            first = lease.epoch * BATCHES + lease.first
            held.extend(range(first, first + lease.count))
            if not held:
                return None
        keys, one = np.array([held.pop(0)], np.int64), np.ones(1, np.float32)
        return PushOp("harvest", self.spec.keys, one.view(np.uint8).data, keys.data)

    def pushed(self, push: PushOp, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._unsure.add(int(np.asarray(push.keys)[0]))

    def leave(self, incarnation: int) -> None:
        """A worker's work is done, before it has done all that it had."""
        self._unsure.update(self._held.pop(incarnation, ()))

    def check_end(self, rows: np.ndarray, record: LedgerRecord, whole: bool) -> None:
        """`leased`: what is done reads 1, what nobody has begun 0, in rounds that close together.

        whole: whether all that was accepted is in the rows
        """
        undone = {epoch * BATCHES + batch for epoch, batch in Leases(record).undone()}
        under_way = {
            granted.span.epoch * BATCHES + granted.span.first + at
            for granted in record.granted
            for at in range(granted.span.count)
        }
        for row, times in enumerate(rows.tolist()):
            if self._exact and times > 1:
                raise violated("leased", f"batch {row} counts {times:g} times")
            if self._exact and times and row in undone:
                raise violated("leased", f"batch {row} counts, and is to be done again")
            done = record.epochs and row not in undone | under_way | self._unsure
            if whole and done and not times:
                raise violated("leased", f"batch {row} is done, and does not count")
