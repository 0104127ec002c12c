"""Draining: before rows move, admit no request until all operations are on all replicas."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Drain, Drained
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.views import NO_VIEW, ViewId


class Drainer:
    """Drains one server when the scheduler asks for it.

    until:  the time at which it admits requests again if no view comes
    """

    def __init__(self, admission: Admission, chains: Chains, takeover: Takeover) -> None:
        self.until = inf
        self._admission = admission
        self._chains = chains
        self._takeover = takeover
        self._asked: Drain | None = None  # not answered yet
        self._drained: ViewId = NO_VIEW
        self._given_up: ViewId = NO_VIEW

    def begin(self, message: Drain, now: float, out: Effects) -> None:
        """Begin to drain; the scheduler may ask more than once."""
        if self._admission.frozen or message.view <= max(self._admission.promised, self._given_up):
            return  # if frozen, an earlier view is still to come; the scheduler asks again
        if not self._admission.draining:
            self._admission.drain(True)
            self.until = now + message.seconds
            self._takeover.flush(out)
        self._asked = message

    def tick(self, now: float) -> None:
        """Abandon the drain and admit requests again when its time limit is over."""
        if now >= self.until:
            if self._asked is not None:
                self._given_up = self._asked.view
            self.end()
            self._admission.drain(False)

    def end(self) -> None:
        """Forget the drain: a view has come, or its time limit is over."""
        self.until, self._asked = inf, None

    @property
    def _idle(self) -> bool:
        return self._admission.draining and self._chains.idle

    def say(self, out: Effects) -> None:
        """Report to the scheduler once the server is drained."""
        if self._asked is not None and self._idle:
            self._drained, self._asked = self._asked.view, None
            out.append(Send(SCHEDULER, Drained(self._drained)))

    def holds(self, view: ViewId) -> bool:
        """Return whether the server is drained for that view and still idle."""
        return self._drained == view and self._idle
