"""Checkpoint clocks: the clocks that have a checkpoint; every n-th clock, or clocks named by views.

A view made for a checkpoint names a clock beyond every clock that servers have seen pushed, so that
servers and workers know of it in time. If checkpoints are due by seconds, only the scheduler's time
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from shoal.protocol.messages import Frozen
from shoal.protocol.views import FOREVER, View

AHEAD = 4  # clocks beyond the latest that servers have seen: workers may be further
AT_ONCE = 16  # checkpoint clocks that a server takes, when a clock passes more of them
KEPT = 16  # checkpoint clocks in a view: the latest
PAUSE_MOST = 8  # times the interval, between two attempts to name a clock


class CheckpointClocks:
    """The clocks that have a checkpoint.

    every:  distance from one to the next; 0 if only views name them

    >>> clocks = CheckpointClocks(10)
    >>> clocks.latest(25), clocks.following(25), clocks.at(30)
    (20, 30, True)
    """

    def __init__(self, every: int = 0) -> None:
        self._every = every
        self._named: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether any clock has a checkpoint."""
        return bool(self._every or self._named)

    def adopt(self, view: View) -> None:
        """Take the clocks that a view names."""
        self._named = view.checkpoint_clocks

    def at(self, clock: int) -> bool:
        return self.latest(clock) == clock > 0

    def latest(self, clock: int) -> int:
        """Return the latest checkpoint clock <= `clock`, or 0."""
        if clock >= FOREVER:
            return 0
        regular = clock // self._every * self._every if self._every else 0
        return max(regular, *(each for each in self._named if each <= clock), 0)

    def skip_to(self, clock: int) -> int:
        """Return the clock after which at most `AT_ONCE` checkpoint clocks are at or below `clock`.

        A worker that says that it has finished a million clocks at once has done no work between.
        """
        return max(0, clock - self._every * AT_ONCE) if self._every else 0

    def following(self, clock: int) -> int:
        """Return the first known checkpoint clock after `clock`, or FOREVER."""
        named = min((each for each in self._named if each > clock), default=FOREVER)
        return min(named, (clock // self._every + 1) * self._every) if self._every else named


def marked(view: View, promises: Sequence[Frozen]) -> tuple[int, ...]:
    """Return the view's checkpoint clocks, and a new one beyond all that servers have seen.

    No clock is added before the slowest worker has passed the last one.

    view:      the view that is being made
    promises:  the promises of the servers, which are frozen until they have the view
    """
    clocks: dict[int, int] = {}
    known = {m.incarnation for m in (*view.workers, *view.departed) if not m.group}
    for each in promises:
        for worker, clock in each.clocks:
            if worker in known:
                clocks[worker] = max(clock, clocks.get(worker, 0))
    if view.checkpoint_clocks and view.checkpoint_clocks[-1] > min(clocks.values(), default=0):
        return view.checkpoint_clocks
    groups = [each.standing("") for each in promises]
    opened = [each.open_round for each in groups]
    seen = max((at for at in (*clocks.values(), *opened) if at < FOREVER), default=0)
    applied = max((max(each.replayed, each.closed) for each in groups), default=0)
    return (*view.checkpoint_clocks, max(seen, applied) + AHEAD)[-KEPT:]


class CheckpointTimer:
    """When the scheduler makes a view to name a clock, in a run with checkpoints by time.

    every_s:  seconds from one to the next; 0 for none

    A view that names no clock, because the last one is not passed yet, is for nothing: the next one
    is made after twice the time.
    """

    def __init__(self, every_s: float) -> None:
        self.at = inf
        self._every_s = every_s
        self._for_nothing = 1  # intervals to wait
        self._due = False

    def is_due(self, now: float, at_work: bool) -> bool:
        """Return whether a view is to be made, in a run with workers at work."""
        if now < self.at:
            return False
        self.at = now + self._every_s
        self._due = self._due or at_work
        return at_work

    def mark(self, view: View, promises: Sequence[Frozen], now: float) -> View:
        """Return the view with a new clock, if one is due."""
        if self._every_s and self.at == inf:
            self.at = now + self._every_s
        if not self._due:
            return view
        self._due = False
        clocks = marked(view, promises)
        if clocks == view.checkpoint_clocks:
            self._for_nothing = min(2 * self._for_nothing, PAUSE_MOST)
            self.at = now + self._for_nothing * self._every_s
        else:
            self._for_nothing = 1
        return msgspec.structs.replace(view, checkpoint_clocks=clocks)
