"""Relocating: which servers have learned rows, want to go, or have gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from shoal.protocol.scheduler.placement import movable
from shoal.protocol.scheduler.rebalance import Moves
from shoal.protocol.views import Member, NodeId, View


class Migration:
    """What the scheduler knows of rows that move, beside the view.

    left: servers that wanted to go and have; it survives a restart of the scheduler
    """

    def __init__(self, left: Iterable[NodeId]) -> None:
        self.left: set[NodeId] = set(left)
        self._leaving: set[NodeId] = set()
        self._learned: dict[tuple[int, int, int], int] = {}  # (table, first row, rank) -> since

    def moves(self, replicas: int, drained: bool) -> Moves:
        return Moves(replicas, drained, self._leaving, self._learned)

    def has_synced(
        self, view: View, member: Member, placements: Sequence[tuple[int, int, int]]
    ) -> None:
        """A learner has all of these, as they are in this view."""
        self._learned.update({(table, row, member.rank): since for table, row, since in placements})
        self._forget_others(view)

    def _forget_others(self, view: View) -> None:
        """But for the learners of this view, and what they learn since it began."""
        learners = {
            (table, placement.rows.start, placement.chain[-1]): placement.syncing_since
            for table, placements in enumerate(view.placements)
            for placement in placements
        }
        self._learned = {k: v for k, v in self._learned.items() if learners.get(k) == v > 0}

    def wants_to_go(self, view: View | None, member: Member, servers: Collection[NodeId]) -> str:
        """Why a server cannot go; it is let go where nothing is against it.

        It may be asked again: whoever was to go stays where the others have died meanwhile.
        """
        against = self._against(view, member, servers)
        if against:
            self._leaving.discard(member.id)
        else:
            self._leaving.add(member.id)
        return against

    def _against(self, view: View | None, member: Member, servers: Collection[NodeId]) -> str:
        if view is None or all(node == member.id or node in self._leaving for node in servers):
            return "it is the last server"
        for spec, placements in zip(view.tables, view.placements, strict=True):
            if not movable(spec) and any(
                member.rank in placement.chain for placement in placements
            ):
                return f"table {spec.name!r} is custom, and its handler cannot save and load"
        return ""

    def gone(self, view: View) -> list[NodeId]:
        """Servers that wanted to go and have nothing left in a view."""
        return [node for node in sorted(self._leaving) if view.member(node) is None]

    def adopt(self, view: View) -> list[NodeId]:
        """The view is made; who has gone with it."""
        self._forget_others(view)
        gone = self.gone(view)
        self._leaving.difference_update(gone)
        self.left.update(gone)
        return gone
