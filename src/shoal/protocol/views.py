"""Views: the members of a cluster and the placement of shards. Plain data."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from shoal.keys import KeyRange
from shoal.tables.spec import TableSpec

NodeId = str
ViewId = tuple[int, int]
Role = Literal["scheduler", "server", "worker"]

FOREVER = 1 << 62  # the clock of a worker that will push no more
NO_VIEW: ViewId = (0, 0)


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a node.

    A worker counts in the rounds `[first_clock, last_clock)`.

    Attributes:
        id: name of the node.
        role: "scheduler", "server" or "worker".
        rank: from 0, by role and group.
        incarnation: number of this admission, unique in the run.
        done_clock: of a dead worker: its pushes below this clock are on all servers.
        process: process id on its host; 0 if no parent can report its end.
        group: worker group, which shares clocks, leases and barriers; "" is the first group.
        group_size: workers that make an attached group complete.
    """

    id: NodeId
    role: Role
    rank: int
    incarnation: int
    address: str = ""
    host: str = ""
    first_clock: int = 0
    last_clock: int = FOREVER
    done_clock: int = FOREVER
    process: int = 0
    group: str = ""
    group_size: int = 0

    @property
    def name(self) -> str:
        """Readable name, such as server-1."""
        return name_of(self.role, self.rank, self.group)


def valid_group(name: str) -> bool:
    """Whether this is a valid name of a worker group or namespace ("" is the first group)."""
    return re.fullmatch(r"[A-Za-z0-9_-]{0,64}", name) is not None


def name_of(role: Role, rank: int, group: str = "") -> str:
    """The readable name of a member.

    >>> name_of("server", 1), name_of("worker", 0, "eval")
    ('server-1', 'eval/worker-0')
    """
    return f"{group}/{role}-{rank}" if group else f"{role}-{rank}"


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Placement of a shard: its rows, which are whole fragments, and its chain of servers.

    Attributes:
        rows: rows of a dense table, hash slots of others.
        chain: ranks of servers. The first is the *head* and takes pushes; the last is the *tail*
            and answers pulls.
        syncing_since: number of the view in which the chain's last server, the *syncing replica*,
            began to receive the rows; 0 if there is none.
    """

    rows: KeyRange
    chain: tuple[int, ...]
    syncing_since: int = 0

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The servers that have all rows of the shard."""
        return self.chain[:-1] if self.syncing_since else self.chain

    @property
    def head(self) -> int:
        """Rank of the server that takes pushes."""
        return self.chain[0]

    @property
    def tail(self) -> int:
        """Rank of the server that answers pulls."""
        return self.chain[-2] if self.syncing_since else self.chain[-1]


class View(msgspec.Struct, frozen=True, array_like=True):
    """A numbered membership. `(term, number)` orders views; a scheduler's restart begins a term.

    Attributes:
        servers: by rank.
        workers: by group and rank.
        tables: every table of the run.
        placements: of each table, in key order.
        departed: workers that left with a last clock that some server may not have reached yet.
        reason: why this view was made.
        checkpoint_clocks: the latest clocks that have a checkpoint, if views name them.
    """

    term: int
    number: int
    servers: tuple[Member, ...]
    workers: tuple[Member, ...]
    tables: tuple[TableSpec, ...] = ()
    placements: tuple[tuple[Placement, ...], ...] = ()
    departed: tuple[Member, ...] = ()
    reason: str = ""
    checkpoint_clocks: tuple[int, ...] = ()

    @property
    def id(self) -> ViewId:
        """(term, number)."""
        return (self.term, self.number)

    def member(self, node: NodeId) -> Member | None:
        """The member of that node."""
        return next((m for m in (*self.servers, *self.workers) if m.id == node), None)

    def group(self, name: str) -> tuple[Member, ...]:
        """The workers of a group."""
        return tuple(member for member in self.workers if member.group == name)

    def groups(self) -> set[str]:
        """The groups with workers or tables in this view, and the first group."""
        return {"", *(m.group for m in self.workers), *(spec.group for spec in self.tables)}

    def placements_of(self, table: str) -> tuple[Placement, ...]:
        """The placements of a table of this view."""
        return next(
            placements
            for spec, placements in zip(self.tables, self.placements, strict=True)
            if spec.name == table
        )

    def named(self, table: str) -> int | None:
        """The number of the table of that name."""
        return next((i for i, spec in enumerate(self.tables) if spec.name == table), None)
