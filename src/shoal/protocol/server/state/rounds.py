"""Rounds: the pushes of one clock, which are merged and applied when every worker has passed it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

import msgspec

from shoal.protocol.limits import IN_FLIGHT
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.shard_store import Staged
from shoal.protocol.views import NodeId


class PushPart(msgspec.Struct, frozen=True, eq=False):
    """The part of a push for one shard, with the learning rate in place of the table's."""

    number: int
    staged: Staged
    lr: float | None = None


class Contribution(msgspec.Struct, eq=False):
    """A push that is accepted into an open round, and not applied yet.

    clock:   the round's clock; for a push that waits for a checkpoint clock, the one before that
    weight:  the push's weight in the merged update; 0 for a push that is applied by itself
    pushed:  the clock of the push
    """

    sender: NodeId
    log: RequestLog
    seq: int
    clock: int
    weight: float
    parts: list[PushPart]
    pushed: int

    @property
    def origin(self) -> tuple[int, int, int]:
        """The worker's incarnation, the request, and the worker's oldest one, for other servers."""
        return self.log.incarnation, self.seq, self.log.forget_below


Round = tuple[str, int]  # worker group, clock


class Rounds:
    """The open rounds, and the weights of the latest closed rounds.

    open:  the pushes of each open round
    """

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}  # by group: rounds below closed, of rows then here
        self.open: dict[Round, list[Contribution]] = {}
        self._weights: defaultdict[str, dict[int, float]] = defaultdict(dict)  # by group and clock

    def __bool__(self) -> bool:
        return bool(self.open)

    def first_open(self, group: str) -> int:
        """Return the first clock of a group whose round has not closed.

        Rows that were received from another server may be in a round that had closed here before.
        """
        pushed = (clock for (of, clock), entries in self.open.items() if of == group and entries)
        return min((self._reached.get(group, 0), *pushed))

    def keep(self, groups: Collection[str]) -> None:
        """Forget all groups but these."""
        self._reached = {g: at for g, at in self._reached.items() if g in groups}

    def add(self, entry: Contribution) -> None:
        """Add a push, or further parts of a push that is in the round already."""
        entries = self.open.setdefault((entry.log.group, entry.clock), [])
        for known in entries:
            if known.log is entry.log and known.seq == entry.seq:
                new = {part.number for part in entry.parts}
                known.parts = [p for p in known.parts if p.number not in new] + entry.parts
                return
        entries.append(entry)

    def entries(self) -> list[Contribution]:
        """Return the pushes of all open rounds."""
        return [entry for entries in self.open.values() for entry in entries]

    def nbytes(self, worker: int) -> int:
        """Return the bytes of a worker's pushes in all open rounds."""
        return sum(
            view.nbytes
            for entry in self.entries()
            if entry.log.incarnation == worker
            for part in entry.parts
            for view in part.staged.views
        )

    def waits(self, group: str) -> bool:
        """Return whether any push of a group waits in an open round."""
        return any(entries for (of, _), entries in self.open.items() if of == group)

    def weights(self, group: str) -> tuple[tuple[int, float], ...]:
        """Return (clock, weight) of a group's closed rounds."""
        return tuple(self._weights[group].items())

    def recut(self, cut: Callable[[int, Staged], list[tuple[int, Staged]]]) -> None:
        """Replace every part by its pieces for the shards that are still here."""
        for each, entries in list(self.open.items()):
            for entry in entries:
                entry.parts = [
                    PushPart(*piece, part.lr)
                    for part in entry.parts
                    for piece in cut(part.number, part.staged)
                ]
            self.open[each] = [entry for entry in entries if entry.parts]

    def remove(self, worker: int, seq: int, numbers: Collection[int]) -> None:
        """Remove the parts of a push that are for these shards."""
        for entry in self.entries():
            if entry.log.incarnation == worker and entry.seq == seq:
                entry.parts = [part for part in entry.parts if part.number not in numbers]

    def take(self) -> list[Contribution]:
        """Remove and return the pushes of all open rounds."""
        admitted = self.entries()
        self.open.clear()
        return admitted

    def below(self, group: str, clock: int) -> list[int]:
        """Return a group's open rounds below `clock`."""
        return sorted(at for of, at in self.open if of == group and at < clock)

    def close(self, group: str, clock: int) -> list[Contribution]:
        """Close a round; return its pushes by rank, the order of their merge.

        The caller records their weight (`weigh`). Two pushes of one rank are of a worker that died
        and of the one that took its place.
        """
        entries = self.open.pop((group, clock))
        self.reach(group, clock + 1)
        return sorted(entries, key=lambda each: (each.log.rank, each.log.incarnation, each.seq))

    def weigh(self, group: str, clock: int, weight: float) -> None:
        """Record the weight of a closed round's pushes, here or at the head of a chain."""
        weights = self._weights[group]
        weights[clock] = max(weight, weights.get(clock, 0.0))
        while (oldest := next(iter(weights))) < clock - IN_FLIGHT:
            del weights[oldest]

    def reach(self, group: str, clock: int) -> None:
        self._reached[group] = max(self._reached.get(group, 0), clock)

    def weight(self, group: str, clock: int) -> float:
        """Return the total weight of a closed round's pushes."""
        return self._weights[group].get(clock, 0.0)

    def drop(self, worker: int, last_clock: int) -> None:
        """Remove the pushes of a worker that left from the rounds at or above its last clock."""
        for key in [each for each in self.open if each[1] >= last_clock]:
            kept = [each for each in self.open[key] if each.log.incarnation != worker]
            self.open[key] = kept
