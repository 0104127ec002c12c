"""Barriers: members that have entered them, and released generations."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.protocol.limits import BARRIERS_MAX, RELEASED_MAX
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.membership import BarrierArrival, BarrierReleased, Group
from shoal.protocol.messages.reasons import Waiting, some_of
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.notes import BarrierOpened
from shoal.protocol.views import Member, NodeId

Entered = dict[NodeId, tuple[Group, ...]]


class _Barrier(msgspec.Struct, eq=False):
    """An open barrier: the members in it, and since when."""

    since: float
    entered: Entered = {}


class Barriers:
    """The scheduler's barriers, by group, name and generation.

    A barrier is released once every living member that its members have named is in it or has
    finished.

    Attributes:
        released: the last generation by group and name; it survives a restart of the scheduler.
    """

    def __init__(
        self, released: dict[str, int], members: Members, persist: Callable[[Effects], None]
    ) -> None:
        self.released = released
        self._members = members
        self._persist = persist
        self._open: dict[tuple[str, str, int], _Barrier] = {}

    def end(self, group: str) -> None:
        """Drop the barriers of a finished group, for a later group of that name."""
        for key in [key for key in self.released if key.startswith(released_as(group, ""))]:
            del self.released[key]
        for at in [at for at in self._open if at[0] == group]:
            del self._open[at]

    def problem_of(self, sender: NodeId, asked: Message) -> str:
        """Return why a member cannot enter a barrier; empty if it can, or sends another message."""
        member = self._members.by_id.get(sender)
        if member is None or not isinstance(asked, BarrierArrival):
            return ""
        if (member.group, asked.name, asked.generation) in self._open:
            return ""
        of = member.group
        open_ = sum(group == of for group, _, _ in self._open)
        return f"somebody waits in {open_} other barriers" if open_ >= BARRIERS_MAX else ""

    def enter(self, member: Member, asked: BarrierArrival, now: float, out: Effects) -> None:
        """Add a member to a barrier, or repeat that the barrier is released."""
        group, name, generation = member.group, asked.name, asked.generation
        if generation <= self.released.get(released_as(group, name), -1):
            out.append(Send(member.id, BarrierReleased(name, generation)))
            return
        barrier = self._open.setdefault((group, name, generation), _Barrier(now))
        barrier.entered[member.id] = asked.groups
        self.release(out)

    def release(self, out: Effects) -> None:
        """Release the barriers that are complete now."""
        for (group, name, generation), barrier in list(self._open.items()):
            if not self._absent(group, barrier):
                del self._open[group, name, generation]
                self.released.pop(released_as(group, name), None)
                self.released[released_as(group, name)] = generation
                if len(self.released) > RELEASED_MAX:  # nobody asks for the oldest any more
                    del self.released[next(iter(self.released))]
                self._persist(out)
                out.append(BarrierOpened(name, generation))
                released = BarrierReleased(name, generation)
                out.extend(Send(node, released) for node in barrier.entered)

    def waits(self, now: float) -> list[Waiting]:
        """Return the members that wait in barriers, and the members that they wait for."""
        found = []
        for (group, name, _), barrier in self._open.items():
            members = self._members.by_id.values()
            inside = some_of(sorted(m.name for m in members if m.id in barrier.entered))
            reason = f"waits for {some_of(self._absent(group, barrier))}"
            found.append(Waiting(inside, f"barrier {name!r}", reason, now - barrier.since))
        return found

    def _absent(self, group: str, barrier: _Barrier) -> list[str]:
        """Return the names of the members that have not entered a barrier yet."""
        there = barrier.entered.keys() | self._members.finished
        roles = {role for wanted in barrier.entered.values() for role in wanted}
        return sorted(
            m.name
            for m in self._members.by_id.values()
            if m.id not in there and f"{m.role}s" in roles
            if m.role != "worker" or m.group == group
        )


def released_as(group: str, name: str) -> str:
    """Return the key of a barrier in the journal; group names have no colon."""
    return f"{group}:{name}"
