"""Consistency: when a read is admitted and when a push is applied, as rules on vector clocks.

A worker's clock counts the iterations that it has finished. With m the slowest worker's clock, a
read at clock c is admitted under

    BSP      m >= c           and pushes are applied when their round closes
    SSP(s)   m >= c - s       (Ho et al. 2013, section 2: the staleness bound)
    ASP      always

A round c closes when m > c, that is, when no worker can push for it any more. SSP(0) differs from
BSP only in when pushes are applied; with apply_at="round_end" the two are equal.

A group whose tables close rounds by another rule (`Quorum`, `Cover`) uses the number of its closed
rounds in place of m everywhere: for reads, for checkpoints and for the clocks that heads send along
their chains.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from math import inf

from shoal.protocol.views import FOREVER
from shoal.tables.consistency import Consistency, Cover, Quorum
from shoal.tables.spec import TableSpec


class VectorClock:
    """The clocks of a group's workers, by incarnation, and which rounds have closed.

    `minimum` and `closed` are plain attributes, which are free to read. An update searches the
    *distinct* clocks only when the slowest worker moves.
    Invariants: `minimum == min(clocks.values(), default=FOREVER)`; `closed >= minimum`, and equal
    where rounds wait for all workers.

    closed:  the first round that has not closed
    closes:  the rule by which rounds close; None if they wait for all workers
    due_at:  the time at which the next round closes because its grace window is over

    >>> clock = VectorClock()
    >>> clock.enter(1, 0); clock.enter(2, 0)
    >>> clock.advance(1, 3), clock.minimum, clock.advance(2, 1), clock.minimum
    (True, 0, True, 1)
    """

    __slots__ = (
        "_clocks",
        "_closed",
        "_histogram",
        "_passed",
        "_ranks",
        "closed",
        "closes",
        "minimum",
    )

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._histogram: Counter[int] = Counter()
        self.minimum = self.closed = FOREVER
        self.closes: Quorum | Cover | None = None
        self._closed = 0  # the first round that the rule has not closed
        self._passed: deque[tuple[float, int]] = deque()  # (closes at, clock), both ascending

    def __getitem__(self, worker: int) -> int:
        return self._clocks[worker]

    def __len__(self) -> int:
        return len(self._clocks)

    def __contains__(self, worker: object) -> bool:
        return worker in self._clocks

    def items(self) -> Iterator[tuple[int, int]]:
        return iter(sorted(self._clocks.items()))

    def enter(self, worker: int, clock: int, rank: int = 0) -> None:
        """Add a worker whose first round is `clock`."""
        self._clocks[worker] = clock
        self._ranks[worker] = rank
        self._histogram[clock] += 1
        self._settle(min(self.minimum, clock))

    def leave(self, worker: int) -> int:
        """Remove a worker; return the clock that it had reached."""
        clock = self._clocks.pop(worker)
        del self._ranks[worker]
        self._drop(clock)
        return clock

    def advance(self, worker: int, to: int) -> bool:
        """Move a worker's clock forward; return False if it was there already (a duplicate)."""
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
        self._closed = min(self._closed, clock)
        self._passed.clear()
        self._settle(min(self._histogram, default=FOREVER))

    def behind(self, clock: int) -> list[int]:
        """Return the workers that have not reached `clock`."""
        return sorted(worker for worker, at in self._clocks.items() if at < clock)

    # ------------------------------------------------------------------ rounds

    @property
    def due_at(self) -> float:
        return self._passed[0][0] if self._passed else inf

    def close_by(self, closes: Quorum | Cover | None) -> None:
        """Set the rule by which rounds close."""
        if closes != self.closes:
            self.closes = closes
            self._passed.clear()
            self._settle(self.minimum)

    def look(self, now: float) -> bool:
        """Close the rounds that are due; return whether any has closed."""
        if self.closes is None:
            return False
        before, grace_s = self.closed, 0.0
        if isinstance(self.closes, Quorum):
            grace_s = self.closes.grace_s
        passed = self.passed()
        if before < passed < FOREVER and (not self._passed or self._passed[-1][1] < passed):
            self._passed.append((now + grace_s, passed))
        while self._passed and (self._passed[0][0] <= now or self._passed[0][1] <= self.minimum):
            self._closed = max(self._closed, self._passed.popleft()[1])
        self._settle(self.minimum)
        return self.closed > before

    def passed(self) -> int:
        """Return the clock that enough workers have reached, by the rule; FOREVER if none works."""
        at_work = {worker: at for worker, at in self._clocks.items() if at < FOREVER}
        if isinstance(self.closes, Quorum):
            latest_first = sorted(at_work.values(), reverse=True)
            return latest_first[: self.closes.k][-1] if latest_first else FOREVER
        if isinstance(self.closes, Cover):
            first: dict[int, int] = {}
            for worker, at in at_work.items():
                group = cover_group(self.closes, self._ranks[worker])
                first[group] = max(at, first.get(group, 0))
            return min(first.values(), default=FOREVER)
        return self.minimum

    def _drop(self, clock: int) -> None:
        self._histogram[clock] -= 1
        if not self._histogram[clock]:
            del self._histogram[clock]
            if clock == self.minimum:
                self._settle(min(self._histogram, default=FOREVER))

    def _settle(self, minimum: int) -> None:
        self.minimum = self.closed = minimum
        if self.closes is not None:
            self.closed = max(self._closed, minimum)


def cover_group(closes: Cover, rank: int) -> int:
    """Return the lowest rank in the cover group of a rank; the rank itself if it is in no group."""
    return _cover_groups(closes).get(rank, rank)


@lru_cache(maxsize=64)
def _cover_groups(closes: Cover) -> dict[int, int]:
    return {rank: min(group) for group in closes.groups for rank in group}


class Clocks:
    """The clocks of all workers: one vector clock for each worker group.

    by_worker:  the vector clock of the group of each worker, by incarnation
    due_at:     the time at which the next round closes because its grace window is over

    >>> clocks = Clocks()
    >>> clocks.enter(1, 0); clocks.enter(2, 5, "eval")
    >>> clocks.of("").minimum, clocks.of("eval").minimum, clocks.group(2), clocks[2]
    (0, 5, 'eval', 5)
    """

    def __init__(self) -> None:
        self._vectors: dict[str, VectorClock] = {"": VectorClock()}
        self._groups: dict[int, str] = {}
        self.by_worker: dict[int, VectorClock] = {}
        self.due_at = inf

    def of(self, group: str) -> VectorClock:
        """Return the vector clock of a group; create it if it is missing."""
        vector = self._vectors.get(group)
        if vector is None:
            vector = self._vectors[group] = VectorClock()
        return vector

    def group(self, worker: int) -> str:
        """Return the group of a worker; the first group for an unknown worker."""
        return self._groups.get(worker, "")

    def groups(self) -> list[str]:
        """Return the names of all known groups."""
        return sorted(self._vectors)

    def __getitem__(self, worker: int) -> int:
        return self._vectors[self._groups[worker]][worker]

    def __contains__(self, worker: object) -> bool:
        return worker in self._groups

    def items(self) -> Iterator[tuple[int, int]]:
        return iter([(worker, self[worker]) for worker in sorted(self._groups)])

    def enter(self, worker: int, clock: int, group: str = "", rank: int = 0) -> None:
        """Add a worker whose first round is `clock`."""
        self._groups[worker] = group
        self.by_worker[worker] = self.of(group)
        self.of(group).enter(worker, clock, rank)

    def keep(self, groups: Collection[str]) -> None:
        """Keep the vector clocks of these groups only; the others have no workers."""
        self._vectors = {group: self.of(group) for group in groups}

    def leave(self, worker: int) -> None:
        """Forget a worker."""
        self._groups.pop(worker)
        self.by_worker.pop(worker).leave(worker)

    def close_by(self, tables: Iterable[TableSpec]) -> None:
        """Set the rule by which each group closes rounds; its tables share it, except ASP ones."""
        rules = {t.group: t.consistency.closes for t in tables if t.consistency.name != "asp"}
        for group, vector in self._vectors.items():
            vector.close_by(rules.get(group))

    def look(self, group: str, now: float) -> bool:
        """Close the rounds of a group that are due; return whether any has closed."""
        closed = self.of(group).look(now)
        if self.due_at < inf or self.of(group).due_at < inf:
            self.due_at = min(vector.due_at for vector in self._vectors.values())
        return closed


def needed(rule: Consistency, read_clock: int) -> int:
    """Return the clock that every worker must have reached before the read is admitted."""
    return 0 if rule.name == "asp" else max(0, read_clock - rule.staleness)


def apply_clock(rule: Consistency, push_clock: int) -> int:
    """Return the clock that every worker must have reached before a push is applied; 0: at once."""
    return push_clock + 1 if rule.apply_at == "round_end" else 0
