"""Waits: who waits at a server, for whom, and for how long they have waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages import SCHEDULER, StatusReply, Waiting, WaitTimes
from shoal.protocol.messages.describing import asked
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.wait_queue import WaitQueue
from shoal.protocol.session import Session
from shoal.protocol.views import Member

TELL_S = 0.25  # between two reports to the scheduler


class WaitReport:
    """What one server has seen.

    A worker is waited for while a request of its group waits and it is one of those that are
    furthest back, unless these are more than half of all, or nobody is let in at present.

    active: whether there is something to look at after each event
    """

    def __init__(
        self,
        session: Session,
        workers: Mapping[int, Member],
        clocks: Clocks,
        admission: Admission,
        wait_queue: WaitQueue,
    ) -> None:
        self._session = session
        self._workers = workers
        self._clocks = clocks
        self._admission = admission
        self._wait_queue = wait_queue
        self.active = False
        self._seconds: dict[int, float] = {}
        self._late: Sequence[int] = ()
        self._since = 0.0
        self._tell_at = -inf

    def look(self, now: float, out: Effects) -> None:
        """After each event."""
        for worker in self._late:
            self._seconds[worker] = self._seconds.get(worker, 0.0) + now - self._since
        self._since = now
        self._late = self._latest() if self._wait_queue.pulls and not self._admission.closed else ()
        self.active = bool(self._late or self._seconds)
        if self._seconds and now >= self._tell_at and not self._session.ended:
            self._tell_at = now + TELL_S
            self._seconds = {w: s for w, s in self._seconds.items() if w in self._workers}
            told = WaitTimes(self._session.incarnation, tuple(self._seconds.items()))
            out.append(Send(SCHEDULER, told))

    def _latest(self) -> Sequence[int]:
        found: list[int] = []
        for group in {self._clocks.group(worker): None for worker, _ in self._wait_queue.pulls}:
            clocks = self._clocks.of(group)
            late = clocks.behind(clocks.minimum + 1)
            found += late if 2 * len(late) <= len(clocks) else ()
        return found

    def because(self, now: float) -> StatusReply:
        """Who waits now."""
        view = self._session.view
        names = [spec.name for spec in view.tables] if view is not None else []
        waits = [
            Waiting(
                self._workers[request.incarnation].name,
                asked(request, names),
                reason or "is about to be answered",
                now - since,
            )
            for request, reason, since in self._wait_queue.waiting(pushes=True)
            if request.incarnation in self._workers
        ]
        return StatusReply(self._session.name, tuple(waits))
