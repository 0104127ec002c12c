"""Processor time of processes, while a benchmark measures what they do together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def spent(pid: int) -> float:
    """Return the seconds of processor time that the threads of a process have taken so far."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


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
