"""TableCatalog: the tables of a run. Openings: the shards that servers open for the next view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from shoal.errors import Refused
from shoal.keys import KeyRange
from shoal.protocol.limits import TABLES_BYTES_MAX, TABLES_MAX
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.membership import NotDeclared, OpenShards, ShardsOpened
from shoal.protocol.messages.reasons import Waiting, bounded, some_of
from shoal.protocol.namespaces import owner
from shoal.protocol.scheduler.rows.rebalance import Barred, Opened
from shoal.protocol.views import Member, NodeId, View
from shoal.tables.consistency import asp
from shoal.tables.sizes import size
from shoal.tables.spec import TableSpec

PLACEMENT_BYTES = 32  # the approximate bytes of a shard in a view
AGAIN_S = 1.0  # between questions to a server that is opening shards
Shard = tuple[TableSpec, KeyRange]


class TableCatalog:
    """The tables that were declared, in the order of declaration.

    Args:
        specs: the tables of an earlier scheduler.
        fragment_rows: the fragment sizes that tables have from the run that this one continues.

    Attributes:
        specs: the tables; each has its fragment size, which never changes.
    """

    def __init__(self, specs: tuple[TableSpec, ...], fragment_rows: Mapping[str, int]) -> None:
        self.specs = specs
        self._fragment_rows = fragment_rows
        self._asked_by: dict[str, set[NodeId]] = {}  # the members that wait for a table, by name

    def adopt(self, tables: tuple[TableSpec, ...]) -> None:
        """Put the tables of a view first, which an earlier scheduler may have made."""
        names = {spec.name for spec in tables}
        self.specs = (*tables, *(spec for spec in self.specs if spec.name not in names))
        self._asked_by = {name: by for name, by in self._asked_by.items() if name not in names}

    def declare(self, spec: TableSpec, servers: int, sender: Member, memory: float = inf) -> None:
        """Add a table that a worker has declared, unless it is there already.

        memory: the bytes that all servers have for tables. Each server will say whether its part
            fits, but a table that exceeds the memory of all is refused before it is cut.

        Raises:
            Refused: another table has its name, the run has no servers, the table would go by
                another group's clocks, its rounds would close by another rule than those of the
                group's other tables, it needs more memory than there is, or views have no room
                to describe it.
            InvalidValue: the table cannot be cut.
        """
        if not servers:
            raise Refused(
                "this run has no servers to keep tables; start it with --servers 1 or more"
            )
        known = next((table for table in self.specs if table.name == spec.name), None)
        if known is None:
            if spec.nbytes > memory:
                raise Refused(
                    f"table {spec.name!r} has rows of {size(spec.nbytes)}, and the servers of this "
                    f"run together have {size(memory)} for tables; give servers more with "
                    "--memory, or add servers"
                )
            owned = _owned(spec, sender.group)
            self._check_closing(owned)
            fragment_rows = spec.fragment_rows or self._fragment_rows.get(spec.name, 0)
            cut = msgspec.structs.replace(owned, fragment_rows=fragment_rows).cut(servers)
            self._check_room(cut, servers)
            self.specs = (*self.specs, cut)
        elif difference := spec.difference(known):
            raise Refused(f"table {spec.name!r} exists with another specification. {difference}")
        self._asked_by.setdefault(spec.name, set()).add(sender.id)

    def _check_room(self, spec: TableSpec, servers: int) -> None:
        """Check that views have room for a table: each view describes all tables.

        Raises:
            Refused: views have no room.
        """
        if len(self.specs) >= TABLES_MAX:
            raise Refused(f"table {spec.name!r}: a run has at most {TABLES_MAX} tables")
        described = len(msgspec.msgpack.encode((*self.specs, spec)))
        nbytes = described + PLACEMENT_BYTES * servers * (len(self.specs) + 1)
        if nbytes > TABLES_BYTES_MAX:
            raise Refused(
                f"table {spec.name!r} would make the description of this run's tables "
                f"{size(nbytes)}, and at most {size(TABLES_BYTES_MAX)} are sent to every member: "
                "put parameters of one optimizer into one table"
            )

    def _check_closing(self, spec: TableSpec) -> None:
        """Check that a table's rounds close by the same rule as those of its group's other tables.

        Raises:
            Refused: the rules differ, and a group has one clock.
        """
        if spec.consistency.name == "asp":
            return
        for other in self.specs:
            rule = other.consistency
            if other.group == spec.group and rule.name != "asp":
                if rule.closes != spec.consistency.closes:
                    raise Refused(
                        f"rounds of table {spec.name!r} close by {_rule(spec)}, and those of table "
                        f"{other.name!r} by {_rule(other)}: all tables of a worker group that go "
                        "by clocks have the same rule; give both the same, or make one asp()"
                    )
                return

    def drop(self, table: str, reason: str, out: Effects) -> None:
        """Drop a table that a server cannot open, and tell the workers that wait for it."""
        self.specs = tuple(spec for spec in self.specs if spec.name != table)
        waiting = sorted(self._asked_by.pop(table, ()))
        out.extend(Send(node, NotDeclared(table, bounded(reason))) for node in waiting)


def _rule(spec: TableSpec) -> str:
    return "all workers" if spec.consistency.closes is None else str(spec.consistency.closes)


def _owned(spec: TableSpec, group: str) -> TableSpec:
    """Return the table with the group whose clocks it uses."""
    if not all(spec.name.split("/")):
        raise Refused(f"table {spec.name!r}: the parts between slashes must not be empty")
    of = owner(spec.name, group)
    if of != group and spec.consistency != asp():
        raise Refused(
            f"table {spec.name!r} is outside of the namespace {group!r}: it would go by the clocks "
            "of the first group, whose workers alone could push to it; declare it in that "
            "namespace, or as asp()"
        )
    return msgspec.structs.replace(spec, group=of)


class _List(msgspec.Struct):
    """The shards that a server is to open.

    used:  whether a view has placed some of them; wanted shards are on another list then
    """

    number: tuple[int, int]
    shards: list[Shard]
    since: float
    again_at: float
    opened: set[tuple[str, KeyRange]] = msgspec.field(default_factory=set)
    heard: bool = False
    used: bool = False

    @property
    def names(self) -> list[tuple[str, KeyRange]]:
        return [(spec.name, rows) for spec, rows in self.shards]

    @property
    def missing(self) -> list[str]:
        return [f"{table}{rows}" for table, rows in self.names if (table, rows) not in self.opened]


class Openings:
    """The shards of the next view, which servers open before it is made.

    Args:
        term: the term of the scheduler.
        pause_s: the time after which a server is asked again for shards that it could not open.
    """

    def __init__(self, term: int, pause_s: float) -> None:
        self._number = (term, 0)
        self._pause_s = pause_s
        self._lists: dict[NodeId, _List] = {}
        self._ranks: dict[NodeId, int] = {}
        self._barred: dict[tuple[str, NodeId], tuple[float, str]] = {}  # until when, and why

    def want(self, planned: View, view: View, now: float, out: Effects) -> None:
        """Ask servers for the shards of a planned view that are not on them yet."""
        self._ranks = {member.id: member.rank for member in planned.servers}
        for node in [each for each in self._lists if each not in self._ranks]:
            del self._lists[node]
        for member in planned.servers:
            shards = list(_fresh(planned, view, member.rank))
            known = self._lists.get(member.id)
            if known.used or known.shards != shards if known is not None else shards:
                self._number = (self._number[0], self._number[1] + 1)
                opened = known.opened if known is not None else set()
                opened &= {(spec.name, rows) for spec, rows in shards}
                self._lists[member.id] = _List(self._number, shards, now, now + AGAIN_S, opened)
                self._ask(member.id, view, out)

    def placed(self, view: View) -> None:
        """Take the shards that a view has placed off the lists of their servers.

        They are in use: to get the same rows anew a server opens another shard first.
        """
        for member in view.servers:
            asked = self._lists.get(member.id)
            if asked is not None and (here := _placed(view, member.rank) & set(asked.names)):
                asked.opened -= here
                asked.used = True

    def _ask(self, node: NodeId, view: View, out: Effects) -> None:
        asked = self._lists[node]
        tables: dict[str, tuple[TableSpec, tuple[KeyRange, ...]]] = {}
        for spec, rows in asked.shards:
            _, ranges = tables.get(spec.name, (spec, ()))
            tables[spec.name] = spec, (*ranges, rows)
        out.append(Send(node, OpenShards(asked.number, view.id, tuple(tables.values()))))

    def heard(
        self, server: Member, message: ShardsOpened, now: float
    ) -> tuple[tuple[str, KeyRange, str], ...]:
        """Record a server's answer; return (table, rows, reason) of shards that it cannot open."""
        asked = self._lists.get(server.id)
        if asked is None or asked.used or asked.number != message.number:
            return ()
        asked.heard = True
        wanted = set(asked.names)
        said = {(table, rows) for table, ranges in message.opened for rows in ranges}
        asked.opened |= said & wanted
        failed = tuple(each for each in message.failed if each[:2] in wanted)
        for table, _, reason in failed:
            self._barred[table, server.id] = now + self._pause_s, reason
        return failed

    def tick(self, view: View, now: float, out: Effects) -> bool:
        """Repeat due questions; return whether a server may be asked anew for a failed shard."""
        for node, asked in self._lists.items():
            if now >= asked.again_at and (asked.missing or not asked.heard):
                asked.again_at = now + AGAIN_S
                self._ask(node, view, out)
        over = [key for key, (until, _) in self._barred.items() if now >= until]
        for key in over:
            del self._barred[key]
        return bool(over)

    def wakes_at(self) -> float:
        lists = [each.again_at for each in self._lists.values() if each.missing or not each.heard]
        return min((*lists, *(until for until, _ in self._barred.values())), default=inf)

    @property
    def opened(self) -> Opened:
        """The (table, rows, rank) of the shards that are open."""
        return frozenset(
            (table, rows, self._ranks[node])
            for node, asked in self._lists.items()
            for table, rows in asked.opened
        )

    @property
    def barred(self) -> Barred:
        """The (table, rank) of servers that could not open a shard of a table."""
        there = self._ranks.keys()
        return frozenset((table, self._ranks[n]) for table, n in self._barred if n in there)

    def complete(self, tables: Iterable[TableSpec]) -> bool:
        """Return whether all requested shards of these tables are open."""
        names = {spec.name for spec in tables}
        lists = self._lists.values()
        return not any(
            spec.name in names and (spec.name, rows) not in asked.opened
            for asked in lists
            for spec, rows in asked.shards
        )

    def waits(self, names: dict[NodeId, str], now: float) -> list[Waiting]:
        """Return the waits for servers that open shards, and for servers that could not."""
        found = []
        for node, asked in self._lists.items():
            if asked.missing and node in names:
                reason = f"waits for {names[node]} to open {some_of(asked.missing)}"
                found.append(Waiting("the scheduler", "the next view", reason, now - asked.since))
        for (table, node), (until, reason) in self._barred.items():
            if node in names:
                again = f"{names[node]} cannot open it, and is asked again: {reason}"
                waited = max(0.0, now - until + self._pause_s)
                found.append(Waiting("the scheduler", f"table {table}", again, waited))
        return found


def _placed(view: View, rank: int) -> set[tuple[str, KeyRange]]:
    """Return the shards of a server in a view."""
    return {
        (spec.name, placement.rows)
        for spec, placements in zip(view.tables, view.placements, strict=True)
        for placement in placements
        if rank in placement.chain
    }


def _fresh(planned: View, view: View, rank: int) -> Iterable[Shard]:
    """Yield the shards of a server in a planned view that it lacks in the current one."""
    for at, (spec, placements) in enumerate(zip(planned.tables, planned.placements, strict=True)):
        for placement in placements:
            new = at >= len(view.tables) and rank in placement.chain
            syncs = placement.syncing_since == planned.number and rank == placement.chain[-1]
            if new or syncs:
                yield spec, placement.rows
