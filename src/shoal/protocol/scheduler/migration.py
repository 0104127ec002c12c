"""Migration: syncing replicas that are complete, and servers that leave or have left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from shoal.protocol.scheduler.placement import movable
from shoal.protocol.scheduler.rebalance import Moves
from shoal.protocol.views import Member, NodeId, View


class Migration:
    """State of migrating shards that is not in the view.

    Attributes:
        left: servers that have left on request; it survives a restart of the scheduler.
    """

    def __init__(self, left: Iterable[NodeId]) -> None:
        self.left: set[NodeId] = set(left)
        self._leaving: set[NodeId] = set()
        self._synced: dict[tuple[int, int, int], int] = {}  # (table, first row, rank) -> since

    def moves(self, replicas: int, drained: bool) -> Moves:
        return Moves(replicas, drained, self._leaving, self._synced)

    def has_synced(
        self, view: View, member: Member, placements: Sequence[tuple[int, int, int]]
    ) -> None:
        """Note that a syncing replica has all rows of these shards."""
        self._synced.update({(table, row, member.rank): since for table, row, since in placements})
        self._forget_others(view)

    def _forget_others(self, view: View) -> None:
        """Forget all but this view's syncing replicas, in their current transfers."""
        syncing = {
            (table, placement.rows.start, placement.chain[-1]): placement.syncing_since
            for table, placements in enumerate(view.placements)
            for placement in placements
        }
        self._synced = {k: v for k, v in self._synced.items() if syncing.get(k) == v > 0}

    def wants_to_go(self, view: View | None, member: Member, servers: Collection[NodeId]) -> str:
        """Have a server leave, or return why it cannot.

        The answer may change: a server that was to leave stays if the others have died meanwhile.
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
            here = any(member.rank in placement.chain for placement in placements)
            if here and not movable(spec):
                return f"table {spec.name!r} is custom, and its handler cannot save and load"
        return ""

    def gone(self, view: View) -> list[NodeId]:
        """Leaving servers that have no shard in a view."""
        return [node for node in sorted(self._leaving) if view.member(node) is None]

    def adopt(self, view: View) -> list[NodeId]:
        """Take over a new view; returns the servers that have left with it."""
        self._forget_others(view)
        gone = self.gone(view)
        self._leaving.difference_update(gone)
        self.left.update(gone)
        return gone
