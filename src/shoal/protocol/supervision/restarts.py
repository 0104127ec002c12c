"""When a process that has died is started again: at once after a kill, later after a failure.

A killed process did nothing wrong. One that failed (a full disk, no memory) may fail again, so that
the pauses between its starts double. The restarts of each kind are limited: to `KILLS` in `KILLS_S`
seconds, and to `FAILURES` in `FAILURES_S` seconds.
"""

from __future__ import annotations

KILLS, KILLS_S = 20, 10.0
FAILURES, FAILURES_S = 6, 60.0
PAUSE_S = 0.25  # the pause after the first recent failure of a process
STARTED_S = 10.0  # a process that has lived so long has started well


class Restarts:
    """The starts and deaths of a run's processes, by name."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._died: dict[tuple[str, bool], list[float]] = {}
        self._due: dict[str, float] = {}
        self._well: set[str] = set()
        self.names: set[str] = set()  # the processes that were, or will be, started again

    @property
    def waiting(self) -> bool:
        """Whether a process waits to be started again."""
        return bool(self._due)

    def awaits(self, name: str) -> bool:
        """Return whether a process waits to be started again."""
        return name in self._due

    def expect(self, name: str) -> None:
        """Note that a process that has not died is started again."""
        self.names.add(name)

    def began(self, name: str, now: float) -> None:
        """Note that a process was started."""
        self._began[name] = now

    def plan(self, name: str, killed: bool, now: float) -> bool:
        """Plan to start a process again; return False if it has died too often lately."""
        most, within_s = (KILLS, KILLS_S) if killed else (FAILURES, FAILURES_S)
        if now - self._began[name] >= STARTED_S:
            self._well.add(name)
        lately = [at for at in self._died.get((name, killed), ()) if at > now - within_s]
        if len(lately) >= most:
            return False
        self._died[name, killed] = [*lately, now]
        self._due[name] = now if killed else now + PAUSE_S * 2 ** len(lately)
        self.names.add(name)
        return True

    def started_well(self, name: str) -> bool:
        """Return whether a process had lived for `STARTED_S` seconds before one of its deaths."""
        return name in self._well

    def due(self, now: float) -> list[str]:
        """Remove and return the processes to start now."""
        found = [name for name, at in self._due.items() if now >= at]
        for name in found:
            del self._due[name]
        return found
