"""Operations: the changes of the replicas of a chain, in the same order on each server.

The head of a chain makes operations of what workers ask; the servers after it make the same ones of
the messages that come down the chain. `Applier.apply` applies both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from shoal.errors import AccessFailed
from shoal.protocol.layout import Layout, count_of
from shoal.protocol.limits import FRAGMENTS_TOLD_MAX
from shoal.protocol.machine import Buffers
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.replication import (
    EncodedReplicate,
    ReplicaHistory,
    Replicate,
    StateChunk,
    What,
)
from shoal.protocol.server.state.replica import NONE, Replica
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.shard_store import ShardStore, Staged
from shoal.protocol.views import ViewId

Origin = tuple[int, int, int]  # incarnation, seq, forget_below
NEW = 0  # no version yet: `Applier.apply` counts one


class Change(msgspec.Struct, eq=False):
    """One part of an operation: a change of a replica, and the version that it makes.

    staged:   the staged push that changes the rows; None if they have it already
    version:  the version that the change makes; NEW before the head has counted it
    buffers:  the payload for the next server, if that is not `staged`
    sizes:    the bytes of each encoded fragment in it; empty if it is not encoded
    merges:   the (weight, rate) of each push in it, if it has the pushes of a round
    pushes:   the encoded pushes of a round to all of the same rows, if these change the rows here,
              and go to the next server: (weight, rate, staged)
    """

    replica: Replica
    part: Part
    lr: float | None = None
    staged: Staged | None = None
    version: int = NEW
    buffers: Buffers = ()
    sizes: tuple[int, ...] = ()
    merges: tuple[tuple[float, float | None], ...] = ()
    pushes: Sequence[tuple[float, float | None, Staged]] = ()

    @property
    def done(self) -> bool:
        """Whether all servers after this one have the change, the syncing replica included."""
        replica = self.replica
        return replica.done >= self.version and (
            not replica.placement.syncing_since or replica.synced_version >= self.version
        )

    def copied(self) -> Change:
        """Return the change with a copy of its payload, if a server follows."""
        told = self.counted(self.version)
        kept = told.buffers if self.replica.following != NONE else ()
        return msgspec.structs.replace(told, buffers=tuple(memoryview(bytes(v)) for v in kept))

    def counted(self, version: int) -> Change:
        """Return the change with its version, for the next server."""
        if self.pushes:
            buffers, sizes = encoded_in([staged for _, _, staged in self.pushes])
        elif self.buffers or self.staged is None:
            buffers, sizes = self.buffers, self.sizes
        elif self.staged.encoded is not None:
            buffers, sizes = encoded_in([self.staged])
        else:
            buffers, sizes = tuple(self.staged.views), ()
        merges = tuple((weight, lr) for weight, lr, _ in self.pushes) or self.merges
        return Change(self.replica, self.part, self.lr, None, version, buffers, sizes, merges)

    @property
    def all_staged(self) -> list[Staged]:
        """The staged memory of what changes the rows."""
        own = [self.staged] if self.staged is not None else []
        return own + [staged for _, _, staged in self.pushes]

    def merge(self) -> None:
        """Apply the pushes of a round, as their head has merged them."""
        self.replica.shard.merge(self.pushes)


def encoded_in(pushes: Sequence[Staged]) -> tuple[Buffers, tuple[int, ...]]:
    """Return the encoded rows of pushes, and the sizes of their fragments."""
    encoded = [staged.encoded for staged in pushes if staged.encoded is not None]
    sizes = tuple(size for each in encoded for size in each.sizes)
    return tuple(each.data for each in encoded), sizes


class RoundPushes(msgspec.Struct, frozen=True, eq=False):
    """The pushes of a round to one shard, which its head merges: (weight, rate, staged)."""

    replica: Replica
    pushes: list[tuple[float, float | None, Staged]]

    def merge(self) -> list[Change]:
        """Merge and apply the pushes; return the changes of rows."""
        replica, changes = self.replica, []
        if self._go_on_encoded():
            rows = self.pushes[0][2].rows
            whole = Change(replica, replica.part(rows, -1), pushes=self.pushes)
            whole.merge()
            return [whole]
        for update in replica.shard.merge(self.pushes):
            views = update.views if replica.following != NONE else ()
            keys = count_of(views[0]) if len(views) > 1 else -1
            part = replica.part(update.rows, keys)
            changes.append(Change(replica, part, update.lr, buffers=views))
        return changes

    def _go_on_encoded(self) -> bool:
        """Return whether the pushes are fewer bytes than what they are merged to."""
        replica, pushes = self.replica, [staged for _, _, staged in self.pushes]
        if replica.following == NONE or any(each.encoded is None for each in pushes):
            return False
        alike = len({each.rows for each in pushes}) == 1
        buffers, sizes = encoded_in(pushes)
        merged = Layout(replica.shard.spec).nbytes(len(pushes[0].rows)) if pushes else 0
        fewer = sum(view.nbytes for view in buffers) < merged
        return alike and fewer and len(sizes) <= FRAGMENTS_TOLD_MAX


class Operation(msgspec.Struct, eq=False):
    """Changes that are made at once; kept until all servers of their chains have them.

    path:      the ranks of the servers that have applied it, from the head to this one
    clock:     the head's clock: this operation and earlier ones contain all rounds below it, for
               the shards whose chains begin with `path`
    merges:    the pushes of a round, at its head, which make the changes
    origins:   the pushes in it, for the servers after this one
    logs:      the pushes in it, by the request log here and sequence number
    round:     the round; for a push, the latest checkpoint clock that its head has passed, less one
    weight:    the total weight of the round
    pushed:    the clock of the push, if that matters to checkpoints
    group:     the worker group whose clocks these are
    updates:   the number of updates of rows that are written with their slots
    retained:  the staged memory that the buffers are in
    unread:    the number of messages with parts of it that are not acknowledged: the next server
               may have the changes from the view before, and still read the buffers
    """

    what: What
    path: tuple[int, ...]
    clock: int
    changes: list[Change]
    origins: tuple[Origin, ...] = ()
    logs: Sequence[tuple[RequestLog, int]] = ()
    merges: Sequence[RoundPushes] = ()
    round: int = -1
    weight: float = 0.0
    digest: int = 0
    pushed: int = -1
    group: str = ""
    updates: int = 0
    retained: list[tuple[ShardStore, Staged]] = []
    unread: int = 0

    @property
    def done(self) -> bool:
        return not self.unread and all(each.done for each in self.changes)

    def replicas(self) -> list[Replica]:
        """Return the replicas that the operation changes."""
        changed = [each.replica for each in self.changes] + [each.replica for each in self.merges]
        return list({replica.number: replica for replica in changed}.values())

    @property
    def nbytes(self) -> int:
        """The bytes of the pushes in the operation."""
        staged = [each for change in self.changes for each in change.all_staged]
        staged += [each for merge in self.merges for _, _, each in merge.pushes]
        return sum(view.nbytes for each in staged for view in each.views)

    def change_round(self, failed: dict[int, str]) -> list[Change]:
        """Apply a round to the rows, merged here or by its head; return the changes.

        Args:
            failed: a dictionary that takes the reason of each refused part, by replica.
        """
        changes = []
        for each in self.merges:
            try:
                changes += each.merge()
            except AccessFailed as error:
                failed[each.replica.number] = error.message
        updates = defaultdict(list)
        for change in self.changes:
            if change.pushes:
                change.merge()
            else:
                updates[change.replica.number].append(change)
        for some in updates.values():
            some[0].replica.shard.apply_round([(each.lr, each.staged) for each in some])
        return [*changes, *self.changes]

    def retain(self, replica: Replica, staged: Staged) -> None:
        """Keep staged memory after it is applied, because it is sent to the next server."""
        replica.shard.retain(staged)
        self.retained.append((replica.shard, staged))

    def release(self) -> None:
        """Release the retained memory, because all replicas have the changes."""
        for shard, staged in self.retained:
            shard.let_go(staged)

    def sent(self) -> None:
        """Count a message that carries parts of the operation."""
        self.unread += 1

    def read(self) -> None:
        """Count a message as acknowledged."""
        self.unread -= 1

    def keep(self, changes: list[Change]) -> None:
        """Keep only these changes, for the servers after this one."""
        self.changes = changes

    def send_again(self, changes: list[Change]) -> None:
        """Keep only these changes in a new view; the head announces its clock again."""
        self.changes, self.clock, self.unread = changes, 0, 0

    def message(
        self, changes: list[Change], view: ViewId, number: int, clock: int
    ) -> Replicate | StateChunk:
        """Return the message that carries these changes of the operation."""
        fields = (
            view,
            number,
            self.path,
            clock,
            self.what,
            tuple(each.part for each in changes),
            tuple(each.version for each in changes),
            tuple(each.lr for each in changes),
            self.origins,
            self.round,
            self.weight,
            self.digest,
            self.pushed,
            self.group,
            self.updates,
        )
        if any(each.sizes for each in changes):
            sizes, merges = zip(*((each.sizes, each.merges) for each in changes), strict=True)
            return EncodedReplicate(*fields, sizes, merges if any(merges) else ())
        return Replicate(*fields)


class Delivery(Change, eq=False):
    """A message part that changes no rows, and is done when the next server has it."""

    there: bool = False

    @property
    def done(self) -> bool:
        return self.there


class Check(Delivery, eq=False):
    """The checksum of some rows at a version."""


class Chunk(Delivery, eq=False):
    """A part of a shard's snapshot for its syncing replica.

    since:  the view in which the transfer began
    """

    since: int = 0
    at: int = 0
    after: int = 0
    last: bool = False
    past: ReplicaHistory | None = None


class StateTransferOperation(Operation, eq=False):
    """The transfer of a chunk, in one order with the operations on the same rows."""

    def message(self, changes: list[Change], view: ViewId, number: int, clock: int) -> StateChunk:
        [chunk] = changes
        assert isinstance(chunk, Chunk)
        return StateChunk(
            view,
            number,
            chunk.part,
            chunk.version,
            chunk.since,
            chunk.at,
            chunk.after,
            chunk.last,
            chunk.past,
        )
