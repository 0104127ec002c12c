"""Processor time of processes, while a benchmark measures what they do together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

CPUCLOCK_SCHED = 2  # of Linux: with a process's id it makes the number of its clock


def spent(pid: int) -> float:
    """Return the seconds of processor time that a process has taken so far, in all its threads."""
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


class ProcessorTime:
    """The processor time of some processes during the turns of each side of a measurement.

    seconds:  by side
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.seconds: defaultdict[int, float] = defaultdict(float)

    @contextmanager
    def during(self, side: int) -> Iterator[None]:
        """Count the time that is spent in a `with` block."""
        before = sum(map(spent, self._pids))
        yield
        self.seconds[side] += sum(map(spent, self._pids)) - before
