"""ShardOpening: opens the shards of the next view before it is made.

To take the memory of a large shard and draw its initial values takes seconds, and may fail. So the
scheduler asks servers to open shards first (`OpenShards`), and makes a view of those that are open;
until then requests to other tables go on. The work is done outside of the loop (`Offload`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from shoal.errors import ShoalError
from shoal.keys import KeyRange
from shoal.protocol.layout import Layout
from shoal.protocol.machine import Effects, Offload, Offloaded, Send
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import OpenShards, ShardsOpened
from shoal.protocol.messages.reasons import bounded
from shoal.protocol.server.requests.memory import TableMemory
from shoal.protocol.server.state.shard_store import OpenStore, ShardStore
from shoal.protocol.session import Session
from shoal.tables.spec import TableSpec


class _Opening(msgspec.Struct, eq=False):
    """A shard on the list: being opened, open (`shard`), failed (`reason`) or taken by a view.

    nbytes:  the bytes that it takes
    """

    spec: TableSpec
    rows: KeyRange
    ticket: int
    nbytes: int = 0
    shard: ShardStore | None = None
    reason: str = ""
    taken: bool = False


class ShardOpening:
    """The shards that this server opens for the next view."""

    def __init__(
        self,
        session: Session,
        open_shard: OpenStore,
        memory: TableMemory,
        tickets: Iterator[int],
    ) -> None:
        self._session = session
        self._memory = memory
        self._open_shard = open_shard
        self._number = (0, 0)
        self._shards: list[_Opening] = []
        self._tickets = tickets
        self._under_way: dict[int, int] = {}  # bytes of shards that are being opened, by ticket

    def problem_of(self, message: OpenShards) -> str:
        """Return the problem of a scheduler's list of shards; empty if it has none."""
        for spec, ranges in message.tables:
            for rows in ranges:
                if not spec.fragment_rows or not spec.keys.covers(rows) or not len(rows):
                    return f"{rows} are no rows of table {spec.name!r}"
        return ""

    def asked(self, message: OpenShards, out: Effects) -> None:
        """Open the shards on a new list, smallest first, and report the progress of this server."""
        if message.view > self._session.view_id:  # that view may take a shard of the list
            self._session.ask_for_view(message.view, out)
            return
        if message.number > self._number:
            self._number = message.number
            wanted = [(spec, rows) for spec, ranges in message.tables for rows in ranges]
            wanted.sort(key=lambda shard: Layout(shard[0]).nbytes(len(shard[1])))
            kept = [each for each in self._shards if not (each.reason or each.taken)]
            self._shards = [each for each in kept if (each.spec, each.rows) in wanted]
            self._reserve()
            self._shards = [
                next((e for e in self._shards if e.spec == spec and e.rows == rows), None)
                or self._begin(spec, rows, out)
                for spec, rows in wanted
            ]
        if message.number == self._number:
            self._say(out)

    def _begin(self, spec: TableSpec, rows: KeyRange, out: Effects) -> _Opening:
        ticket = next(self._tickets)
        opening = _Opening(spec, rows, ticket)
        try:
            opening.nbytes = self._memory.needed(spec, rows)
            opening.reason = self._memory.too_large(spec, rows, opening.nbytes, self._memory.free)
            if not opening.reason and spec.kind == "custom":
                # a handler may be bound to the thread that calls it
                opening.shard = self._open_shard(spec, rows)
        except ShoalError as error:
            opening.reason = error.message
        if not opening.reason and opening.shard is None:
            self._under_way[ticket] = opening.nbytes
            self._memory.reserve(self._memory.reserved + opening.nbytes)
            out.append(Offload(ticket, partial(self._open_shard, spec, rows)))
        return opening

    def _reserve(self) -> None:
        """Reserve memory for the shards on the list, and for others still being opened."""
        nbytes = dict(self._under_way)
        for each in self._shards:
            if not (each.reason or each.taken):
                nbytes[each.ticket] = each.nbytes
        self._memory.reserve(sum(nbytes.values()))

    def done(self, event: Offloaded, out: Effects) -> None:
        """Record that a shard is open or cannot be opened, and report it."""
        self._under_way.pop(event.ticket, None)
        for each in self._shards:
            if each.ticket == event.ticket:
                each.shard = event.value
                each.reason = event.error.message if event.error is not None else ""
                self._check(each)
                self._say(out)
        self._reserve()

    def _check(self, opened: _Opening) -> None:
        """Drop an opened shard that takes more bytes than were known, if they do not fit."""
        if opened.shard is None:
            return
        before, opened.nbytes = opened.nbytes, self._memory.takes(opened.shard)
        if opened.nbytes > before:
            free = self._memory.free + before
            opened.reason = self._memory.too_large(opened.spec, opened.rows, opened.nbytes, free)
            opened.shard = None if opened.reason else opened.shard

    def _say(self, out: Effects) -> None:
        opened: dict[str, tuple[KeyRange, ...]] = {}
        for each in self._shards:
            if each.shard is not None or each.taken:
                opened[each.spec.name] = (*opened.get(each.spec.name, ()), each.rows)
        failed = [each for each in self._shards if each.reason]
        answer = ShardsOpened(
            self._session.incarnation,
            self._number,
            tuple(opened.items()),
            tuple((each.spec.name, each.rows, bounded(each.reason)) for each in failed),
        )
        out.append(Send(SCHEDULER, answer))

    def take(self, spec: TableSpec, rows: KeyRange) -> ShardStore:
        """Return an open shard for a view; open it now if it was not opened before.

        Raises:
            ShoalError: the shard cannot be opened.
        """
        for each in self._shards:
            if each.spec == spec and each.rows == rows and each.shard is not None:
                shard, each.shard, each.taken = each.shard, None, True
                self._reserve()
                return shard
        return self._open_shard(spec, rows)
