"""Transfers: how a server comes to rows that others have.

The tail of a chain sends its learner the rows piece by piece, in one order with what is done to
them meanwhile. So each piece is as the rows were at its place in that order: the learner leaves out
what comes for rows that it has not been sent yet, and does the rest. What is acknowledged meanwhile
has gone to the learner as well, or into a piece that is still to be sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import cast

import msgspec

from shoal.errors import AccessFailed
from shoal.protocol.machine import Effects, Note
from shoal.protocol.messages import Part, ReplicaHistory, SeenRequests, StateChunk
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.replica import NOT_BEGUN, AppliedPart, Replica
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import Chunk, StateTransferOperation, nothing
from shoal.protocol.server.request_log import RequestLog
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shard_store import Loads, MovableStore, ShardStore


class Transfer(msgspec.Struct, eq=False):
    """What the learner of an arc has been sent, since that view."""

    replica: Replica
    since: int
    at: int = 0
    chunk: Chunk | None = None
    next_at: float = -inf
    ended: bool = False


class StateTransfer:
    """Those that this server sends, and those that it gets.

    sending:  by replica
    """

    def __init__(
        self,
        admission: Admission,
        shards: Mapping[int, ShardStore],
        rounds: Rounds,
        replication: Replication,
    ) -> None:
        self._admission = admission
        self._shards = shards
        self._rounds = rounds
        self._replication = replication
        self.sending: dict[int, Transfer] = {}  # by copy

    # ------------------------------------------------------------------ to a learner

    def adopt(self) -> None:
        """A view: begin those that are new in it, go on with the others."""
        before, self.sending = self.sending, {}
        for number, replica in self._replication.replicas.items():
            since = replica.placement.syncing_since
            if since and replica.tail == self._replication.rank:
                known = before.get(number)
                again = known is not None and known.since == since
                self.sending[number] = known if known and again else Transfer(replica, since)

    def go_on(self, now: float, out: Effects) -> None:
        """Send what is due."""
        for transfer in self.sending.values():
            if now >= self._due(transfer):
                self._send(transfer, now, out)

    def wakes_at(self) -> float:
        return min(map(self._due, self.sending.values()), default=inf)

    def _due(self, transfer: Transfer) -> float:
        waits = transfer.chunk is not None and not transfer.chunk.there
        return inf if transfer.ended or waits else transfer.next_at

    def _send(self, transfer: Transfer, now: float, out: Effects) -> None:
        replica, options = transfer.replica, self._replication.options
        shard = cast(MovableStore, self._shards[replica.number])
        try:
            piece = shard.snapshot(transfer.at, options.chunk_bytes)
        except AccessFailed as error:  # a user's handler: its learner stays one
            transfer.ended = True
            out.append(Note("unmoved", {"rows": replica.rows, "reason": error.message}))
            return
        part = Part(replica.table, piece.rows.start, piece.rows.stop, piece.keys)
        transfer.chunk = Chunk(
            replica,
            part,
            replica.version,
            None,
            piece.views,
            since=transfer.since,
            at=transfer.at,
            after=piece.after,
            last=piece.last,
            past=self._past(replica) if not transfer.at else None,
        )
        nbytes = sum(view.nbytes for view in piece.views)
        transfer.next_at = now + nbytes / options.state_bytes_per_s
        transfer.at, transfer.ended = piece.after, piece.last
        operation = StateTransferOperation("round", (), 0, [transfer.chunk], (), nothing)
        self._replication.carry(operation, out)

    def _past(self, replica: Replica) -> ReplicaHistory:
        """The pushes that are in its rows and may come again, and what is told of rounds."""
        seen = [
            SeenRequests(
                log.incarnation,
                log.forget_below,
                tuple(
                    (seq, tuple(each.part for each in parts_of_push if _is_in(each, replica)))
                    for seq, parts_of_push in log.parts.items()
                ),
            )
            for log in self._admission.logs.values()
        ]
        return ReplicaHistory(tuple(seen), self._rounds.weights(replica.group), replica.closed)

    # ------------------------------------------------------------------ as a learner

    def install(self, message: StateChunk, replica: Replica, loads: Loads, out: Effects) -> None:
        """A piece of the rows, as they were at the tail when it was sent."""
        shard = cast(MovableStore, self._shards[replica.number])
        wanted = replica.syncs_on(self._replication.rank) and shard.syncing
        if (
            not wanted
            or message.since != replica.placement.syncing_since
            or message.at != replica.at
        ):
            return
        if message.past is not None and replica.version == NOT_BEGUN:
            replica.sync_from(message.version, message.past.closed)
            self._remember(message.past, replica)
        try:
            shard.install(loads[0])
        except AccessFailed as error:
            out.append(Note("unmoved", {"rows": replica.rows, "reason": error.message}))
            return
        replica.received_to(message.after)
        shard.sync(not message.last)
        out.append(Note("installed", {"rows": replica.rows, "last": message.last}))

    def _remember(self, past: ReplicaHistory, replica: Replica) -> None:
        logs = {log.incarnation: log for log in self._admission.logs.values()}
        for seen in past.seen:
            log = logs.get(seen.incarnation)
            if log is not None:
                self._take_in(seen, log, replica)
        for clock, weight in past.weights:
            self._rounds.weigh(replica.group, clock, weight)

    def _take_in(self, seen: SeenRequests, log: RequestLog, replica: Replica) -> None:
        if seen.forget_below > log.forget_below:
            log.forget(seen.forget_below)
        for seq, parts in seen.pushes:
            if seq >= log.forget_below and parts:
                log.add_parts(seq, [AppliedPart(p, replica, replica.version) for p in parts])

    def synced(self) -> tuple[tuple[int, int, int], ...]:
        """(table, first row, since which view) of arcs of which all has come; none before all."""
        found = []
        for replica in self._replication.replicas.values():
            if replica.syncs_on(self._replication.rank):
                if cast(MovableStore, self._shards[replica.number]).syncing:
                    return ()
                found.append((replica.table, replica.rows.start, replica.placement.syncing_since))
        return tuple(found)


def _is_in(applied_part: AppliedPart, replica: Replica) -> bool:
    return applied_part.replica is replica and applied_part.version >= 0
