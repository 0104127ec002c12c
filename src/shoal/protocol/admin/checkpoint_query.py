"""CheckpointQuery: a tool asks the scheduler for a checkpoint."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Arrival, Discard, Effects, Event, Received, Send, Stop
from shoal.protocol.messages import (
    SCHEDULER,
    CheckpointPlanned,
    CheckpointRefused,
    CheckpointRequest,
    Message,
)
from shoal.protocol.views import NodeId, Role

AGAIN_S = 0.2  # between requests


class CheckpointQuery:
    """Asks until a view names the checkpoint or it is refused, for `limit_s` seconds at most.

    Attributes:
        answer: the scheduler's; None if it has not answered.
    """

    def __init__(self, limit_s: float) -> None:
        self.answer: CheckpointPlanned | CheckpointRefused | None = None
        self._limit_s = limit_s
        self._until = inf
        self._again_at = 0.0

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        return Discard("nothing is asked that comes with a payload")

    def problem_of(self, received: Received) -> str:
        return ""

    def handle(self, event: Event, now: float) -> Effects:
        self._until = min(self._until, now + self._limit_s)
        message = event.message if isinstance(event, Received) else None
        if isinstance(message, CheckpointPlanned | CheckpointRefused):
            self.answer = message
        if self.answer is not None or now >= self._until:
            return [Stop(None)]
        if now < self._again_at:
            return []
        self._again_at = now + AGAIN_S
        return [Send(SCHEDULER, CheckpointRequest(1))]

    def deadline(self) -> float | None:
        return min(self._again_at, self._until)

    def check(self) -> None:
        """It has no invariant."""

    def address_of(self, node: NodeId) -> str | None:
        return None

    def role_of(self, node: NodeId) -> Role | None:
        return None
