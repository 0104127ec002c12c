"""DeathReporter: the parent of a process that has exited reports its death to the scheduler."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Arrival, Discard, Effects, Event, Received, Send, Stop
from shoal.protocol.messages import SCHEDULER, DeathReport, DeathReportSeen, Message
from shoal.protocol.views import NodeId, Role

AGAIN_S = 0.1


class DeathReporter:
    """Sends the report until the scheduler has confirmed it, for `limit_s` seconds at most."""

    def __init__(self, host: str, process: int, limit_s: float) -> None:
        self._report = DeathReport(host, process)
        self._limit_s = limit_s
        self._until = inf
        self._again_at = 0.0

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        return Discard("nothing is asked that comes with a payload")

    def problem_of(self, received: Received) -> str:
        return ""

    def handle(self, event: Event, now: float) -> Effects:
        self._until = min(self._until, now + self._limit_s)
        if now >= self._until or (
            isinstance(event, Received) and isinstance(event.message, DeathReportSeen)
        ):
            return [Stop(None)]
        if now < self._again_at:
            return []
        self._again_at = now + AGAIN_S
        return [Send(SCHEDULER, self._report)]

    def deadline(self) -> float | None:
        return self._again_at

    def check(self) -> None:
        """It has no invariant."""

    def address_of(self, node: NodeId) -> str | None:
        return None

    def role_of(self, node: NodeId) -> Role | None:
        return None
