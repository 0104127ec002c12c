"""Consistency: when a read is admitted and when a push is applied, as rules on vector clocks.

A worker's clock counts the iterations that it has finished. With m the slowest worker's clock, a
read at clock c is admitted under

    BSP      m >= c           and pushes are applied when their round closes
    SSP(s)   m >= c - s       (Ho et al. 2013, section 2: the staleness bound)
    ASP      always

A round c closes when m > c, that is, when no worker can push for it any more. SSP(0) differs from
BSP only in when pushes are applied; with apply_at="round_end" the two are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from shoal.protocol.views import FOREVER
from shoal.tables.spec import Consistency


class VectorClock:
    """The clocks of a group's workers, by incarnation, with a histogram.

    `minimum` is a plain attribute: reading it is free, and an update searches the *distinct* clocks
    only when the slowest worker moves.
    Invariant: `minimum == min(clocks.values(), default=FOREVER)`.

    >>> clock = VectorClock()
    >>> clock.enter(1, 0); clock.enter(2, 0)
    >>> clock.advance(1, 3), clock.minimum, clock.advance(2, 1), clock.minimum
    (True, 0, True, 1)
    """

    __slots__ = ("_clocks", "_histogram", "minimum")

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._histogram: Counter[int] = Counter()
        self.minimum = FOREVER

    def __getitem__(self, worker: int) -> int:
        return self._clocks[worker]

    def __len__(self) -> int:
        return len(self._clocks)

    def __contains__(self, worker: object) -> bool:
        return worker in self._clocks

    def items(self) -> Iterator[tuple[int, int]]:
        return iter(sorted(self._clocks.items()))

    def enter(self, worker: int, clock: int) -> None:
        """Add a worker whose first round is `clock`."""
        self._clocks[worker] = clock
        self._histogram[clock] += 1
        self.minimum = min(self.minimum, clock)

    def leave(self, worker: int) -> int:
        """Remove a worker; returns the clock that it had reached."""
        clock = self._clocks.pop(worker)
        self._drop(clock)
        return clock

    def advance(self, worker: int, to: int) -> bool:
        """Move a worker's clock forward; False if it was there already (a duplicate)."""
        before = self._clocks[worker]
        if to <= before:
            return False
        self._clocks[worker] = to
        self._histogram[to] += 1
        self._drop(before)
        return True

    def reset(self, clock: int) -> None:
        """Set all clocks to at most `clock`, until the workers report theirs again."""
        self._clocks = {worker: min(at, clock) for worker, at in self._clocks.items()}
        self._histogram = Counter(self._clocks.values())
        self.minimum = min(self._histogram, default=FOREVER)

    def behind(self, clock: int) -> list[int]:
        """The workers that have not reached `clock`."""
        return sorted(worker for worker, at in self._clocks.items() if at < clock)

    def _drop(self, clock: int) -> None:
        self._histogram[clock] -= 1
        if not self._histogram[clock]:
            del self._histogram[clock]
            if clock == self.minimum:
                self.minimum = min(self._histogram, default=FOREVER)


class Clocks:
    """The clocks of all workers: one vector clock for each worker group.

    by_worker:  the vector that a worker is in

    >>> clocks = Clocks()
    >>> clocks.enter(1, 0); clocks.enter(2, 5, "eval")
    >>> clocks.of("").minimum, clocks.of("eval").minimum, clocks.group(2), clocks[2]
    (0, 5, 'eval', 5)
    """

    def __init__(self) -> None:
        self._vectors: dict[str, VectorClock] = {"": VectorClock()}
        self._groups: dict[int, str] = {}
        self.by_worker: dict[int, VectorClock] = {}

    def of(self, group: str) -> VectorClock:
        """The vector clock of a group."""
        vector = self._vectors.get(group)
        if vector is None:
            vector = self._vectors[group] = VectorClock()
        return vector

    def group(self, worker: int) -> str:
        """The group of a worker; the first group for an unknown worker."""
        return self._groups.get(worker, "")

    def groups(self) -> list[str]:
        """All known groups."""
        return sorted(self._vectors)

    def __getitem__(self, worker: int) -> int:
        return self._vectors[self._groups[worker]][worker]

    def __contains__(self, worker: object) -> bool:
        return worker in self._groups

    def items(self) -> Iterator[tuple[int, int]]:
        return iter([(worker, self[worker]) for worker in sorted(self._groups)])

    def enter(self, worker: int, clock: int, group: str = "") -> None:
        """Add a worker whose first round is `clock`."""
        self._groups[worker] = group
        self.by_worker[worker] = self.of(group)
        self.of(group).enter(worker, clock)

    def keep(self, groups: Collection[str]) -> None:
        """Keep the vector clocks of these groups only; the others have no workers."""
        self._vectors = {group: self.of(group) for group in groups}

    def leave(self, worker: int) -> None:
        """Forget a worker."""
        self._groups.pop(worker)
        self.by_worker.pop(worker).leave(worker)


def needed(rule: Consistency, read_clock: int) -> int:
    """The clock that every worker must have reached before the read is admitted."""
    return 0 if rule.name == "asp" else max(0, read_clock - rule.staleness)


def apply_clock(rule: Consistency, push_clock: int) -> int:
    """The clock that every worker must have reached before a push is applied; 0 for at once."""
    return push_clock + 1 if rule.apply_at == "round_end" else 0
