"""Building of operations: the changes of a push, a round or a call, for replication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.protocol.machine import Buffers
from shoal.protocol.messages import KEY_BYTES, Part
from shoal.protocol.server.replica import AppliedPart
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import Change, Operation, Origin, What
from shoal.protocol.server.rounds import Contribution
from shoal.protocol.server.shard_store import ShardStore, Staged, Update


class OperationBuilder:
    """Collects the changes of replicas that are replicated as one operation."""

    def __init__(self, replication: Replication, shards: Mapping[int, ShardStore]) -> None:
        self.changes: list[Change] = []
        self.parts_of_push: list[AppliedPart] = []
        self._replication = replication
        self._shards = shards
        self._retained: list[tuple[int, Staged]] = []

    def about_to(self, number: int, *staged: Staged) -> None:
        """Retain staged memory that is about to change a replicated shard."""
        if not self._replication.alone(number):
            for each in staged:
                self._shards[number].retain(each)
                self._retained.append((number, each))

    def in_round(self, number: int, part: Part) -> None:
        """Record a part of a push that waits for its round."""
        self.parts_of_push.append(AppliedPart(part, self._replication.replicas[number], -1))

    def changed(self, number: int, part: Part, lr: float | None, buffers: Buffers) -> None:
        """Record a change of a shard by a part of a push."""
        change = self._replication.change(number, part, lr, buffers)
        self.changes.append(change)
        self.parts_of_push.append(AppliedPart(part, change.replica, change.version))

    def merged(
        self, number: int, updates: Sequence[Update], entries: Sequence[Contribution]
    ) -> None:
        """Record a change of a shard by the merged update of a round."""
        replica = self._replication.replicas[number]
        for update in updates:
            views = update.views
            keys = -1 if len(views) == 1 else views[0].nbytes // KEY_BYTES
            part = Part(replica.table, update.rows.start, update.rows.stop, keys)
            self.changed(number, part, update.lr, views)
        for entry in entries:
            entry.log.close_round(entry.seq, replica)

    def applied(self, entry: Contribution, number: int, staged: Staged) -> None:
        """Record a change of a shard by a part of a push that had to wait."""
        replica = self._replication.replicas[number]
        views = tuple(staged.views)
        change = self._replication.change(number, replica.part(staged), entry.lr, views)
        self.changes.append(change)

    def all_applied(self, entry: Contribution) -> None:
        """Record that all parts of a push that had to wait are applied."""
        for number, _ in entry.parts:
            entry.log.close_round(entry.seq, self._replication.replicas[number])

    def operation(
        self,
        what: What,
        group: str,
        clock: int,
        origins: tuple[Origin, ...],
        round: int = -1,
        weight: float = 0.0,
        pushed: int = -1,
        path: tuple[int, ...] = (),
    ) -> Operation:
        """Return the operation with all changes; the parameters are fields of `Operation`.

        path:  the servers before this one; empty at the head
        """
        return Operation(
            what,
            (*path, self._replication.rank),
            clock,
            self.changes,
            origins,
            self.release,
            round,
            weight,
            pushed=pushed,
            group=group,
        )

    def release(self) -> None:
        """Release the retained memory: all replicas have the changes."""
        for number, staged in self._retained:
            self._shards[number].let_go(staged)
