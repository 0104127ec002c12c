"""The pushes and pulls that only some exchanges of simulated workers have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.protocol.machine import Outcome
from shoal.protocol.requests import PullOp, PushOp


class Extras:
    """The pushes and pulls of an exchange for other tables than `ledger` and `stamp`.

    how:      the options of the exchange: its weight
    pushers:  called with the outcome of the pushes
    readers:  called with the outcome of the pulls
    """

    def __init__(self) -> None:
        self.pushes: list[PushOp] = []
        self.pulls: list[PullOp] = []
        self.how: dict[str, Any] = {}
        self.pushers: list[Callable[[Outcome], None]] = []
        self.readers: list[Callable[[int, Outcome, bool], None]] = []

    def pushed(self, outcome: Outcome) -> None:
        """Pass the outcome of the pushes to `pushers`."""
        for each in self.pushers:
            each(outcome)

    def read(self, clock: int, outcome: Outcome, overlapped: bool) -> None:
        """Pass the outcome of the pulls, which were made at a clock, to `readers`."""
        for each in self.readers:
            each(clock, outcome, overlapped)


NO_EXTRAS = Extras()
