"""Checkpoint clocks: the clocks that have a checkpoint; every n-th clock, or clocks named by views.

A view made for a checkpoint names a clock beyond every clock that servers have seen pushed, so that
servers and workers know of it in time. The scheduler makes this view at a regular interval, and
when a checkpoint is requested. From which of them a run continues is decided in
`storage.checkpoints`.
"""

from __future__ import annotations

from shoal.protocol.views import FOREVER, View

AT_ONCE = 16  # regular checkpoint clocks that a server saves at most, when a clock passes more


class CheckpointClocks:
    """The clocks that have a checkpoint.

    every:  the distance between regular checkpoint clocks; 0 if only views name checkpoint clocks

    >>> clocks = CheckpointClocks(10)
    >>> clocks.latest(25), clocks.following(25), clocks.at(30)
    (20, 30, True)
    """

    def __init__(self, every: int = 0) -> None:
        self._every = every
        self._named: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Return whether any clock has a checkpoint."""
        return bool(self._every or self._named)

    def adopt(self, view: View) -> None:
        """Replace the named checkpoint clocks with those of a view."""
        self._named = view.checkpoint_clocks

    def at(self, clock: int) -> bool:
        return self.latest(clock) == clock > 0

    def latest(self, clock: int) -> int:
        """Return the latest checkpoint clock <= `clock`, or 0."""
        if clock >= FOREVER:
            return 0
        regular = clock // self._every * self._every if self._every else 0
        return max(regular, *(each for each in self._named if each <= clock), 0)

    def due_by(self, clock: int) -> int:
        """Return the clock up to which checkpoints are due once rounds below `clock` are closed.

        A group whose last worker has finished has closed all rounds: the checkpoints that views
        have promised are due, although no worker has reached their clocks. There is no last regular
        checkpoint clock.
        """
        return clock if clock < FOREVER else max(self._named, default=0)

    def skip_to(self, clock: int) -> int:
        """Return the clock after which `AT_ONCE` regular checkpoint clocks are at or below `clock`.

        A worker that reports a million finished clocks at once has done no work between.
        """
        return max(0, clock - self._every * AT_ONCE) if self._every else 0

    def following(self, clock: int) -> int:
        """Return the first known checkpoint clock after `clock`, or FOREVER."""
        named = min((each for each in self._named if each > clock), default=FOREVER)
        return min(named, (clock // self._every + 1) * self._every) if self._every else named
