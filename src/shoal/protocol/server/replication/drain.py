"""Draining: before rows move nobody is let in, until all that was done is on all replicas."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages import SCHEDULER, Drain, Drained
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.views import NO_VIEW, ViewId


class Drainer:
    """One server's.

    until: when it lets requests in again, should nothing come of it
    """

    def __init__(self, admission: Admission, replication: Replication, takeover: Takeover) -> None:
        self.until = inf
        self._admission = admission
        self._replication = replication
        self._takeover = takeover
        self._asked: Drain | None = None  # what is not answered yet
        self._drained: ViewId = NO_VIEW
        self._given_up: ViewId = NO_VIEW

    def begin(self, message: Drain, now: float, out: Effects) -> None:
        """The scheduler asks for it, perhaps once more."""
        if self._admission.frozen or message.view <= max(self._admission.promised, self._given_up):
            return  # frozen: the view before this one is still to come, and it is asked again
        if not self._admission.draining:
            self._admission.drain(True)
            self.until = now + self._replication.options.drain_s
            self._takeover.flush(out)
        self._asked = message

    def tick(self, now: float) -> None:
        """Nobody waits for ever: what comes is let in again."""
        if now >= self.until:
            if self._asked is not None:
                self._given_up = self._asked.view
            self.end()
            self._admission.drain(False)

    def end(self) -> None:
        """A view has come."""
        self.until, self._asked = inf, None

    @property
    def _idle(self) -> bool:
        return self._admission.draining and self._admission.idle and self._replication.idle

    def say(self, out: Effects) -> None:
        """That it is done."""
        if self._asked is not None and self._idle:
            self._drained, self._asked = self._asked.view, None
            out.append(Send(SCHEDULER, Drained(self._drained)))

    def holds(self, view: ViewId) -> bool:
        """Whether nothing has come in since it was done, for that view."""
        return self._drained == view and self._idle
