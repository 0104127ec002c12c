"""StatusQuery: a tool asks the scheduler and servers which members wait for which."""

from __future__ import annotations

from shoal.protocol.machine import (
    Arrival,
    Discard,
    Effects,
    Event,
    Received,
    Send,
    Stop,
)
from shoal.protocol.messages.admin import StatusReply, StatusRequest
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.views import NodeId, Role, View

AGAIN_S = 0.1  # seconds between requests to nodes that have not answered


class StatusQuery:
    """Asks the scheduler, then the servers of its view, for `limit_s` seconds at most.

    Attributes:
        answers: the answers, by node.
    """

    def __init__(self, limit_s: float) -> None:
        self.answers: dict[NodeId, StatusReply] = {}
        self._limit_s = limit_s
        self._until: float | None = None
        self._again_at = 0.0

    @property
    def view(self) -> View | None:
        """The scheduler's current view."""
        return self.answers[SCHEDULER].view if SCHEDULER in self.answers else None

    def silent(self) -> list[str]:
        """Return the names of the nodes that have not answered."""
        asked = {SCHEDULER: SCHEDULER}
        if self.view is not None:
            asked |= {member.id: member.name for member in self.view.servers}
        return [name for node, name in asked.items() if node not in self.answers]

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        return Discard("nothing is asked that comes with a payload")

    def problem_of(self, received: Received) -> str:
        return ""

    def handle(self, event: Event, now: float) -> Effects:
        if self._until is None:
            self._until = now + self._limit_s
        if isinstance(event, Received) and isinstance(event.message, StatusReply):
            self.answers[event.sender] = event.message
            self._again_at = now
        if now >= self._until or not self.silent():
            return [Stop(None)]
        if now < self._again_at:
            return []
        self._again_at = now + AGAIN_S
        servers = self.view.servers if self.view is not None else ()
        asked = [SCHEDULER, *(member.id for member in servers)]
        return [Send(node, StatusRequest()) for node in asked if node not in self.answers]

    def deadline(self) -> float | None:
        return self._again_at

    def check(self) -> None:
        """Check nothing, because this machine has no invariant."""

    def address_of(self, node: NodeId) -> str | None:
        member = self.view.member(node) if self.view is not None else None
        return member.address if member is not None else None

    def role_of(self, node: NodeId) -> Role | None:
        return None
