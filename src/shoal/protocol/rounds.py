"""Rounds: pushes that wait for every worker to finish a clock, and are then applied as one."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from shoal.protocol.shards import Staged
from shoal.protocol.views import NodeId
from shoal.protocol.windows import WINDOW, Window


class Contribution(msgspec.Struct, eq=False):
    """One push in a round's accumulator: accepted, not acknowledged.

    clock:   of the round; of a push that waits for a marker, of the one before that
    weight:  in what the round comes to; 0 of one that is applied by itself
    pushed:  the clock of the push
    """

    sender: NodeId
    window: Window
    seq: int
    clock: int
    weight: float
    lr: float | None
    parts: list[tuple[int, Staged]]
    pushed: int


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
        """Another push; or more of one, of which some is here."""
        entries = self._open.setdefault(clock, [])
        for known in entries:
            if known.window is entry.window and known.seq == entry.seq:
                new = {number for number, _ in entry.parts}
                known.parts = [p for p in known.parts if p[0] not in new] + entry.parts
                return
        entries.append(entry)

    def entries(self) -> list[Contribution]:
        """Of all rounds that are open."""
        return [entry for entries in self._open.values() for entry in entries]

    def weights(self) -> tuple[tuple[int, float], ...]:
        """Of rounds that have closed."""
        return tuple(self._weights.items())

    def recut(self, cut: Callable[[int, Staged], list[tuple[int, Staged]]]) -> None:
        """Have every part cut into what of it is still here."""
        for clock, entries in list(self._open.items()):
            for entry in entries:
                entry.parts = [piece for part in entry.parts for piece in cut(*part)]
            self._open[clock] = [entry for entry in entries if entry.parts]

    def remove(self, worker: int, seq: int, numbers: Collection[int]) -> None:
        """What of a push was for these shards waits no longer."""
        for entry in self.entries():
            if entry.window.incarnation == worker and entry.seq == seq:
                entry.parts = [part for part in entry.parts if part[0] not in numbers]

    def take(self) -> list[tuple[int, Contribution]]:
        """All that is open, with its round: it is no longer here."""
        taken = [(clock, entry) for clock, entries in self._open.items() for entry in entries]
        self._open.clear()
        return taken

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
