"""Tiny views and tables, and their values as bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.scheduler.rows.placement import place
from shoal.protocol.views import Member, View
from shoal.tables.consistency import Consistency, asp
from shoal.tables.spec import TableSpec


def view_of(
    number: int = 1,
    servers: int = 1,
    workers: int | Iterable[int] = 2,
    tables: Iterable[TableSpec] = (),
    first_clock: int = 0,
    replicas: int = 1,
    **more: Any,
) -> View:
    """View (1, number): servers have the incarnations 1, 2, ..., workers 11, 12, ...

    workers:  how many, or their ranks
    """
    ranks = range(workers) if isinstance(workers, int) else workers
    members = tuple(Member(f"server-{r}", "server", r, 1 + r) for r in range(servers))
    tables = tuple(tables)
    return View(
        1,
        number,
        members,
        tuple(Member(f"worker-{r}", "worker", r, 11 + r, first_clock=first_clock) for r in ranks),
        tables,
        tuple(place(each.cut(servers), members, replicas, 0) for each in tables),
        **more,
    )


def died(view: View, rank: int) -> View:
    """The view after a server's death."""
    return replace(
        view,
        number=view.number + 1,
        servers=tuple(m for m in view.servers if m.rank != rank),
        placements=tuple(
            tuple(replace(a, chain=tuple(r for r in a.chain if r != rank)) for a in placements)
            for placements in view.placements
        ),
    )


def held_by(view: View, rank: int, table: int = 0) -> KeyRange:
    """The rows of which a server is the head."""
    held = [placement.rows for placement in view.placements[table] if placement.chain[0] == rank]
    return held[0] if held else KeyRange(0, 0)


def table(
    rule: Consistency | None = None,
    rows: int = 4,
    fragment_rows: int = 2,
    name: str = "w",
    **more: Any,
) -> TableSpec:
    """Rows of one int64, merged by their sum."""
    rule = rule or asp()
    return TableSpec(
        name, rows, (), "int64", consistency=rule, merge="sum", fragment_rows=fragment_rows, **more
    )


def ints(*numbers: int) -> memoryview:
    """A buffer of int64."""
    return memoryview(array("q", numbers))


def as_bytes(*numbers: int) -> memoryview:
    """The bytes of some int64."""
    return ints(*numbers).cast("B")
