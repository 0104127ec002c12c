"""Shutdown: servers show that they hold the rows, then every member is told of the end.

That a server was heard of says nothing once the scheduler itself has been asleep: the message may
have waited for it. So after the last worker has finished each server is asked something new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Literal

from shoal.errors import RangeLost, ShoalError
from shoal.protocol.machine import Effects, Send, Stop
from shoal.protocol.messages import ConfirmRows, End
from shoal.protocol.messages.reasons import bounded
from shoal.protocol.scheduler.journal import SchedulerOptions
from shoal.protocol.views import NodeId


class Shutdown:
    """The servers that have not answered, and then the members that have not confirmed the end.

    It stops when all have, or `linger_s` after the end; with an error if rows are lost with servers
    that have not confirmed it for `alone_s` more.

    asking:  whether all workers have finished, and servers are asked
    """

    def __init__(self, options: SchedulerOptions) -> None:
        self.asking = False
        self._resend_s = options.resend_s
        self._linger_s = options.linger_s
        self._alone_s = options.alone_s
        self._number = 0
        self._silent: list[NodeId] = []
        self._answered: set[NodeId] = set()
        self._leaving: dict[NodeId, None] = {}
        self._error: ShoalError | None = None
        self._lost_with: Callable[[Collection[NodeId]], str] = lambda _: ""
        self._again_at = self._until = inf

    @property
    def told(self) -> End:
        """What members are told."""
        kind: Literal["", "lost"] = "lost" if isinstance(self._error, RangeLost) else ""
        return End(bounded(self.reason), kind)

    @property
    def reason(self) -> str:
        return self._error.message if self._error else ""

    def ask(self, number: int, servers: Collection[NodeId], now: float, out: Effects) -> bool:
        """Ask the servers that there are for a sign of life; return whether all have given it.

        number:  of the question; another one each time that the scheduler has started
        """
        if not self.asking:
            self.asking, self._number, self._again_at = True, number, now
        self._silent = [node for node in servers if node not in self._answered]
        if now >= self._again_at:
            self._again_at = now + self._resend_s
            out.extend(Send(node, ConfirmRows(self._number)) for node in self._silent)
        return not self._silent

    def answered(self, server: NodeId, number: int) -> None:
        """A server holds its rows, and was told of the question."""
        if self.asking and number == self._number:
            self._answered.add(server)

    def begin(
        self,
        members: Iterable[NodeId],
        error: ShoalError | None,
        now: float,
        lost_with: Callable[[Collection[NodeId]], str] = lambda _: "",
    ) -> None:
        """Begin to tell members of the end.

        lost_with:  what is lost with members that do not confirm it; "" if nothing is
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
        if lost and now >= self._until + self._alone_s:
            self._error = RangeLost(lost)
        if not self._leaving or (now >= self._until and (self._error or not lost)):
            self._again_at = self._until = inf
            out.append(Stop(self._error))
        elif now >= self._again_at:
            self._again_at = now + self._resend_s
            out.extend(Send(node, self.told) for node in self._leaving)

    def wakes_at(self) -> float:
        return self._again_at
