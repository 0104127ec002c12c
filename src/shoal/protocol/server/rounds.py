"""Rounds: pushes that wait for every worker to finish a clock, and are then applied as one."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from shoal.protocol.limits import WINDOW
from shoal.protocol.server.request_log import RequestLog
from shoal.protocol.server.shard_store import Staged
from shoal.protocol.views import NodeId


class Contribution(msgspec.Struct, eq=False):
    """One push in a round's accumulator: accepted, not acknowledged.

    clock:   of the round; of a push that waits for a marker, of the one before that
    weight:  in what the round comes to; 0 of one that is applied by itself
    pushed:  the clock of the push
    """

    sender: NodeId
    log: RequestLog
    seq: int
    clock: int
    weight: float
    lr: float | None
    parts: list[tuple[int, Staged]]
    pushed: int


Round = tuple[str, int]  # of a group of workers, and its clock


class Rounds:
    """The rounds that are open, and the weights of the latest that have closed.

    open:  the pushes of each
    """

    def __init__(self) -> None:
        self._first_open: dict[str, int] = {}
        self.open: dict[Round, list[Contribution]] = {}
        self._weights: dict[Round, float] = {}

    def __bool__(self) -> bool:
        return bool(self.open)

    def first_open(self, group: str) -> int:
        """After every round of a group's that has closed, whoever took part."""
        return self._first_open.get(group, 0)

    def keep(self, groups: Collection[str]) -> None:
        """There are these, and no other has any tables."""
        self._first_open = {g: at for g, at in self._first_open.items() if g in groups}

    def add(self, entry: Contribution) -> None:
        """Another push; or more of one, of which some is here."""
        entries = self.open.setdefault((entry.log.group, entry.clock), [])
        for known in entries:
            if known.log is entry.log and known.seq == entry.seq:
                new = {number for number, _ in entry.parts}
                known.parts = [p for p in known.parts if p[0] not in new] + entry.parts
                return
        entries.append(entry)

    def entries(self) -> list[Contribution]:
        """Of all rounds that are open."""
        return [entry for entries in self.open.values() for entry in entries]

    def waits(self, group: str) -> bool:
        """Whether any of a group's pushes do."""
        return any(entries for (of, _), entries in self.open.items() if of == group)

    def weights(self, group: str) -> tuple[tuple[int, float], ...]:
        """Of its rounds that have closed."""
        return tuple((clock, w) for (of, clock), w in self._weights.items() if of == group)

    def recut(self, cut: Callable[[int, Staged], list[tuple[int, Staged]]]) -> None:
        """Have every part cut into what of it is still here."""
        for each, entries in list(self.open.items()):
            for entry in entries:
                entry.parts = [piece for part in entry.parts for piece in cut(*part)]
            self.open[each] = [entry for entry in entries if entry.parts]

    def remove(self, worker: int, seq: int, numbers: Collection[int]) -> None:
        """What of a push was for these shards waits no longer."""
        for entry in self.entries():
            if entry.log.incarnation == worker and entry.seq == seq:
                entry.parts = [part for part in entry.parts if part[0] not in numbers]

    def take(self) -> list[Contribution]:
        """All that is open: it is no longer here."""
        admitted = self.entries()
        self.open.clear()
        return admitted

    def below(self, group: str, clock: int) -> list[int]:
        """A group's open rounds that are to close when each of its workers has reached `clock`."""
        return sorted(at for of, at in self.open if of == group and at < clock)

    def close(self, group: str, clock: int) -> list[Contribution]:
        """The round's pushes, by rank: the order in which they are merged."""
        entries = self.open.pop((group, clock))
        self.reach(group, clock + 1)
        self.weigh(group, clock, sum(entry.weight for entry in entries))
        return sorted(entries, key=lambda entry: (entry.log.rank, entry.seq))

    def weigh(self, group: str, clock: int, weight: float) -> None:
        """A round that has closed had pushes of this weight: here, or at the head of an arc."""
        self._weights[group, clock] = max(weight, self.weight(group, clock))
        for old in [each for each in self._weights if each[0] == group]:
            if old[1] < clock - WINDOW:
                del self._weights[old]

    def reach(self, group: str, clock: int) -> None:
        self._first_open[group] = max(self.first_open(group), clock)

    def weight(self, group: str, clock: int) -> float:
        """Total weight of the pushes that a closed round had."""
        return self._weights.get((group, clock), 0.0)

    def drop(self, worker: int, last_clock: int) -> None:
        """A dead worker counts in the rounds below its last clock and in no others (rule 5)."""
        for key in [each for each in self.open if each[1] >= last_clock]:
            kept = [each for each in self.open[key] if each.log.incarnation != worker]
            self.open[key] = kept
