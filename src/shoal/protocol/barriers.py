"""Barriers: who has entered which, and which are released."""

from __future__ import annotations

from collections.abc import Container, Iterable

from shoal.protocol.messages import Group
from shoal.protocol.views import Member, NodeId

Entered = dict[NodeId, tuple[Group, ...]]


class Barriers:
    """The scheduler's barriers, each by its name and generation.

    A barrier is released once every living member of the groups that anybody in it has named is
    in it, or has finished.

    released:  the last generation of each name; it survives a restart of the scheduler
    """

    def __init__(self, released: dict[str, int]) -> None:
        self.released = released
        self._entered: dict[tuple[str, int], Entered] = {}

    def enter(self, member: NodeId, name: str, generation: int, groups: tuple[Group, ...]) -> bool:
        """Take a member in; False where that one is released already."""
        if generation <= self.released.get(name, -1):
            return False
        self._entered.setdefault((name, generation), {})[member] = groups
        return True

    def release(
        self, members: Iterable[Member], finished: Container[NodeId]
    ) -> list[tuple[str, int, list[NodeId]]]:
        """The barriers that are complete now, each with who waits in it."""
        present, complete = list(members), []
        for (name, generation), entered in list(self._entered.items()):
            awaited = _awaited(present, entered)
            if all(m.id in entered or m.id in finished for m in awaited):
                del self._entered[name, generation]
                self.released[name] = generation
                complete.append((name, generation, list(entered)))
        return complete

    def absent_from(self, name: str, generation: int, members: Iterable[Member]) -> list[str]:
        """Who has not entered a barrier, for people who ask."""
        entered = self._entered.get((name, generation), {})
        return sorted(m.name for m in _awaited(members, entered) if m.id not in entered)


def _awaited(members: Iterable[Member], entered: Entered) -> list[Member]:
    groups = {group for wanted in entered.values() for group in wanted}
    return [m for m in members if f"{m.role}s" in groups]
