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
from shoal.protocol.messages import Part, Past, Seen, State
from shoal.protocol.server.admission import Gate
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import Chunk, StateOperation, nothing
from shoal.protocol.server.request_log import NOT_BEGUN, Copy, Taking, Window
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shards import Loads, MovableShard, Shard


class Transfer(msgspec.Struct, eq=False):
    """What the learner of an arc has been sent, since that view."""

    copy: Copy
    since: int
    at: int = 0
    chunk: Chunk | None = None
    next_at: float = -inf
    ended: bool = False


class Transfers:
    """Those that this server sends, and those that it gets."""

    def __init__(
        self, gate: Gate, shards: Mapping[int, Shard], rounds: Rounds, replication: Replication
    ) -> None:
        self._gate = gate
        self._shards = shards
        self._rounds = rounds
        self._replication = replication
        self._sent: dict[int, Transfer] = {}  # by copy

    # ------------------------------------------------------------------ to a learner

    def adopt(self) -> None:
        """A view: begin those that are new in it, go on with the others."""
        before, self._sent = self._sent, {}
        for number, copy in self._replication.copies.items():
            since = copy.arc.learning
            if since and copy.arc.tail == self._replication.rank:
                known = before.get(number)
                again = known is not None and known.since == since
                self._sent[number] = known if known and again else Transfer(copy, since)

    def go_on(self, now: float, out: Effects) -> None:
        """Send what is due."""
        for transfer in self._sent.values():
            if now >= self._due(transfer):
                self._send(transfer, now, out)

    def wakes_at(self) -> float:
        return min(map(self._due, self._sent.values()), default=inf)

    def _due(self, transfer: Transfer) -> float:
        waits = transfer.chunk is not None and not transfer.chunk.there
        return inf if transfer.ended or waits else transfer.next_at

    def _send(self, transfer: Transfer, now: float, out: Effects) -> None:
        copy, options = transfer.copy, self._replication.options
        shard = cast(MovableShard, self._shards[copy.number])
        try:
            piece = shard.snapshot(transfer.at, options.chunk_bytes)
        except AccessFailed as error:  # a user's handler: its learner stays one
            transfer.ended = True
            out.append(Note("unmoved", {"rows": copy.rows, "reason": error.message}))
            return
        part = Part(copy.table, piece.rows.start, piece.rows.stop, piece.keys)
        transfer.chunk = Chunk(
            copy,
            part,
            copy.version,
            None,
            piece.views,
            since=transfer.since,
            at=transfer.at,
            after=piece.after,
            last=piece.last,
            past=self._past(copy) if not transfer.at else None,
        )
        nbytes = sum(view.nbytes for view in piece.views)
        transfer.next_at = now + nbytes / options.state_bytes_per_s
        transfer.at, transfer.ended = piece.after, piece.last
        operation = StateOperation("round", (), 0, [transfer.chunk], (), nothing)
        self._replication.carry(operation, out)

    def _past(self, copy: Copy) -> Past:
        """The pushes that are in its rows and may come again, and what is told of rounds."""
        seen = [
            Seen(
                window.incarnation,
                window.settled_below,
                tuple(
                    (seq, tuple(each.part for each in takings if _is_in(each, copy)))
                    for seq, takings in window.taken.items()
                ),
            )
            for window in self._gate.windows.values()
        ]
        return Past(tuple(seen), self._rounds.weights(copy.group), copy.closed)

    # ------------------------------------------------------------------ as a learner

    def install(self, message: State, copy: Copy, loads: Loads, out: Effects) -> None:
        """A piece of the rows, as they were at the tail when it was sent."""
        shard = cast(MovableShard, self._shards[copy.number])
        wanted = copy.learned_by(self._replication.rank) and shard.learning
        if not wanted or message.since != copy.arc.learning or message.at != copy.at:
            return
        if message.past is not None and copy.version == NOT_BEGUN:
            copy.version = copy.done = message.version
            copy.closed = message.past.closed
            self._remember(message.past, copy)
        try:
            shard.install(loads[0])
        except AccessFailed as error:
            out.append(Note("unmoved", {"rows": copy.rows, "reason": error.message}))
            return
        copy.at = message.after
        shard.learning = not message.last
        out.append(Note("installed", {"rows": copy.rows, "last": message.last}))

    def _remember(self, past: Past, copy: Copy) -> None:
        windows = {window.incarnation: window for window in self._gate.windows.values()}
        for seen in past.seen:
            window = windows.get(seen.incarnation)
            if window is not None:
                self._take_in(seen, window, copy)
        for clock, weight in past.weights:
            self._rounds.weigh(copy.group, clock, weight)

    def _take_in(self, seen: Seen, window: Window, copy: Copy) -> None:
        if seen.settled_below > window.settled_below:
            window.settle(seen.settled_below)
        for seq, parts in seen.pushes:
            if seq >= window.settled_below and parts:
                takings = window.taken.setdefault(seq, [])
                takings += [Taking(part, copy, copy.version) for part in parts]

    def learned(self) -> tuple[tuple[int, int, int], ...]:
        """(table, first row, since which view) of arcs of which all has come; none before all."""
        found = []
        for copy in self._replication.copies.values():
            if copy.learned_by(self._replication.rank):
                if cast(MovableShard, self._shards[copy.number]).learning:
                    return ()
                found.append((copy.table, copy.rows.start, copy.arc.learning))
        return tuple(found)


def _is_in(taking: Taking, copy: Copy) -> bool:
    return taking.copy is copy and taking.version >= 0
