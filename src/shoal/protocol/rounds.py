"""Rounds: pushes that wait for every worker to finish a clock, and are then applied as one."""

from __future__ import annotations

import msgspec

from shoal.protocol.shards import Staged
from shoal.protocol.views import NodeId
from shoal.protocol.windows import WINDOW, Window


class Contribution(msgspec.Struct, eq=False):
    """One push in a round's accumulator: accepted, not acknowledged."""

    sender: NodeId
    window: Window
    seq: int
    weight: float
    lr: float | None
    parts: list[tuple[int, Staged]]


class Rounds:
    """The rounds that are open, and the weights of the latest that have closed.

    `first_open` is after every round that has closed, whoever took part.
    """

    def __init__(self) -> None:
        self.first_open = 0
        self._open: dict[int, list[Contribution]] = {}
        self._weights: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, clock: int, entry: Contribution) -> None:
        self._open.setdefault(clock, []).append(entry)

    def below(self, clock: int) -> list[int]:
        """The open rounds that are to close when every worker has reached `clock`."""
        return sorted(each for each in self._open if each < clock) if self._open else []

    def close(self, clock: int) -> list[Contribution]:
        """The round's pushes, by rank: the order in which they are merged."""
        entries = sorted(self._open.pop(clock), key=lambda entry: (entry.window.rank, entry.seq))
        self.reach(clock + 1)
        self.weigh(clock, sum(entry.weight for entry in entries))
        return entries

    def weigh(self, clock: int, weight: float) -> None:
        """A round that has closed had pushes of this weight: here, or at the head of an arc."""
        self._weights[clock] = max(weight, self._weights.get(clock, 0.0))
        for old in [each for each in self._weights if each < clock - WINDOW]:
            del self._weights[old]

    def reach(self, clock: int) -> None:
        self.first_open = max(self.first_open, clock)

    def weight(self, clock: int) -> float:
        """Total weight of the pushes that a closed round had."""
        return self._weights.get(clock, 0.0)

    def drop(self, worker: int, last_clock: int) -> None:
        """A dead worker counts in the rounds below its last clock and in no others (rule 5)."""
        for clock in [each for each in self._open if each >= last_clock]:
            kept = [each for each in self._open[clock] if each.window.incarnation != worker]
            self._open[clock] = kept
