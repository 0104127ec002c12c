"""Markers: the clocks that have a checkpoint. Every so many, or those that views name.

A view that is made for a checkpoint names a clock beyond all that servers have seen pushed, so that
servers and workers know of it in time. Seconds are the scheduler's: nobody else's clock counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.messages import Frozen
from shoal.protocol.views import FOREVER, View

AHEAD = 4  # clocks, beyond what servers have seen: workers may be ahead of that
KEPT = 16  # the latest ones, in a view


class CheckpointClocks:
    """Which clocks have one.

    every:  clocks from one to the next; 0 where views name them

    >>> clocks = CheckpointClocks(10)
    >>> clocks.latest(25), clocks.following(25), clocks.at(30)
    (20, 30, True)
    """

    def __init__(self, every: int = 0) -> None:
        self._every = every
        self._named: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._every or self._named)

    def adopt(self, view: View) -> None:
        """The clocks that it names."""
        self._named = view.checkpoint_clocks

    def at(self, clock: int) -> bool:
        return self.latest(clock) == clock > 0

    def latest(self, clock: int) -> int:
        """The latest one that is passed at `clock`; 0 for none."""
        if clock >= FOREVER:
            return 0
        regular = clock // self._every * self._every if self._every else 0
        return max(regular, *(each for each in self._named if each <= clock), 0)

    def following(self, clock: int) -> int:
        """The first after `clock`, of those that are known; FOREVER for none."""
        named = min((each for each in self._named if each > clock), default=FOREVER)
        return min(named, (clock // self._every + 1) * self._every) if self._every else named


def marked(view: View, promises: Sequence[Frozen]) -> tuple[int, ...]:
    """The clocks that a view names, and one more: beyond all that servers have seen or applied.

    The last one is to be behind the slowest worker first: it is taken then.

    view:      the one that is being made
    promises:  of servers, which do nothing until they have the new one
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
