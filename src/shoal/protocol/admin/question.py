"""Question: a tool sends one message to the scheduler until it is answered."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Arrival, Discard, Effects, Event, Received, Send, Stop
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.views import NodeId, Role

AGAIN_S = 0.1


class Question:
    """Sends a message until one of these types answers it, for `limit_s` seconds at most.

    A tool asks for a checkpoint with it, and a parent reports the death of its process.

    Attributes:
        answer: the answer of the scheduler; None until it arrives.
    """

    def __init__(self, message: Message, answers: tuple[type, ...], limit_s: float) -> None:
        self.answer: Message | None = None
        self._message = message
        self._answers = answers
        self._limit_s = limit_s
        self._until = inf
        self._again_at = 0.0

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        return Discard("nothing is asked that comes with a payload")

    def problem_of(self, received: Received) -> str:
        return ""

    def handle(self, event: Event, now: float) -> Effects:
        self._until = min(self._until, now + self._limit_s)
        if isinstance(event, Received) and isinstance(event.message, self._answers):
            self.answer = event.message
        if self.answer is not None or now >= self._until:
            return [Stop(None)]
        if now < self._again_at:
            return []
        self._again_at = now + AGAIN_S
        return [Send(SCHEDULER, self._message)]

    def deadline(self) -> float | None:
        return self._again_at

    def check(self) -> None:
        """Check nothing, because this machine has no invariant."""

    def address_of(self, node: NodeId) -> str | None:
        return None

    def role_of(self, node: NodeId) -> Role | None:
        return None
