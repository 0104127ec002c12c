"""Tools: answers the messages of nodes that need not be members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.protocol.limits import WAITS_MAX
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.admin import (
    CheckpointRequest,
    DeathReport,
    DeathReportSeen,
    StatusReply,
    StatusRequest,
)
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.membership import ProcessHeartbeat
from shoal.protocol.messages.reasons import grouped
from shoal.protocol.scheduler.barriers import Barriers
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.shutdown import Shutdown
from shoal.protocol.scheduler.stragglers import Stragglers
from shoal.protocol.scheduler.view_change import ViewChange
from shoal.protocol.views import NodeId

OF_TOOLS = StatusRequest | CheckpointRequest | DeathReport | ProcessHeartbeat


class Tools:
    """Answers `shoal why`, `shoal checkpoint`, parents of processes and processes of members.

    lost:  the function that has the run go on without members: (nodes, how, now, effects)
    """

    def __init__(
        self,
        members: Members,
        views: ViewChange,
        barriers: Barriers,
        stragglers: Stragglers,
        shutdown: Shutdown,
        slow_window_s: float,
        lost: Callable[[Sequence[NodeId], str, float, Effects], None],
    ) -> None:
        self._members = members
        self._views = views
        self._barriers = barriers
        self._stragglers = stragglers
        self._shutdown = shutdown
        self._slow_s = slow_window_s
        self._lost = lost

    def asked(self, sender: NodeId, message: Message, now: float, out: Effects) -> None:
        match message:
            case StatusRequest():
                out.append(Send(sender, self._status(now)))
            case CheckpointRequest():
                self._views.save(sender, message, now, out)
            case DeathReport(launch, orderly):
                dead = self._members.of(launch)
                for node in dead if orderly else ():  # its own confirmation may be lost
                    self._shutdown.confirmed(node)
                at_work = [node for node in dead if node not in self._members.finished]
                # a process may have attached workers as well as one of the first group
                first = {member.id for member in self._members.group("worker", "")}
                own = [node for node in dead if node in first] or dead
                finished = bool(own) and set(own).isdisjoint(at_work)
                self._lost(at_work, "its process has ended", now, out)
                out.append(Send(sender, DeathReportSeen(launch, finished)))
            case ProcessHeartbeat():
                self._members.process_lives(message, now, out)

    def _status(self, now: float) -> StatusReply:
        members = self._members.by_id
        waits = self._barriers.waits(now) + self._views.waits(now)
        waits += self._views.ledgers.waits(self._members, now) + self._members.busy(now)
        shares = self._stragglers.shares(members, now)[:WAITS_MAX]
        slow = tuple((member.name, share) for member, share in shares)
        return StatusReply(SCHEDULER, grouped(waits), self._views.view, slow, self._slow_s)
