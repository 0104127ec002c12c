"""Barriers: who has entered which, and which are released."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

import msgspec

from shoal.protocol.messages import Enter, Group, Waiting
from shoal.protocol.views import Member, NodeId

Entered = dict[NodeId, tuple[Group, ...]]


class _Barrier(msgspec.Struct, eq=False):
    """One that is not complete: who is in it, and since when the first."""

    since: float
    entered: Entered = {}


class Barriers:
    """The scheduler's barriers, each by its group's name, its own, and its generation.

    A barrier is released once every living member of the groups that anybody in it has named is
    in it, or has finished.

    released:  the last generation of each name; it survives a restart of the scheduler
    """

    def __init__(self, released: dict[str, int]) -> None:
        self.released = released
        self._open: dict[tuple[str, str, int], _Barrier] = {}

    def end(self, group: str) -> None:
        """A group has finished; another one of that name has entered none."""
        for key in [key for key in self.released if key.startswith(released_as(group, ""))]:
            del self.released[key]
        for at in [at for at in self._open if at[0] == group]:
            del self._open[at]

    def enter(self, member: Member, asked: Enter, now: float) -> bool:
        """Take a member in; False where that one is released already."""
        group, name, generation = member.group, asked.name, asked.generation
        if generation <= self.released.get(released_as(group, name), -1):
            return False
        barrier = self._open.setdefault((group, name, generation), _Barrier(now))
        barrier.entered[member.id] = asked.groups
        return True

    def release(
        self, members: Iterable[Member], finished: Container[NodeId]
    ) -> list[tuple[str, int, list[NodeId]]]:
        """The barriers that are complete now, each with who waits in it."""
        present, complete = list(members), []
        for (group, name, generation), barrier in list(self._open.items()):
            entered = barrier.entered
            awaited = _awaited(present, group, entered)
            if all(m.id in entered or m.id in finished for m in awaited):
                del self._open[group, name, generation]
                self.released[released_as(group, name)] = generation
                complete.append((name, generation, list(entered)))
        return complete

    def waits(
        self, members: Collection[Member], finished: Container[NodeId], now: float
    ) -> list[Waiting]:
        """Who waits in which, and for whom."""
        found = []
        for (group, name, _), barrier in self._open.items():
            inside = sorted(m.name for m in members if m.id in barrier.entered)
            absent = sorted(
                m.name
                for m in _awaited(members, group, barrier.entered)
                if m.id not in barrier.entered and m.id not in finished
            )
            reason = f"waits for {', '.join(absent)}"
            found.append(
                Waiting(", ".join(inside), f"barrier {name!r}", reason, now - barrier.since)
            )
        return found


def released_as(group: str, name: str) -> str:
    """What a barrier is written down as: no group has a colon in its name."""
    return f"{group}:{name}"


def _awaited(members: Iterable[Member], group: str, entered: Entered) -> list[Member]:
    roles = {role for wanted in entered.values() for role in wanted}
    return [
        m for m in members if f"{m.role}s" in roles and (m.role != "worker" or m.group == group)
    ]
