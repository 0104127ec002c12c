"""Departure: a server that was asked to leave ends, with its scheduler or without.

The scheduler moves the server's rows first, and then ends the server. If the scheduler is gone, the
sender of SIGTERM would wait for ever. So the server ends by itself, as if it had crashed: after
`SessionOptions.farewell_s` without a message of the scheduler; after a part of that time if the
connection broke as well, because a scheduler that has ended is restarted within that part or not
soon; and at once before its first view, when it has no rows.
"""

from __future__ import annotations

from math import inf

from shoal.errors import LeftAlone
from shoal.protocol.machine import Effects
from shoal.protocol.messages.membership import Leave
from shoal.protocol.session import Session

CUT_OFF_SHARE = 0.3  # of `farewell_s`


class Departure:
    """The end of a server that was asked to leave and gets no answer of its scheduler."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked_at = inf

    def ask(self, request_id: int, now: float, out: Effects) -> None:
        """Ask the scheduler to move this server's rows and to end it."""
        session = self._session
        if session.view is None:
            session.stop(out, LeftAlone("it was told to leave before the cluster was complete"))
            return
        self._asked_at = min(now, self._asked_at)
        session.ask("leave", request_id, Leave(session.incarnation), now, out)

    def wakes_at(self) -> float:
        if self._asked_at == inf or "leave" not in self._session.questions():
            return inf  # not asked, or refused
        limit = self._session.options.farewell_s * (CUT_OFF_SHARE if self._session.cut_off else 1)
        return max(self._asked_at, self._session.silent_since) + limit

    def look(self, now: float, out: Effects) -> None:
        """End the server if the scheduler has been silent for too long."""
        if now >= self.wakes_at():
            silent_s = now - self._session.silent_since
            reason = f"it was told to leave, and the scheduler has been silent for {silent_s:.1f} s"
            self._session.stop(out, LeftAlone(f"{reason}: its rows were not moved"))
