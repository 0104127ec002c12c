"""Proposal: the questions to servers about a view, and their answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.membership import Drain, Drained, Freeze, Frozen
from shoal.protocol.messages.reasons import Waiting, some_of
from shoal.protocol.views import Member, NodeId, ViewId


class Proposal:
    """A proposed view: the questions to servers and their answers.

    Attributes:
        number: the number of the view; servers are asked until they answer.
        reason: the reason for it, other than changes of membership.
        known: the current view when it was begun.
        since: the time when it was begun.
        drain_s: the time for servers to drain first; 0 if they need not.
        draining: whether they are still draining.
    """

    def __init__(
        self,
        number: ViewId,
        reason: str,
        known: ViewId,
        drain_s: float,
        resend_s: float,
        now: float,
    ) -> None:
        self.number = number
        self.reason = reason
        self.known = known
        self.since = now
        self.drain_s = drain_s
        self.again_at = -inf
        self.draining = drain_s > 0
        self._resend_s = resend_s
        self._drained: set[NodeId] = set()
        self._promises: dict[NodeId, Frozen] = {}

    def ask(self, servers: Iterable[NodeId], now: float, out: Effects) -> None:
        """Ask the servers that have not answered."""
        self.again_at = now + self._resend_s
        self.remind(servers, out)

    def remind(self, servers: Iterable[NodeId], out: Effects) -> None:
        """Ask these servers, unless they have answered: an earlier question may be lost."""
        answered: Collection[NodeId] = self._drained if self.draining else self._promises
        if self.draining:
            question: Drain | Freeze = Drain(self.number, self.drain_s)
        else:
            question = Freeze(self.number, self.known)
        out.extend(Send(node, question) for node in sorted(servers) if node not in answered)

    def take(self, server: NodeId, promise: Drained | Frozen) -> bool:
        """Record an answer; return False if it is for another view."""
        if promise.view != self.number:
            return False
        if isinstance(promise, Frozen):
            self._promises[server] = promise
        else:
            self._drained.add(server)
        return True

    def hurry(self) -> None:
        """Stop draining: a server is gone, and its operations may never arrive."""
        if self.draining:
            self.draining, self.again_at = False, -inf

    def go_on(self, servers: Collection[NodeId], now: float, out: Effects) -> bool:
        """Ask the next question, if it is due; return whether all servers have promised."""
        if self.draining and all(node in self._drained for node in servers):
            self.hurry()
        if self.again_at == -inf:
            self.ask(servers, now, out)
        return not self.draining and all(node in self._promises for node in servers)

    def waits(self, servers: Iterable[Member], now: float) -> list[Waiting]:
        """Return the wait of the scheduler for the servers that have not answered."""
        answered: Collection[NodeId] = self._drained if self.draining else self._promises
        absent = sorted(member.name for member in servers if member.id not in answered)
        what = f"view {self.number[0]}.{self.number[1]}" + (f" ({self.reason})" * bool(self.reason))
        todo = "drain" if self.draining else "freeze"
        reason = f"waits for {some_of(absent)} to {todo}"
        return [Waiting("the scheduler", what, reason, now - self.since)] if absent else []

    def promises(self, servers: Iterable[NodeId]) -> list[Frozen]:
        """Return the promises of these servers."""
        return [self._promises[node] for node in servers]
