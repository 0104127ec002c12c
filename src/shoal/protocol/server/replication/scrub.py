"""Comparing: whether all replicas have the same rows.

Now and then a head says down the chain what some of its rows come to, between what is done to them,
so that every replica looks at the same version. Piece after piece, arc after arc.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import cast

from shoal.protocol.machine import Effects
from shoal.protocol.messages import Part
from shoal.protocol.server.replica import Replica
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import Check, Operation, nothing
from shoal.protocol.server.shard_store import MovableStore, ShardStore


class Scrubber:
    """Has the other replicas of this head's arcs look at their rows."""

    def __init__(self, shards: Mapping[int, ShardStore], replication: Replication) -> None:
        self._shards = shards
        self._replication = replication
        self._at: dict[int, int] = {}  # by copy: where the next piece begins
        self._latest = -1  # the copy that was looked at last
        self._next_at = inf

    def adopt(self, now: float) -> None:
        """A view: whom there is to compare with."""
        self._next_at = now + self._replication.options.compare_s if self._shared() else inf
        self._at = {number: at for number, at in self._at.items() if number in self._shards}

    def wakes_at(self) -> float:
        return self._next_at

    def go_on(self, now: float, out: Effects) -> None:
        """Check the next piece, if that is due."""
        if now < self._next_at:
            return
        options, replicas = self._replication.options, self._shared()
        self._next_at = now + options.compare_s if replicas else inf
        if replicas:
            replica = next((each for each in replicas if each.number > self._latest), replicas[0])
            self._latest = replica.number
            self._check(replica, options.compare_bytes, out)

    def _shared(self) -> list[Replica]:
        """The arcs of which this server is the head of several."""
        rank, found = self._replication.rank, self._replication.replicas.values()
        shared = [c for c in found if c.chain[0] == rank and len(c.chain) > 1]
        shared = [c for c in shared if not c.placement.syncing_since and self._has_rows(c)]
        return sorted(shared, key=lambda replica: replica.number)

    def _has_rows(self, replica: Replica) -> bool:
        """A handler would have to write down all that it has."""
        return self._shards[replica.number].spec.kind != "custom"

    def _check(self, replica: Replica, nbytes: int, out: Effects) -> None:
        shard = cast(MovableStore, self._shards[replica.number])
        piece = shard.sample(self._at.get(replica.number, 0), nbytes)
        self._at[replica.number] = piece.after
        keys = () if piece.keys is None else (memoryview(piece.keys).cast("B"),)
        count = -1 if piece.keys is None else len(piece.keys)
        part = Part(replica.table, piece.rows.start, piece.rows.stop, count)
        check = Check(replica, part, replica.version, None, keys)
        digest = shard.digest(piece.rows, piece.keys)
        operation = Operation(
            "check", (self._replication.rank,), 0, [check], (), nothing, digest=digest
        )
        self._replication.carry(operation, out)
