"""State transfer: a syncing replica receives its shard's rows from the tail.

The tail of a chain sends the rows in chunks, in one order with the operations on them. So each
chunk has the rows as of its place in that order. The syncing replica ignores operations on rows
that it has not received, and applies the others. An operation that is acknowledged meanwhile has
gone to the syncing replica as well, or is contained in a later chunk.
"""

from __future__ import annotations

from math import inf

import msgspec

from shoal.errors import AccessFailed
from shoal.protocol.machine import Effects
from shoal.protocol.messages.replication import ReplicaHistory, SeenRequests, StateChunk
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import Chunk, StateTransferOperation
from shoal.protocol.server.notes import Installed, Unmoved
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.state.replica import NOT_BEGUN, AppliedPart, Replica
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.rounds import Rounds
from shoal.protocol.server.state.shard_store import Loads


class Transfer(msgspec.Struct, eq=False):
    """The progress of one transfer, which began in the view `since`."""

    replica: Replica
    since: int
    at: int = 0
    chunk: Chunk | None = None
    next_at: float = -inf
    ended: bool = False


class StateTransfer:
    """The transfers that this server sends and receives.

    sending:  the transfers that this server sends, by replica
    """

    def __init__(
        self,
        admission: Admission,
        rounds: Rounds,
        chains: Chains,
    ) -> None:
        self._admission = admission
        self._rounds = rounds
        self._chains = chains
        self.sending: dict[int, Transfer] = {}

    # ------------------------------------------------------------------ sending

    def adopt(self) -> None:
        """Adopt a view: begin its new transfers, continue the others."""
        before, self.sending = self.sending, {}
        for number, replica in self._chains.replicas.items():
            since = replica.placement.syncing_since
            if since and replica.tail == self._chains.rank:
                known = before.get(number)
                again = known is not None and known.since == since
                self.sending[number] = known if known and again else Transfer(replica, since)

    def go_on(self, now: float, out: Effects) -> None:
        """Send the chunks that are due."""
        for transfer in self.sending.values():
            if now >= self._due(transfer):
                self._send(transfer, now, out)

    def wakes_at(self) -> float:
        return min(map(self._due, self.sending.values()), default=inf)

    def _due(self, transfer: Transfer) -> float:
        waits = transfer.chunk is not None and not transfer.chunk.there
        return inf if transfer.ended or waits else transfer.next_at

    def _send(self, transfer: Transfer, now: float, out: Effects) -> None:
        replica, options = transfer.replica, self._chains.options
        shard = replica.shard
        try:
            piece = shard.snapshot(transfer.at, options.chunk_bytes)
        except AccessFailed as error:  # a user's handler failed: the replica stays syncing
            transfer.ended = True
            out.append(Unmoved(replica.rows, error.message))
            return
        transfer.chunk = Chunk(
            replica,
            replica.part(piece.rows, piece.keys),
            version=replica.version,
            buffers=piece.views,
            since=transfer.since,
            at=transfer.at,
            after=piece.after,
            last=piece.last,
            past=self._history(replica) if not transfer.at else None,
        )
        nbytes = sum(view.nbytes for view in piece.views)
        transfer.next_at = now + nbytes / options.state_bytes_per_s
        transfer.at, transfer.ended = piece.after, piece.last
        operation = StateTransferOperation("round", (), 0, [transfer.chunk])
        self._chains.carry(operation, out)

    def _history(self, replica: Replica) -> ReplicaHistory:
        """Return the pushes in a replica's rows that may be resent, and its rounds' weights."""
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

    # ------------------------------------------------------------------ receiving

    def install(self, message: StateChunk, replica: Replica, loads: Loads, out: Effects) -> None:
        """Install a chunk of rows, if it is the next one of the current transfer."""
        shard = replica.shard
        wanted = replica.syncs and shard.syncing
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
            out.append(Unmoved(replica.rows, error.message))
            return
        replica.received_to(message.after)
        shard.sync(not message.last)
        out.append(Installed(replica.rows, message.last))

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
                log.apply(seq, [AppliedPart(p, replica, replica.version) for p in parts])

    def synced(self) -> tuple[tuple[int, int, int], ...]:
        """Return (table, first row, since) of the syncing replicas once all have all rows."""
        found = []
        for replica in self._chains.replicas.values():
            if replica.syncs:
                if replica.shard.syncing:
                    return ()
                found.append((replica.table, replica.rows.start, replica.placement.syncing_since))
        return tuple(found)


def _is_in(applied_part: AppliedPart, replica: Replica) -> bool:
    return applied_part.replica is replica and applied_part.version >= 0
