"""Views: the members of a cluster and the placement of shards. Plain data."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.keys import KeyRange, tiles
from shoal.protocol.limits import NUMBER_MAX, PARTS_MAX, Launch, Name, Number, Rank, Text
from shoal.tables.spec import TableSpec

NodeId = str
ViewId = tuple[Number, Number]
Role = Literal["scheduler", "server", "worker"]

FOREVER = NUMBER_MAX  # the clock of a worker that will push no more
NO_VIEW: ViewId = (0, 0)


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a node.

    A worker counts in the rounds `[first_clock, last_clock)`.

    Attributes:
        id: the name of the node.
        role: "scheduler", "server" or "worker".
        rank: the number within its role and group, from 0.
        incarnation: the number of this admission, unique in the run.
        done_clock: the clock below which all pushes of a dead worker are on all servers.
        launch: the id of its process's start; "" if nobody can report its end.
        group: the worker group, which shares clocks, leases and barriers; "" is the first group.
        group_size: the number of workers that makes an attached group complete.
    """

    id: Name
    role: Role
    rank: Rank
    incarnation: Number
    address: Name = ""
    host: Name = ""
    first_clock: Number = 0
    last_clock: Number = FOREVER
    done_clock: Number = FOREVER
    launch: Launch = ""
    group: Name = ""
    group_size: Number = 0

    @property
    def name(self) -> str:
        """The readable name, such as server-1."""
        return name_of(self.role, self.rank, self.group)


def valid_group(name: str) -> bool:
    """Return whether a name is valid for a worker group or namespace ("" is the first group)."""
    return re.fullmatch(r"[A-Za-z0-9_-]{0,64}", name) is not None


def name_of(role: Role, rank: int, group: str = "") -> str:
    """Return the readable name of a member.

    >>> name_of("server", 1), name_of("worker", 0, "eval")
    ('server-1', 'eval/worker-0')
    """
    return f"{group}/{role}-{rank}" if group else f"{role}-{rank}"


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """The placement of a shard: its rows, which are whole fragments, and its chain of servers.

    Attributes:
        rows: the rows of a dense table, the hash slots of others.
        chain: the ranks of servers. The first is the *head* and takes pushes; the last one that is
            in sync is the *tail* and answers pulls.
        syncing_since: the number of the view in which the chain's last server, the *syncing
            replica*, began to receive the rows; 0 if there is none.
    """

    rows: KeyRange
    chain: Annotated[tuple[Rank, ...], Meta(min_length=1, max_length=1 << 10)]
    syncing_since: Number = 0

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The ranks of the servers that have all rows of the shard."""
        return self.chain[:-1] if self.syncing_since else self.chain

    @property
    def head(self) -> int:
        """The rank of the server that takes pushes."""
        return self.chain[0]

    @property
    def tail(self) -> int:
        """The rank of the server that answers pulls."""
        return self.chain[-2] if self.syncing_since else self.chain[-1]


Members = Annotated[tuple[Member, ...], Meta(max_length=PARTS_MAX)]
Placements = Annotated[tuple[Placement, ...], Meta(max_length=PARTS_MAX)]


class View(msgspec.Struct, frozen=True, array_like=True):
    """A numbered membership. `(term, number)` orders views; a scheduler's restart begins a term.

    Attributes:
        servers: the servers, by rank.
        workers: the workers, by group and rank.
        tables: the tables of the run.
        placements: the placements of each table, in key order.
        departed: the workers that left with a last clock that some server may not have reached.
        reason: the reason for this view.
        checkpoint_clocks: the latest clocks that have a checkpoint, if views name them.
    """

    term: Number
    number: Number
    servers: Members
    workers: Members
    tables: Annotated[tuple[TableSpec, ...], Meta(max_length=PARTS_MAX)] = ()
    placements: Annotated[tuple[Placements, ...], Meta(max_length=PARTS_MAX)] = ()
    departed: Members = ()
    reason: Text = ""
    checkpoint_clocks: Annotated[tuple[Number, ...], Meta(max_length=1 << 10)] = ()

    @property
    def id(self) -> ViewId:
        """The pair (term, number)."""
        return (self.term, self.number)

    def member(self, node: NodeId) -> Member | None:
        """Return the member of a node; None if the view does not have it."""
        return next((m for m in (*self.servers, *self.workers) if m.id == node), None)

    def group(self, name: str) -> tuple[Member, ...]:
        """Return the workers of a group."""
        return tuple(member for member in self.workers if member.group == name)

    def groups(self) -> set[str]:
        """Return the groups with workers or tables in this view, and the first group."""
        return {"", *(m.group for m in self.workers), *(spec.group for spec in self.tables)}

    def placements_of(self, table: str) -> tuple[Placement, ...]:
        """Return the placements of a table of this view."""
        return next(
            placements
            for spec, placements in zip(self.tables, self.placements, strict=True)
            if spec.name == table
        )

    def problem(self) -> str:
        """Return why no scheduler can have made this view; empty if one may have."""
        here = {member.rank for member in self.servers}
        members = (*self.servers, *self.workers)
        if len(here) != len(self.servers) or len({m.id for m in members}) != len(members):
            return "members with one name or rank"
        if any(m.role != "server" for m in self.servers):
            return "servers of another role"
        if any(m.role != "worker" for m in (*self.workers, *self.departed)):
            return "workers of another role"
        if len(self.placements) != len(self.tables):
            return f"placements of {len(self.placements)} tables, where it has {len(self.tables)}"
        if len({spec.name for spec in self.tables}) != len(self.tables):
            return "tables with one name"
        return next(filter(None, map(self._misplaced, self.tables, self.placements)), "")

    def _misplaced(self, spec: TableSpec, placements: Placements) -> str:
        here = {member.rank for member in self.servers}
        if not tiles([each.rows for each in placements], spec.keys.stop) or not spec.fragment_rows:
            return f"shards that are not all of table {spec.name!r}"
        for each in placements:
            if each.rows.start % spec.fragment_rows:
                return f"a shard of table {spec.name!r} that begins within a fragment"
            if not here.issuperset(each.chain) or len({*each.chain}) != len(each.chain):
                return f"a chain {each.chain} of servers that it does not have, or twice"
            if each.syncing_since and len(each.chain) < 2:
                return f"a syncing replica of table {spec.name!r} without another"
        return ""

    def named(self, table: str) -> int | None:
        """Return the number of the table with a name; None if the view does not have it."""
        return next((i for i, spec in enumerate(self.tables) if spec.name == table), None)


def gone(before: View, view: View) -> list[NodeId]:
    """Return the nodes of members that the next view lacks, or has with another incarnation."""
    here = {(member.id, member.incarnation) for member in (*view.servers, *view.workers)}
    return [
        member.id
        for member in (*before.servers, *before.workers)
        if (member.id, member.incarnation) not in here
    ]
