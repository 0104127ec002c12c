"""Members: the admitted nodes, their incarnations, and which have finished."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from shoal.protocol.limits import MEMBERS_MAX
from shoal.protocol.machine import Effects, EventTrace, Send
from shoal.protocol.messages.base import Message, misplaced
from shoal.protocol.messages.membership import Busy, Frozen, Join, NotJoined, ProcessHeartbeat
from shoal.protocol.messages.reasons import Waiting
from shoal.protocol.scheduler.failure_detector import FailureDetector
from shoal.protocol.scheduler.journal import JournalRecord
from shoal.protocol.scheduler.membership import closed_up, join_refusal
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.views import Member, NodeId, Role, View

FORGET_S = 60.0  # after a member has finished: none of its messages is under way any more


class Members:
    """The scheduler's members, in a view or about to be.

    Attributes:
        by_id: the members by node.
        finished: the members whose work is done; the failure detector ignores them.
        next_incarnation: the incarnation of the next member; none is given twice.
        detector: the failure detector.
    """

    def __init__(self, record: JournalRecord, options: SchedulerOptions) -> None:
        self.by_id: dict[NodeId, Member] = {m.id: m for m in record.members}
        self.finished: set[NodeId] = set(record.finished)
        self.next_incarnation = record.next_incarnation
        self.detector = FailureDetector(options)
        self._servers, self._workers = options.servers, options.workers
        self._memory: dict[NodeId, int] = {}  # bytes, of members that have joined this scheduler
        self._finished_at: dict[NodeId, float] = {}  # since this scheduler started

    def problem_of(self, sender: NodeId, message: Message) -> str:
        """Return why no member may send a message to the scheduler; empty if one may."""
        member = self.by_id.get(sender)
        problem = misplaced(message, sender, member.role if member is not None else None)
        if not problem and isinstance(message, Frozen) and message.adopted is not None:
            return message.adopted.problem()
        return problem

    def close_up(self) -> None:
        """Renumber the ranks from 0 on, without holes, before the first view."""
        self.by_id = closed_up(self.by_id.values())

    def refusal(
        self, node: NodeId, asked: Join, view: View | None, options: SchedulerOptions
    ) -> NotJoined | None:
        """Return why a node cannot join; None if it can."""
        if len(self.by_id) >= MEMBERS_MAX:
            return NotJoined(f"a run has at most {MEMBERS_MAX} members", full=True)
        return join_refusal(node, asked, self.group(asked.role, asked.group), view, options)

    def admit(self, node: NodeId, asked: Join) -> Member:
        """Admit a member, with the rank that it asks for or the first free one."""
        taken = {m.rank for m in self.group(asked.role, asked.group)}
        free = next(rank for rank in range(len(taken) + 1) if rank not in taken)
        rank = asked.rank if asked.rank >= 0 and asked.rank not in taken else free
        member = Member(
            node,
            asked.role,
            rank,
            self.next_incarnation,
            asked.address,
            asked.host,
            launch=asked.launch,
            group=asked.group,
            group_size=asked.group_size,
        )
        self.next_incarnation += 1
        self.by_id[node] = member
        self._memory[node] = asked.memory
        return member

    def remove(self, node: NodeId) -> Member | None:
        """Remove a member that is dead or has left."""
        self.detector.forget(node)
        self._memory.pop(node, None)
        return self.by_id.pop(node, None)

    def finish(self, node: NodeId) -> None:
        """Note that a member has finished its work."""
        self.finished.add(node)
        self.detector.forget(node)

    def finished_beside(self, member: Member) -> tuple[str, ...]:
        """Return the names of the finished workers in a worker's group; none for a server."""
        if member.role != "worker" or not self.finished:
            return ()
        here = [self.by_id[node] for node in self.finished if node in self.by_id]
        alike = (member.role, member.group)
        return tuple(sorted(each.name for each in here if (each.role, each.group) == alike))

    def forget(self, view: View, now: float) -> None:
        """Drop members of attached groups that finished a while ago and are in no view any more.

        Their number would grow without bound. The run ends with the first group.
        """
        for member in [self.by_id[node] for node in self.finished if node in self.by_id]:
            since = self._finished_at.setdefault(member.id, now)
            if member.group and now >= since + FORGET_S and view.member(member.id) is None:
                self.finished.discard(member.id)
                del self.by_id[member.id], self._finished_at[member.id]

    def of(self, launch: str) -> list[NodeId]:
        """Return the members that run in the process of a launch; none for an unknown one."""
        return [each.id for each in self.by_id.values() if launch and each.launch == launch]

    def group(self, role: Role, name: str) -> list[Member]:
        """Return the members of a role and group, without finished ones of an attached group.

        A later group may have the same name.
        """
        return [
            member
            for node, member in self.by_id.items()
            if member.role == role and member.group == name
            if not name or node not in self.finished
        ]

    def at_work(self, group: str | None = None) -> list[NodeId]:
        """Return the workers that have not finished, of one group or of all."""
        return [
            node
            for node, member in self.by_id.items()
            if member.role == "worker" and node not in self.finished
            if group is None or member.group == group
        ]

    def missing_workers(self) -> int:
        """Return how many workers of the first group are lost and not replaced."""
        return max(0, self._workers - len(self.group("worker", "")))

    def servers(self) -> list[NodeId]:
        return [node for node, member in self.by_id.items() if member.role == "server"]

    def memory(self) -> float:
        """Return the bytes that all servers have for tables; inf if one is unlimited or unknown."""
        limits = [self._memory.get(node, 0) for node in self.servers()]
        return sum(limits) if len(limits) >= self._servers and all(limits) else inf

    # ------------------------------------------------------------------ silence

    def heard_of(self, nodes: Iterable[NodeId], now: float, beat: bool = False) -> None:
        """Note that nodes live; the detector expects unfinished ones to be heard of again."""
        for node in nodes:
            if node not in self.finished:
                self.detector.heard_of(node, now, beat)

    def process_lives(self, beat: ProcessHeartbeat, now: float, out: Effects) -> None:
        """Note that a member's process lives; workers wait longer for a server that is busy."""
        member = self.by_id.get(beat.node)
        if member is None or member.incarnation != beat.incarnation:
            return
        self.detector.process_lives(beat, now)
        if member.role == "server" and beat.at:
            busy = Busy(member.name, beat.at)
            out.extend(Send(node, busy) for node in self.at_work())

    def busy(self, now: float) -> list[Waiting]:
        """Return the members whose loop makes no turns, for status replies."""
        return [
            Waiting(self.by_id[node].name, "its next turn", f"its loop is at {place}", seconds)
            for node, place, seconds in self.detector.busy(now)
        ]

    def check(self, trace: EventTrace) -> None:
        """Check that members have distinct incarnations that were given."""
        granted = [m.incarnation for m in self.by_id.values()]
        if len(set(granted)) != len(granted) or any(g >= self.next_incarnation for g in granted):
            raise trace.broken(f"incarnations granted twice: {sorted(granted)}")
