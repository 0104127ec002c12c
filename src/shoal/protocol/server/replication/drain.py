"""Draining: before rows move nobody is let in, until all that was done is on all replicas."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages import SCHEDULER, Drain, Drained
from shoal.protocol.server.admission import Gate
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.takeover import Handover
from shoal.protocol.views import NO_VIEW, ViewId


class Draining:
    """One server's.

    until: when it lets requests in again, should nothing come of it
    """

    def __init__(self, gate: Gate, replication: Replication, handover: Handover) -> None:
        self.until = inf
        self._gate = gate
        self._replication = replication
        self._handover = handover
        self._asked: Drain | None = None  # what is not answered yet
        self._drained: ViewId = NO_VIEW
        self._given_up: ViewId = NO_VIEW

    def begin(self, message: Drain, now: float, out: Effects) -> None:
        """The scheduler asks for it, perhaps once more."""
        if self._gate.frozen or message.view <= max(self._gate.promised, self._given_up):
            return  # frozen: the view before this one is still to come, and it is asked again
        if not self._gate.draining:
            self._gate.draining = True
            self.until = now + self._replication.options.drain_s
            self._handover.flush(out)
        self._asked = message

    def tick(self, now: float) -> None:
        """Nobody waits for ever: what comes is let in again."""
        if now >= self.until:
            if self._asked is not None:
                self._given_up = self._asked.view
            self.end()
            self._gate.draining = False

    def end(self) -> None:
        """A view has come."""
        self.until, self._asked = inf, None

    @property
    def _idle(self) -> bool:
        return self._gate.draining and self._gate.idle and self._replication.idle

    def say(self, out: Effects) -> None:
        """That it is done."""
        if self._asked is not None and self._idle:
            self._drained, self._asked = self._asked.view, None
            out.append(Send(SCHEDULER, Drained(self._drained)))

    def holds(self, view: ViewId) -> bool:
        """Whether nothing has come in since it was done, for that view."""
        return self._drained == view and self._idle
