"""Shutdown: servers show that they hold the rows, then every member is told of the end.

A message from a server proves nothing if the scheduler itself has been asleep: the message may have
waited for it. So after the last worker has finished each server is asked a new question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Literal

from shoal.errors import RangeLost, ShoalError
from shoal.protocol.machine import Effects, Send, Stop
from shoal.protocol.messages.membership import ConfirmRows, End, RowsConfirmed
from shoal.protocol.messages.reasons import bounded
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.views import NO_VIEW, NodeId, ViewId


class Shutdown:
    """The servers that have not answered, and then the members that have not confirmed the end.

    The scheduler stops when all have confirmed it, or `linger_s` after the end. If rows would be
    lost with servers that have not confirmed it, it stops `sole_replica_timeout_s` later, with an
    error.

    asking:  whether all workers have finished, and the servers are asked
    """

    def __init__(self, options: SchedulerOptions, term: int) -> None:
        self.asking = False
        self._term = term  # it tells the questions of this start of the scheduler from earlier ones
        self._resend_s = options.resend_s
        self._linger_s = options.linger_s
        self._sole_replica_timeout_s = options.sole_replica_timeout_s
        self._silent: list[NodeId] = []
        self._answered: dict[NodeId, ViewId] = {}
        self._leaving: dict[NodeId, None] = {}
        self._error: ShoalError | None = None
        self._lost_with: Callable[[Collection[NodeId]], str] = lambda _: ""
        self._again_at = self._until = inf

    @property
    def told(self) -> End:
        """The message that tells members of the end."""
        kind: Literal["", "lost"] = "lost" if isinstance(self._error, RangeLost) else ""
        return End(bounded(self.reason), kind)

    @property
    def reason(self) -> str:
        return self._error.message if self._error else ""

    def ask(self, view: ViewId, servers: Collection[NodeId], now: float, out: Effects) -> bool:
        """Ask the servers of a view to confirm their rows; return whether all have."""
        if not self.asking:
            self.asking, self._again_at = True, now
        here = self._answered
        self._silent = [node for node in servers if here.get(node, NO_VIEW) < view]
        if now >= self._again_at:
            self._again_at = now + self._resend_s
            out.extend(Send(node, ConfirmRows(self._term, view)) for node in self._silent)
        return not self._silent

    def answered(self, server: NodeId, message: RowsConfirmed) -> None:
        """Record that a server holds its rows, if this answers the present question."""
        if self.asking and message.number == self._term:
            self._answered[server] = message.view

    def begin(
        self,
        members: Iterable[NodeId],
        error: ShoalError | None,
        now: float,
        lost_with: Callable[[Collection[NodeId]], str] = lambda _: "",
    ) -> None:
        """Begin to tell members of the end.

        lost_with:  the function that returns the loss with unconfirmed members; "" for none
        """
        self._leaving = dict.fromkeys(members)
        self._lost_with = lost_with
        self._error = error
        self._again_at, self._until = now, now + self._linger_s

    def confirmed(self, node: NodeId) -> None:
        self._leaving.pop(node, None)

    def say(self, now: float, out: Effects) -> None:
        """Repeat the end to members that have not confirmed it, or stop."""
        lost = self._lost_with(self._leaving) if now >= self._until and not self._error else ""
        if lost and now >= self._until + self._sole_replica_timeout_s:
            self._error = RangeLost(lost)
        if not self._leaving or (now >= self._until and (self._error or not lost)):
            self._again_at = self._until = inf
            out.append(Stop(self._error))
        elif now >= self._again_at:
            self._again_at = now + self._resend_s
            out.extend(Send(node, self.told) for node in self._leaving)

    def wakes_at(self) -> float:
        return self._again_at
