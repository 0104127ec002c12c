"""Shutdown: tells every member that the run has ended until it confirms, or time is over."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Literal

from shoal.errors import RangeLost, ShoalError
from shoal.protocol.machine import Effects, Send, Stop
from shoal.protocol.messages import End
from shoal.protocol.views import NodeId


class Shutdown:
    """The members that have not confirmed the end. Stops when all have, or after `linger_s`."""

    def __init__(self, resend_s: float, linger_s: float) -> None:
        self._resend_s = resend_s
        self._linger_s = linger_s
        self._leaving: dict[NodeId, None] = {}
        self._error: ShoalError | None = None
        self._again_at = self._until = inf

    @property
    def reason(self) -> str:
        return self._error.message if self._error else ""

    def begin(self, members: Iterable[NodeId], error: ShoalError | None, now: float) -> None:
        self._leaving = dict.fromkeys(members)
        self._error = error
        self._again_at, self._until = now, now + self._linger_s

    def confirmed(self, node: NodeId) -> None:
        self._leaving.pop(node, None)

    def say(self, now: float, out: Effects) -> None:
        """Repeat the end to members that have not confirmed it, or stop."""
        if not self._leaving or now >= self._until:
            self._again_at = self._until = inf
            out.append(Stop(self._error))
        elif now >= self._again_at:
            self._again_at = now + self._resend_s
            kind: Literal["", "lost"] = "lost" if isinstance(self._error, RangeLost) else ""
            out.extend(Send(node, End(self.reason, kind)) for node in self._leaving)

    def wakes_at(self) -> float:
        return min(self._again_at, self._until)
