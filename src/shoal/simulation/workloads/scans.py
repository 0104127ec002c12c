"""Scans of a sparse ledger: they bring rows as fresh and whole as a pull of all keys does."""

from __future__ import annotations

from random import Random

import numpy as np

from shoal.keys import SLOTS, KeyRange
from shoal.protocol.requests import Exchange, PullOp, Scan
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import Ledger, check_not_refused, check_untorn, violated
from shoal.simulation.node import Program

SCANS = 0.2  # share of the clocks in which a sparse ledger is scanned


def scanned(ledger: Ledger, machine: WorkerMachine, keys: int, random: Random) -> Program:
    """Read all rows of the ledger, in two ranges of slots, and check them."""
    middle, scans = random.randrange(1, SLOTS), (Scan(), Scan())
    ranges = KeyRange(0, middle), KeyRange(middle, SLOTS)
    pulls = [PullOp("ledger", *each) for each in zip(ranges, scans, strict=True)]
    outcome = yield Exchange(pulls=tuple(pulls))
    if outcome.error is not None or machine.session.ended:
        check_not_refused(outcome)
        return
    whole = np.zeros(keys, np.float32)
    seen: set[int] = set()
    for piece in (*scans[0].pieces, *scans[1].pieces):
        count = int(np.frombuffer(piece[:8], np.int64)[0])
        named = np.frombuffer(piece[8 : 8 + 8 * count], np.uint64)
        rows = np.frombuffer(piece[8 + 8 * count :], np.float32)
        width = len(rows) // max(count, 1)
        check_untorn(rows, max(width, 1))
        whole[named.astype(np.int64)] = rows[:: max(width, 1)]
        if seen & set(named.tolist()):
            raise violated("torn", f"a scan brings keys twice: {seen & set(named.tolist())}")
        seen |= set(named.tolist())
    ledger.check_read(machine.session.incarnation, machine.clock, whole)
