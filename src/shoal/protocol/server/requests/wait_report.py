"""Reports of which workers a server's requests wait for, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.admin import StatusReply
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import WaitTimes
from shoal.protocol.messages.reasons import Waiting, grouped
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.state.state import ServerState

REPORT_S = 0.25  # between two reports to the scheduler


class WaitReport:
    """Measures how long each worker has been waited for, and reports it to the scheduler.

    A worker counts as waited for while a pull of its group is in the wait queue and its clock is
    the lowest of the group. Time does not count if more than half of the group is at the lowest
    clock, or if admission is closed.

    active:  whether `look` has work to do after an event
    """

    def __init__(
        self,
        state: ServerState,
        admission: Admission,
        wait_queue: WaitQueue,
    ) -> None:
        self._session = state.session
        self._workers = state.workers
        self._clocks = state.clocks
        self._admission = admission
        self._wait_queue = wait_queue
        self.active = False
        self._seconds: dict[int, float] = {}
        self._late: Sequence[int] = ()
        self._since = 0.0
        self._report_at = -inf

    def look(self, now: float, out: Effects) -> None:
        """Add up the time since the last event, and send a report when one is due."""
        for worker in self._late:
            self._seconds[worker] = self._seconds.get(worker, 0.0) + now - self._since
        self._since = now
        self._late = self._latest() if self._wait_queue.pulls and not self._admission.closed else ()
        self.active = bool(self._late or self._seconds)
        if self._seconds and now >= self._report_at and not self._session.ended:
            self._report_at = now + REPORT_S
            self._seconds = {w: s for w, s in self._seconds.items() if w in self._workers}
            report = WaitTimes(self._session.incarnation, tuple(self._seconds.items()))
            out.append(Send(SCHEDULER, report))

    def _latest(self) -> Sequence[int]:
        found: list[int] = []
        for group in {self._clocks.group(worker): None for worker, _ in self._wait_queue.pulls}:
            clocks = self._clocks.of(group)
            late = clocks.behind(clocks.closed + 1)
            found += late if 2 * len(late) <= len(clocks) else ()
        return found

    def because(self, now: float) -> StatusReply:
        """Return the requests that wait now, each with the reason."""
        view = self._session.view
        names = [spec.name for spec in view.tables] if view is not None else []
        waits = [
            Waiting(
                self._workers[request.incarnation].name,
                request.describe_for(names),
                reason or "is about to be answered",
                now - since,
                request.describe_for(names, rows=False),
            )
            for request, reason, since in self._wait_queue.waiting(pushes=True)
            if request.incarnation in self._workers
        ]
        return StatusReply(self._session.name, grouped(waits))
