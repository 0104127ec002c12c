"""Strangers: callers that have not proved the token yet, or were denied."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.errors import HandshakeFailed
from shoal.transport import Connection

MOST = 128  # the oldest is dropped: a caller that knows the token is done in a moment
HELLO_S = 10.0  # time limit of a caller's handshake
DENIED_S = 1.0  # until a denied caller is told: guesses are slow, and a right proof never waits
WORK_SHARE = 0.1  # of the loop's time for handshakes: one of TLS takes a millisecond
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
        self._later: list[Connection] = []
        self.callers: dict[int, tuple[Connection, float]] = {}
        self._denied: set[int] = set()

    def admit(self, connection: Connection, now: float) -> Connection | None:
        """Admit a caller; return the oldest one, to be dropped for it, if there are too many."""
        oldest = None
        if len(self.callers) >= self._most:
            oldest = next(iter(self.callers.values()))[0]
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
        """Return whether a caller has to wait: handshakes have taken their share of the time."""
        if self._has_time(now):
            return False
        self._later.append(connection)
        return True

    def resumed(self, now: float) -> Iterator[Connection]:
        """Yield the callers that have waited, as long as there is time: the newest first.

        Under a flood the oldest have been given up by their side.
        """
        while self._later and self._has_time(now):
            caller = self._later.pop()
            if self.callers.get(caller.fileno(), (None,))[0] is caller:
                yield caller

    def _has_time(self, now: float) -> bool:
        saved = self._work_s + WORK_SHARE * (now - self._worked_at)
        self._work_s, self._worked_at = min(saved, WORK_MAX_S), now
        return self._work_s > 0

    def forget(self, fileno: int) -> None:
        """Remove a caller that is welcome or gone."""
        self.callers.pop(fileno, None)
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
