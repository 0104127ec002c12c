"""Holding: which arcs are on this server, each with its shard and what is known of its copy."""

from __future__ import annotations

from typing import cast

import msgspec

from shoal.errors import ShoalError
from shoal.protocol.server.request_log import NOT_BEGUN, Copy
from shoal.protocol.server.shards import MovableShard, OpenShard, Shard
from shoal.protocol.views import Arc, View
from shoal.tables.spec import Access, TableSpec


class Moved(msgspec.Struct):
    """What a view has changed here.

    chains:  whether others have some of the rows than before
    begin:   where this server has come to take pushes: the clock that their rows have reached, of
             each group of workers
    cut:     copies that are in pieces now, with those of them that are here
    unopened:  why a table cannot be opened, by its group
    """

    chains: bool = False
    begin: dict[str, int] = {}
    cut: dict[int, tuple[Copy, list[Copy]]] = {}
    unopened: dict[str, str] = {}


class Holding:
    """A shard and a copy for each arc that is here, by the same numbers.

    unopened:  numbers of tables that could not be opened, of groups that may fail alone
    """

    def __init__(self, open_shard: OpenShard) -> None:
        self.shards: dict[int, Shard] = {}
        self.copies: dict[int, Copy] = {}
        self.unopened: set[int] = set()
        self._open_shard = open_shard
        self._next = 0

    def shares(self, view: View, rank: int) -> bool:
        """Whether others have some of what is here in a view, or take over some."""
        mine = {(number, arc) for number, arcs in enumerate(view.arcs) for arc in arcs}
        chained = any(rank in arc.chain and len(arc.chain) > 1 for _, arc in mine)
        return chained or any((c.table, c.arc) not in mine for c in self.copies.values())

    def adopt(self, view: View, rank: int) -> Moved:
        """Open, cut and drop shards as the view says.

        Raises:
            ShoalError: a table of the first group cannot be opened
        """
        moved = Moved()
        mine = {
            (table, arc.rows.start): arc
            for table, arcs in enumerate(view.arcs)
            for arc in arcs
            if rank in arc.chain
        }
        for copy in list(self.copies.values()):
            arc = mine.get((copy.table, copy.rows.start))
            if arc is None or arc.rows != copy.rows:
                self._cut(copy, mine, rank, moved)
            elif _learns_anew(copy, arc, rank):
                self._drop(copy)
                moved.cut[copy.number] = copy, []
                moved.chains = True
            else:
                del mine[copy.table, copy.rows.start]
                self._keep(copy, arc, rank, moved)
        for (table, _), arc in mine.items():
            shard = self._opened(table, view.tables[table], arc, moved)
            fresh = Copy(self._next, table, arc, view.tables[table].group)
            if fresh.learned_by(rank):
                cast(MovableShard, shard).learning = True
                fresh.version = NOT_BEGUN
                fresh.done = 0
            self._add(fresh, shard)
        return moved

    def _opened(self, table: int, spec: TableSpec, arc: Arc, moved: Moved) -> Shard:
        try:
            return self._open_shard(spec, arc.rows)
        except ShoalError as error:
            if not spec.group:
                raise
            moved.unopened[spec.group] = error.message
            self.unopened.add(table)
        access = Access("lists" if spec.kind == "handled" else "sum")  # rows that nobody uses
        return self._open_shard(msgspec.structs.replace(spec, access=access), arc.rows)

    def _keep(self, copy: Copy, arc: Arc, rank: int, moved: Moved) -> None:
        before, copy.arc, copy.ended = copy.arc, arc, False
        moved.chains = moved.chains or arc.full != before.full
        if arc.head == rank != before.head:
            known = moved.begin.get(copy.group, copy.reached)
            moved.begin[copy.group] = min(known, copy.reached)
        if arc.tail == rank or arc.chain[-1] == rank:
            copy.done = max(copy.version, 0)
        copy.learnt = copy.learnt if arc.learning == before.learning else 0

    def _cut(self, copy: Copy, mine: dict[tuple[int, int], Arc], rank: int, moved: Moved) -> None:
        """Put pieces in its place: those that are still here."""
        pieces = [
            arc
            for (table, _), arc in mine.items()
            if table == copy.table and copy.rows.covers(arc.rows)
            if not _learns_anew(copy, arc, rank)
        ]
        whole = cast(MovableShard, self.shards[copy.number])
        shards = whole.split([arc.rows for arc in pieces]) if pieces else ()
        self._drop(copy)
        moved.chains = True
        parts = []
        for arc, shard in zip(pieces, shards, strict=True):
            del mine[copy.table, arc.rows.start]
            part = msgspec.structs.replace(copy, number=self._next)
            self._keep(part, arc, rank, moved)
            self._add(part, shard)
            parts.append(part)
        moved.cut[copy.number] = copy, parts

    def _add(self, copy: Copy, shard: Shard) -> None:
        self.copies[copy.number], self.shards[copy.number] = copy, shard
        self._next += 1

    def _drop(self, copy: Copy) -> None:
        del self.copies[copy.number], self.shards[copy.number]


def _learns_anew(copy: Copy, arc: Arc, rank: int) -> bool:
    """Whether what is here of it is of no use: somebody begins to send it."""
    learns = arc.learning > 0 and arc.chain[-1] == rank
    return learns and not (copy.learned_by(rank) and copy.arc.learning == arc.learning)
