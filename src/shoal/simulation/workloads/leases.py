"""The workload of leased batches: each batch adds 1 to a row of its own.

Every batch that the scheduler's lease ledger calls done has to be in the table; if pushes are
applied at the end of rounds, exactly once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from shoal.protocol.machine import Outcome
from shoal.protocol.messages.membership import Leased
from shoal.protocol.requests import PushOp, TakeLease
from shoal.protocol.scheduler.leases.ledger import Leases, LedgerRecord
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.simulation.plan import BATCHES, EPOCHS
from shoal.tables.consistency import Consistency
from shoal.tables.spec import Access, TableSpec


class LeaseWorkload:
    """Pushes leased batches, and checks the table at the end."""

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
        self._held: dict[int, list[int]] = {}  # rows of leased batches, by incarnation
        self.unsure: set[int] = set()  # batches whose push may be lost, or count after an error

    def push(self, machine: WorkerMachine) -> Generator[Any, Any, PushOp | None]:
        """Return the push of this clock's batch, or None if there is none."""
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
            self.unsure.add(int(np.asarray(push.keys)[0]))

    def leave(self, incarnation: int) -> None:
        """Record that a worker ends with leased batches that it has not pushed."""
        self.unsure.update(self._held.pop(incarnation, ()))

    def check_end(self, rows: np.ndarray, record: LedgerRecord, whole: bool) -> None:
        """Check `leased`: batches that are done read 1, and free ones 0.

        Without rounds a batch may count more than once.

        whole:  whether all accepted pushes are in the rows
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
            done = record.epochs and row not in undone | under_way | self.unsure
            if whole and done and not times:
                raise violated("leased", f"batch {row} is done, and does not count")
