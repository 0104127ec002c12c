"""ShardOpening: opens the shards of the next view before it is made.

Memory and initial values of a large shard take seconds, and may be refused. So the scheduler asks
servers to open shards first (`OpenShards`), and makes a view of those that are open; until then
requests to other tables go on. The work is done outside of the loop (`Offload`).
"""

from __future__ import annotations

from functools import partial

import msgspec

from shoal.errors import ShoalError
from shoal.keys import KeyRange
from shoal.protocol.machine import Effects, Offload, Offloaded, Send
from shoal.protocol.messages import SCHEDULER, OpenShards, ShardsOpened
from shoal.protocol.server.shard_store import OpenStore, ShardStore
from shoal.protocol.session import Session
from shoal.tables.spec import TableSpec


class _Opening(msgspec.Struct, eq=False):
    """A shard of the list: being opened; open (`shard`); not to be opened (`reason`); or taken."""

    spec: TableSpec
    rows: KeyRange
    ticket: int
    shard: ShardStore | None = None
    reason: str = ""
    taken: bool = False


class ShardOpening:
    """The shards that this server opens for the next view."""

    def __init__(self, session: Session, open_shard: OpenStore) -> None:
        self._session = session
        self._open_shard = open_shard
        self._number = (0, 0)
        self._shards: list[_Opening] = []
        self._tickets = 0

    def problem_of(self, message: OpenShards) -> str:
        """Return why no scheduler asks for these shards; empty if it may."""
        for spec, ranges in message.tables:
            for rows in ranges:
                if not spec.fragment_rows or not spec.keys.covers(rows) or not len(rows):
                    return f"{rows} are no rows of table {spec.name!r}"
        return ""

    def asked(self, message: OpenShards, out: Effects) -> None:
        """Open what is on a new list, smallest first, and say how far this server is."""
        if message.view > self._session.view_id:  # a shard may be taken by that view
            self._session.ask_for_view(out)
            return
        if message.number > self._number:
            self._number = message.number
            wanted = [(spec, rows) for spec, ranges in message.tables for rows in ranges]
            kept = [each for each in self._shards if not (each.reason or each.taken)]
            self._shards = [
                next((e for e in kept if e.spec == spec and e.rows == rows), None)
                or self._begin(spec, rows, out)
                for spec, rows in sorted(wanted, key=lambda shard: _nbytes(*shard))
            ]
        if message.number == self._number:
            self._say(out)

    def _begin(self, spec: TableSpec, rows: KeyRange, out: Effects) -> _Opening:
        self._tickets += 1
        opening = _Opening(spec, rows, self._tickets)
        if spec.kind == "custom":  # a handler may be bound to the thread that calls it
            try:
                opening.shard = self._open_shard(spec, rows)
            except ShoalError as error:
                opening.reason = error.message
        else:
            out.append(Offload(self._tickets, partial(self._open_shard, spec, rows)))
        return opening

    def done(self, event: Offloaded, out: Effects) -> None:
        """A shard is open, or cannot be opened."""
        for each in self._shards:
            if each.ticket == event.ticket:
                each.shard = event.value
                each.reason = event.error.message if event.error is not None else ""
                self._say(out)

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
            tuple((each.spec.name, each.rows, each.reason) for each in failed),
        )
        out.append(Send(SCHEDULER, answer))

    def take(self, spec: TableSpec, rows: KeyRange) -> ShardStore:
        """An open shard for a view; opens it now if it was not on the list.

        Raises:
            ShoalError: it cannot be opened.
        """
        for each in self._shards:
            if each.spec == spec and each.rows == rows and each.shard is not None:
                shard, each.shard, each.taken = each.shard, None, True
                return shard
        return self._open_shard(spec, rows)


def _nbytes(spec: TableSpec, rows: KeyRange) -> int:
    return len(rows) * spec.row_bytes
