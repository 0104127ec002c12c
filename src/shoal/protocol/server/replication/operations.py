"""Made: what a push, a round or a call has done to shards here, for other servers to do as well."""

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
    """What is being done to shards at once, for other servers to do as well."""

    def __init__(self, replication: Replication, shards: Mapping[int, ShardStore]) -> None:
        self.changes: list[Change] = []
        self.parts_of_push: list[AppliedPart] = []
        self._replication = replication
        self._shards = shards
        self._retained: list[tuple[int, Staged]] = []

    def about_to(self, number: int, *staged: Staged) -> None:
        """A shard is to be changed by these, which other servers are to have as well."""
        if not self._replication.alone(number):
            for each in staged:
                self._shards[number].retain(each)
                self._retained.append((number, each))

    def in_round(self, number: int, part: Part) -> None:
        """A part of a push waits for its round."""
        self.parts_of_push.append(AppliedPart(part, self._replication.replicas[number], -1))

    def changed(self, number: int, part: Part, lr: float | None, buffers: Buffers) -> None:
        """A shard has been."""
        change = self._replication.change(number, part, lr, buffers)
        self.changes.append(change)
        self.parts_of_push.append(AppliedPart(part, change.replica, change.version))

    def merged(
        self, number: int, updates: Sequence[Update], entries: Sequence[Contribution]
    ) -> None:
        """... by what a round came to."""
        replica = self._replication.replicas[number]
        for update in updates:
            views = update.views
            keys = -1 if len(views) == 1 else views[0].nbytes // KEY_BYTES
            part = Part(replica.table, update.rows.start, update.rows.stop, keys)
            self.changed(number, part, update.lr, views)
        for entry in entries:
            entry.log.close_round(entry.seq, replica)

    def applied(self, entry: Contribution, number: int, staged: Staged) -> None:
        """... by a part of a push that had to wait."""
        replica = self._replication.replicas[number]
        views = tuple(staged.views)
        change = self._replication.change(number, replica.part(staged), entry.lr, views)
        self.changes.append(change)

    def all_applied(self, entry: Contribution) -> None:
        """All parts of it have been."""
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
        """All of it, for the rest of the chains: the fields of an `Operation`.

        path:  to this server; none where it is the head
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
        """They have it."""
        for number, staged in self._retained:
            self._shards[number].let_go(staged)
