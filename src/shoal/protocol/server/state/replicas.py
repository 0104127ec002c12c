"""The replicas on a server: added, cut and dropped as views place them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.server.state.shard_store import RowStore, ShardStore
from shoal.protocol.views import Placement, View
from shoal.tables.spec import TableSpec

Take = Callable[[TableSpec, KeyRange], ShardStore]


class Moved(msgspec.Struct):
    """The changes that a view has made on this server.

    chains:    whether the chain of any shard has changed
    begin:     the clock of the rows that this server has become the head of, by worker group
    cut:       the replicas that were cut, with their pieces that are still here
    """

    chains: bool = False
    begin: dict[str, int] = {}
    cut: dict[int, tuple[Replica, list[Replica]]] = {}


class Replicas:
    """The replicas on this server, by number."""

    def __init__(self) -> None:
        self.by_number: dict[int, Replica] = {}
        self._next = 0

    def adopt(self, view: View, rank: int, take: Take) -> Moved:
        """Take, cut and drop shards as the view places them; `take` returns an opened shard.

        Raises:
            ShoalError: a shard that was not opened before cannot be opened
        """
        moved = Moved()
        mine = {
            (table, placement.rows.start): placement
            for table, placements in enumerate(view.placements)
            for placement in placements
            if rank in placement.chain
        }
        for replica in list(self.by_number.values()):
            placement = mine.get((replica.table, replica.rows.start))
            if placement is None or placement.rows != replica.rows:
                self._cut(replica, mine, moved)
            elif _syncs_anew(replica, placement):
                del self.by_number[replica.number]
                moved.cut[replica.number] = replica, []
                moved.chains = True
            else:
                del mine[replica.table, replica.rows.start]
                self._keep(replica, placement, moved)
        for (table, _), placement in mine.items():
            spec = view.tables[table]
            shard = cast(RowStore, take(spec, placement.rows))
            fresh = Replica(self._next, table, placement, shard, rank, spec.group)
            if fresh.syncs:
                fresh.begin_syncing()
            self._add(fresh)
        return moved

    def _keep(self, replica: Replica, placement: Placement, moved: Moved) -> None:
        before = replica.placement
        replica.move(placement)
        moved.chains = moved.chains or placement.in_sync != before.in_sync
        if placement.head == replica.rank != before.head:
            known = moved.begin.get(replica.group, replica.reached)
            moved.begin[replica.group] = min(known, replica.reached)

    def _cut(self, replica: Replica, mine: dict[tuple[int, int], Placement], moved: Moved) -> None:
        """Replace a replica by its pieces that are still here."""
        pieces = [
            placement
            for (table, _), placement in mine.items()
            if table == replica.table and replica.rows.covers(placement.rows)
            if not _syncs_anew(replica, placement)
        ]
        rows = [placement.rows for placement in pieces]
        shards = replica.shard.split(rows) if pieces else ()
        del self.by_number[replica.number]
        moved.chains = True
        parts = []
        for placement, shard in zip(pieces, shards, strict=True):
            del mine[replica.table, placement.rows.start]
            part = msgspec.structs.replace(replica, number=self._next, shard=shard)
            self._keep(part, placement, moved)
            self._add(part)
            parts.append(part)
        moved.cut[replica.number] = replica, parts

    def _add(self, replica: Replica) -> None:
        self.by_number[replica.number] = replica
        self._next += 1


def _syncs_anew(replica: Replica, placement: Placement) -> bool:
    """Return whether a replica is dropped because a new transfer of its rows begins."""
    syncs = placement.syncing_since > 0 and placement.chain[-1] == replica.rank
    same = replica.syncs and replica.placement.syncing_since == placement.syncing_since
    return syncs and not same
