"""The scrubber: compares checksums of replicas in the background.

At intervals a head sends the checksum of some of its rows down the chain, in one order with the
operations, so that every replica compares the same version. It goes through one shard after the
other, a sample at a time.
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
    """Sends checksums of the shards that this server heads to their other replicas."""

    def __init__(self, shards: Mapping[int, ShardStore], replication: Replication) -> None:
        self._shards = shards
        self._replication = replication
        self._at: dict[int, int] = {}  # by replica: where the next sample begins
        self._latest = -1  # the replica that was checked last
        self._next_at = inf

    def adopt(self, now: float) -> None:
        """Adopt a view: check if there are other replicas."""
        self._next_at = now + self._replication.options.compare_s if self._shared() else inf
        self._at = {number: at for number, at in self._at.items() if number in self._shards}

    def wakes_at(self) -> float:
        return self._next_at

    def go_on(self, now: float, out: Effects) -> None:
        """Check the next sample, if that is due."""
        if now < self._next_at:
            return
        options, replicas = self._replication.options, self._shared()
        self._next_at = now + options.compare_s if replicas else inf
        if replicas:
            replica = next((each for each in replicas if each.number > self._latest), replicas[0])
            self._latest = replica.number
            self._check(replica, options.compare_bytes, out)

    def _shared(self) -> list[Replica]:
        """Return the replicas that this server heads and that have others in sync."""
        rank, found = self._replication.rank, self._replication.replicas.values()
        shared = [c for c in found if c.chain[0] == rank and len(c.chain) > 1]
        shared = [c for c in shared if not c.placement.syncing_since and self._has_rows(c)]
        return sorted(shared, key=lambda replica: replica.number)

    def _has_rows(self, replica: Replica) -> bool:
        """Return whether samples are cheap; a custom table would serialise all of its state."""
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
