"""The scrubber: compares checksums of replicas in the background.

At intervals a head sends the checksum of some of its rows down the chain, in one order with the
operations, so that every replica compares the same version. It goes through one shard after the
other, a sample at a time.
"""

from __future__ import annotations

from math import inf

from shoal.keys import KeyRange
from shoal.protocol.machine import Effects
from shoal.protocol.messages.replication import Replicate
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import Change, Check, Operation
from shoal.protocol.server.notes import ReplicasCompared, ReplicasDiffer
from shoal.protocol.server.state.replica import NONE, Replica
from shoal.protocol.server.state.shard_store import Loads


class Scrubber:
    """Sends checksums of the shards that this server heads to their other replicas."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._at: dict[int, int] = {}  # by replica: where the next sample begins
        self._latest = -1  # the replica that was checked last
        self._next_at = inf

    def adopt(self, now: float) -> None:
        """Adopt a view: begin to check if a shard that this server heads has other replicas."""
        replicas = self._chains.replicas
        self._next_at = now + self._chains.options.compare_s if self._shared() else inf
        self._at = {number: at for number, at in self._at.items() if number in replicas}

    def wakes_at(self) -> float:
        return self._next_at

    def go_on(self, now: float, out: Effects) -> None:
        """Check the next sample, if that is due."""
        if now < self._next_at:
            return
        options, replicas = self._chains.options, self._shared()
        self._next_at = now + options.compare_s if replicas else inf
        if replicas:
            replica = next((each for each in replicas if each.number > self._latest), replicas[0])
            self._latest = replica.number
            self._check(replica, options.compare_bytes, out)

    def _shared(self) -> list[Replica]:
        """Return the replicas that this server heads and that have others in sync."""
        shared = [
            replica
            for replica in self._chains.replicas.values()
            if replica.previous == NONE != replica.following and not replica.placement.syncing_since
            if replica.shard.spec.kind != "custom"  # which would serialise all of its state
        ]
        return sorted(shared, key=lambda replica: replica.number)

    def _check(self, replica: Replica, nbytes: int, out: Effects) -> None:
        shard = replica.shard
        piece = shard.sample(self._at.get(replica.number, 0), nbytes)
        self._at[replica.number] = piece.after
        keys = () if piece.keys is None else (memoryview(piece.keys).cast("B"),)
        count = -1 if piece.keys is None else len(piece.keys)
        part = replica.part(piece.rows, count)
        check = Check(replica, part, version=replica.version, buffers=keys)
        digest = shard.digest(piece.rows, piece.keys)
        path = (self._chains.rank,)
        self._chains.carry(Operation("check", path, 0, [check], digest=digest), out)

    def compare(
        self, message: Replicate, replicas: list[Replica], loads: Loads, out: Effects
    ) -> None:
        """Compare the checksum of some rows with the head's, note the result, and pass it on."""
        changes: list[Change] = []
        for replica, part, version, staged in zip(
            replicas, message.parts, message.versions, loads, strict=True
        ):
            shard = replica.shard
            keys = staged.keys if part.keys >= 0 else None
            rows = KeyRange(part.start, part.stop)
            if replica.version == version and not shard.syncing:
                same = shard.digest(rows, keys) == message.digest
                note = ReplicasCompared if same else ReplicasDiffer
                out.append(note(shard.spec.name, rows, version))
            if replica.following != NONE:
                views = tuple(memoryview(bytes(view)) for view in staged.views)
                changes.append(Check(replica, part, version=version, buffers=views))
            shard.release(staged)
        path = *message.path, self._chains.rank
        self._chains.carry(Operation("check", path, 0, changes, digest=message.digest), out)
