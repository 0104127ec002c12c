"""Views: who is in, and where rows live. Plain data, as the messages that carry it."""

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

    done_clock:  of one that is gone: what it did below this is on all servers
    process:     its number on its host; 0 where nobody could say that it has ended
    group:       of workers: who have clocks, a ledger and barriers in common; the first has no name
    group_size:  how many workers make such a group complete
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
        return name_of(self.role, self.rank, self.group)


def valid_group(name: str) -> bool:
    """Whether a group of workers may be called that; the first one has no name."""
    return re.fullmatch(r"[A-Za-z0-9_-]{0,64}", name) is not None


def name_of(role: Role, rank: int, group: str = "") -> str:
    """What a member is called.

    >>> name_of("server", 1), name_of("worker", 0, "eval")
    ('server-1', 'eval/worker-0')
    """
    return f"{group}/{role}-{rank}" if group else f"{role}-{rank}"


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where a shard is: its rows, which are whole fragments, and its servers by rank.

    chain:          the first, the *head*, takes pushes; the last, the *tail*, answers pulls
    syncing_since:  0, or the number of the view in which one more server, the last of the chain,
                    began to receive the rows: the *syncing* replica
    """

    rows: KeyRange
    chain: tuple[int, ...]
    syncing_since: int = 0

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The servers that have all of its rows."""
        return self.chain[:-1] if self.syncing_since else self.chain

    @property
    def head(self) -> int:
        return self.chain[0]

    @property
    def tail(self) -> int:
        return self.chain[-2] if self.syncing_since else self.chain[-1]


class View(msgspec.Struct, frozen=True, array_like=True):
    """Numbered membership. `(term, number)` orders views; a scheduler's restart begins a term.

    placements:      of each table, in order; `protocol.placement` makes them
    departed:  workers that left with a last clock which some server may still have ahead
    checkpoint_clocks:   the latest clocks that are to have a checkpoint, where views name them
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
        return (self.term, self.number)

    def member(self, node: NodeId) -> Member | None:
        return next((m for m in (*self.servers, *self.workers) if m.id == node), None)

    def group(self, name: str) -> tuple[Member, ...]:
        """The workers of a group."""
        return tuple(member for member in self.workers if member.group == name)

    def groups(self) -> set[str]:
        """Those that have workers here, or tables; and the first."""
        return {"", *(m.group for m in self.workers), *(spec.group for spec in self.tables)}

    def placements_of(self, table: str) -> tuple[Placement, ...]:
        """The arcs of the table of that name, which is one of this view's."""
        return next(
            placements
            for spec, placements in zip(self.tables, self.placements, strict=True)
            if spec.name == table
        )

    def named(self, table: str) -> int | None:
        """The number of the table of that name."""
        return next((i for i, spec in enumerate(self.tables) if spec.name == table), None)
