"""Strangers: callers that have not proved the token yet, or were denied."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.errors import HandshakeFailed
from shoal.transport import Connection

MOST = 128  # the oldest is dropped: a caller that knows the token is done in a moment
HELLO_S = 10.0  # time limit of a caller's handshake
DENIED_S = 1.0  # until a denied caller is told: guesses are slow, and a right proof never waits
WORK_SHARE = 0.25  # of the loop's time for handshakes: one of TLS takes a millisecond
WORK_MAX_S = 0.5  # of such time that is saved, for a cluster whose members come all at once


class Strangers:
    """Connections before the end of their handshake, the oldest first.

    Args:
        most: the largest number of callers.

    Attributes:
        callers: the callers as (connection, end of its time) by file descriptor.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._work_s = WORK_MAX_S
        self._worked_at = 0.0
        self._later: dict[int, Connection] = {}  # by file descriptor, the oldest first
        self.callers: dict[int, tuple[Connection, float]] = {}
        self._denied: set[int] = set()

    def admit(self, connection: Connection, now: float) -> Connection | None:
        """Admit a caller; return one to be dropped for it, if there are too many.

        That is the oldest of those that wait for their first step, or else of all.
        """
        oldest = None
        if len(self.callers) >= self._most:
            first = next(iter(self._later or self.callers))
            oldest = self.callers[first][0]
        self.callers[connection.fileno()] = connection, now + HELLO_S
        return oldest

    def deny(self, connection: Connection, now: float) -> None:
        """Keep a denied caller for DENIED_S before it is told."""
        self._denied.add(connection.fileno())
        self.callers[connection.fileno()] = connection, now + DENIED_S

    def is_denied(self, fileno: int) -> bool:
        return fileno in self._denied

    def worked(self, seconds: float) -> None:
        """Note the time that a caller's handshake has taken."""
        self._work_s -= seconds

    def is_later(self, connection: Connection, now: float) -> bool:
        """Return whether a caller has to wait with a handshake that takes long, and keep it."""
        if not connection.heavy or self._has_time(now):
            return False
        self._later[connection.fileno()] = connection
        return True

    def waits(self, fileno: int) -> bool:
        """Return whether a caller has to wait."""
        return fileno in self._later

    def resumed(self, now: float) -> Iterator[Connection]:
        """Yield the callers that have waited, as long as there is time: the newest first.

        Under a flood the oldest have been given up by their side.
        """
        while self._later and self._has_time(now):
            yield self._later.popitem()[1]

    def _has_time(self, now: float) -> bool:
        saved = self._work_s + WORK_SHARE * (now - self._worked_at)
        self._work_s, self._worked_at = min(saved, WORK_MAX_S), now
        return self._work_s > 0

    def forget(self, fileno: int) -> None:
        """Remove a caller that is welcome or gone."""
        self.callers.pop(fileno, None)
        self._later.pop(fileno, None)
        self._denied.discard(fileno)

    def over(self, now: float) -> Iterator[tuple[Connection, HandshakeFailed | None]]:
        """Yield (caller, its error) of each caller whose time is over.

        A denied caller is sent its verdict, and its error is None.
        """
        for fileno, (connection, until) in list(self.callers.items()):
            if now < until:
                connection.waited(now)
                continue
            if fileno in self._denied:
                connection.deny()
                yield connection, None
            else:
                yield (
                    connection,
                    HandshakeFailed("a caller did not say hello in time", reason="silent"),
                )
