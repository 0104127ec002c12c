"""ShardOpening: opens the shards of the next view before it is made. TableMemory: what fits.

Memory and initial values of a large shard take seconds, and may be refused. So the scheduler asks
servers to open shards first (`OpenShards`), and makes a view of those that are open; until then
requests to other tables go on. The work is done outside of the loop (`Offload`).

A server has a limit of memory for its tables. What would exceed it is not opened, and a sparse
table that has reached it gets no new rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf

import msgspec

from shoal.errors import ShoalError
from shoal.keys import KeyRange
from shoal.protocol.machine import Effects, Offload, Offloaded, Send
from shoal.protocol.messages import SCHEDULER, OpenShards, ShardsOpened
from shoal.protocol.messages.reasons import bounded
from shoal.protocol.server.replica import Replica
from shoal.protocol.server.replication.operations import Change
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shard_store import BytesNeeded, OpenStore, ShardStore, Staged
from shoal.protocol.session import Session
from shoal.tables.sizes import size
from shoal.tables.spec import TableSpec

Keyed = tuple[int, KeyRange, int]  # shard, rows, number of keys or -1


class MemoryOptions(msgspec.Struct, frozen=True):
    """The memory that a server has for its tables.

    limit:   in bytes
    needed:  says what a shard will take, before it is opened
    """

    limit: float = inf
    needed: BytesNeeded = lambda spec, rows: 0


class TableMemory:
    """The limit of a server's memory for tables, and what they take of it.

    The head of a chain refuses what would exceed its limit before it changes or replicates
    anything. The other replicas apply what the head has applied: their own limits stop only the
    rows that pulls would create.

    Far from the limit a push costs a subtraction: `_spare` is what is certainly free, which every
    push diminishes by the most that its keys can take. Once that is used up, memory is looked at
    again; keys are looked up only where that is not enough.
    """

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options
        self._replicas: Mapping[int, Replica] = {}
        self._rounds = Rounds()
        self._opening = 0
        self._spare = 0.0
        self.look_again()

    def watch(self, replicas: Mapping[int, Replica], rounds: Rounds) -> None:
        """Count what these take: rows, and pushes that wait for their rounds here."""
        self._replicas, self._rounds = replicas, rounds

    def look_again(self) -> None:
        """Have the next push look at what is free."""
        self._spare = -inf if self._options.limit < inf else inf

    def grow(self, changes: Sequence[Change]) -> None:
        """Count the rows that another server's changes may create: they are not refused here."""
        for each in changes:
            if each.part.keys > 0:
                self._spare -= each.part.keys * each.replica.shard.new_row_bytes

    def reserve(self, nbytes: int) -> None:
        """Count what the shards take that are in no view yet, in all."""
        self._opening = nbytes
        self.look_again()

    @property
    def reserved(self) -> int:
        """Bytes of the shards that are in no view yet."""
        return self._opening

    @property
    def free(self) -> float:
        """Bytes that are left; negative where tables take more than the limit."""
        if self._options.limit == inf:
            return inf
        taken = sum(replica.shard.nbytes for replica in self._replicas.values())
        return self._options.limit - taken - self._opening

    def needed(self, spec: TableSpec, rows: KeyRange) -> int:
        """Return what a shard will take."""
        return self._options.needed(spec, rows)

    def takes(self, shard: ShardStore) -> int:
        """Return what a shard takes that was opened."""
        return shard.nbytes if self._options.limit < inf else 0

    def too_large(self, spec: TableSpec, rows: KeyRange, nbytes: int, free: float) -> str:
        """Return why a shard cannot be opened, if it needs more than is free."""
        if nbytes <= free:
            return ""
        return (
            f"table {spec.name!r} needs {size(nbytes)} here, for {rows}, and {size(free)} of "
            f"{size(self._options.limit)} are free; give servers more with --memory, or add servers"
        )

    def has_room(self, named: Sequence[Keyed]) -> bool:
        """Return whether rows for so many keys certainly fit, without a look at any shard."""
        more = self._most(named)
        return not more or more <= self._spare

    def _most(self, named: Sequence[Keyed]) -> int:
        """Return what rows for all of these keys would take."""
        more = 0
        for number, _, keys in named:
            if keys > 0:
                more += keys * self._replicas[number].shard.new_row_bytes
        return more

    def problem(self, pushes: Sequence[Keyed], loads: Sequence[Staged]) -> str:
        """Return why the keys of pushes (or of a pull) get no rows; empty if they may have them."""
        more = self._most(pushes)
        if more <= self._spare:
            self._spare -= more
            return ""
        return self._look(pushes, loads, more) if more else ""

    def _look(self, pushes: Sequence[Keyed], loads: Sequence[Staged], more: int) -> str:
        """The same, by what is free now; by the keys that are new, if that is too little."""
        waiting: defaultdict[int, list[Staged]] = defaultdict(list)
        for entry in self._rounds.entries():
            for part in entry.parts:
                if part.staged.keys is not None:
                    waiting[part.number].append(part.staged)
        free = spare = self.free
        for number, pushed in waiting.items():
            each = self._replicas[number].shard.new_row_bytes
            spare -= each * sum(len(staged.keys) for staged in pushed)
        if more <= spare:
            # rows that come to a syncing replica are not counted one by one
            syncing = any(replica.syncs for replica in self._replicas.values())
            self._spare = 0 if syncing else spare - more
            return ""
        self._spare = 0
        for number, pushed in waiting.items():
            shard = self._replicas[number].shard
            free -= shard.new_row_bytes and shard.new_row_bytes * _new_keys(shard, pushed)
        for (number, _, keys), staged in zip(pushes, loads, strict=False):
            shard = self._replicas[number].shard
            if keys <= 0 or not shard.new_row_bytes:
                continue
            known = _new_keys(shard, waiting[number])
            waiting[number].append(staged)
            new = _new_keys(shard, waiting[number]) - known
            if new and new * shard.new_row_bytes > free:
                return self._full(shard, new, free)
            free -= new * shard.new_row_bytes
        return ""

    def _full(self, shard: ShardStore, new: int, free: float) -> str:
        name, needed = shard.spec.name, size(new * shard.new_row_bytes)
        return (
            f"table {name!r} has {len(shard)} rows in {shard.held} here, which take "
            f"{size(shard.nbytes)}; {new} new keys need up to {needed}, and {size(free)} of "
            f"{size(self._options.limit)} are free. Bound the table with max_rows, add servers, or "
            "give them more with --memory"
        )


class _Opening(msgspec.Struct, eq=False):
    """A shard of the list: being opened; open (`shard`); not to be opened (`reason`); or taken.

    nbytes:  what it takes
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
        """Return why no scheduler asks for these shards; empty if it may."""
        for spec, ranges in message.tables:
            for rows in ranges:
                if not spec.fragment_rows or not spec.keys.covers(rows) or not len(rows):
                    return f"{rows} are no rows of table {spec.name!r}"
        return ""

    def asked(self, message: OpenShards, out: Effects) -> None:
        """Open what is on a new list, smallest first, and say how far this server is."""
        if message.view > self._session.view_id:  # a shard may be taken by that view
            self._session.ask_for_view(message.view, out)
            return
        if message.number > self._number:
            self._number = message.number
            wanted = [(spec, rows) for spec, ranges in message.tables for rows in ranges]
            wanted.sort(key=lambda shard: _nbytes(*shard))
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
        """Count what is on the list, and what is still being opened although it is not any more."""
        nbytes = dict(self._under_way)
        for each in self._shards:
            if not (each.reason or each.taken):
                nbytes[each.ticket] = each.nbytes
        self._memory.reserve(sum(nbytes.values()))

    def done(self, event: Offloaded, out: Effects) -> None:
        """A shard is open, or cannot be opened."""
        self._under_way.pop(event.ticket, None)
        for each in self._shards:
            if each.ticket == event.ticket:
                each.shard = event.value
                each.reason = event.error.message if event.error is not None else ""
                self._check(each)
                self._say(out)
        self._reserve()

    def _check(self, opened: _Opening) -> None:
        """Drop a shard that takes more than was known before, if that does not fit."""
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
        """An open shard for a view; opens it now if it was not on the list.

        Raises:
            ShoalError: it cannot be opened.
        """
        for each in self._shards:
            if each.spec == spec and each.rows == rows and each.shard is not None:
                shard, each.shard, each.taken = each.shard, None, True
                self._reserve()
                return shard
        return self._open_shard(spec, rows)


def _new_keys(shard: ShardStore, pushes: Sequence[Staged]) -> int:
    """Return how many rows pushes would create; at most, if another thread works on the shard."""
    return sum(len(each.keys) for each in pushes) if shard.lent else shard.new_keys(pushes)


def _nbytes(spec: TableSpec, rows: KeyRange) -> int:
    return len(rows) * spec.row_bytes
