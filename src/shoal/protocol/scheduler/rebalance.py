"""Which servers are to have which rows next: chains are repaired, and rows go to who has fewer.

A server comes to rows as a *learner*: it is put at the end of their chain, and sent them. When it
has them it takes its place, and if the chain has more servers than it needs then, one of the others
goes: so repair, a server that joins and one that leaves are the same steps. Arcs are cut, learners
take their place and servers leave chains only when nothing is under way between servers, because
they have been drained: then all that have an arc have the same of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.scheduler.placement import Placements, divisible, movable, replicas_of
from shoal.protocol.views import Member, NodeId, Placement, View

UNEVEN = 0.05  # of the mean: what the servers' loads may differ by, or by one fragment
NOBODY = -1


class Moves(msgspec.Struct, frozen=True):
    """What may be done to chains in the next view, and what is wanted.

    replicas:  servers that are to have a copy of each row
    drained:   nothing is under way between servers
    leaving:   those that want to go
    synced:   (table, first row, rank) of learners that have everything
    """

    replicas: int = 1
    drained: bool = False
    leaving: Collection[NodeId] = ()
    synced: Collection[tuple[int, int, int]] = ()


def next_arcs(
    before: View, servers: Sequence[Member], moves: Moves, number: int
) -> tuple[Placements, ...]:
    """The arcs of a view's tables in the next one, of that number and with these servers."""
    plan = _Plan(before, servers, moves, number)
    if moves.drained:
        plan.drop_surplus()
    if moves.drained or moves.replicas > 1:
        plan.repair()
    if moves.drained:
        for table in range(len(before.placements)):
            plan.balance(table)
    return tuple(plan.placements(table) for table in range(len(before.placements)))


def unchanged(before: Sequence[Placements], after: Sequence[Placements]) -> bool:
    """Whether two plans differ in nothing but the numbers of views."""
    return [
        [(a.rows, a.chain, a.syncing_since > 0) for a in placements] for placements in before
    ] == [[(a.rows, a.chain, a.syncing_since > 0) for a in placements] for placements in after]


class _Draft(msgspec.Struct, eq=False):
    """An arc that is being made: who has all of it, and who learns it, since which view."""

    table: int
    rows: KeyRange
    in_sync: list[int]
    syncing: int
    since: int
    newest: int = NOBODY  # of those that have it

    @property
    def members(self) -> list[int]:
        return self.in_sync if self.syncing == NOBODY else [*self.in_sync, self.syncing]


class _Plan:
    """Drafts of all arcs, and who of the servers is to stay."""

    def __init__(self, before: View, servers: Sequence[Member], moves: Moves, number: int) -> None:
        self._tables = before.tables
        self._moves = moves
        self._number = number
        self._hosts = {member.rank: member.host for member in servers}
        self._stayed = {member.rank for member in servers if member in before.servers}
        self._leaving = {member.rank for member in servers if member.id in moves.leaving}
        self._staying = [rank for rank in sorted(self._hosts) if rank not in self._leaving]
        self._drafts = [
            self._draft(table, placement)
            for table, parts in enumerate(before.placements)
            for placement in parts
        ]
        self._busy = {each.table for each in self._drafts if each.syncing != NOBODY}

    def _draft(self, table: int, placement: Placement) -> _Draft:
        """What is left of an arc."""
        in_sync = [rank for rank in placement.in_sync if rank in self._stayed]
        draft = _Draft(table, placement.rows, in_sync, NOBODY, 0)
        if placement.syncing_since and placement.chain[-1] in self._stayed:
            syncing = placement.chain[-1]
            there = (table, placement.rows.start, syncing) in self._moves.synced
            if there and self._moves.drained:
                in_sync.append(syncing)
                draft.newest = syncing
            elif in_sync:
                draft.syncing = syncing
                draft.since = (
                    placement.syncing_since if in_sync[-1] == placement.tail else self._number
                )
        return draft

    def _of(self, table: int) -> list[_Draft]:
        return [each for each in self._drafts if each.table == table]

    def placements(self, table: int) -> Placements:
        drafts = sorted(self._of(table), key=lambda draft: draft.rows.start)
        return tuple(Placement(each.rows, tuple(each.members), each.since) for each in drafts)

    def _size(self, draft: _Draft) -> int:
        """In fragments."""
        return -(-len(draft.rows) // self._tables[draft.table].fragment_rows)

    def _loads(self, table: int | None = None) -> Counter[int]:
        """Fragments by server."""
        loads: Counter[int] = Counter(dict.fromkeys(self._hosts, 0))
        for draft in self._drafts:
            if table is None or draft.table == table:
                for rank in draft.members:
                    loads[rank] += self._size(draft)
        return loads

    def _wanted(self, draft: _Draft) -> int:
        """How many servers are to have it."""
        return min(replicas_of(self._tables[draft.table], self._moves.replicas), len(self._staying))

    # ------------------------------------------------------------------ steps

    def drop_surplus(self) -> None:
        """Of the servers that have an arc, those that it does not need go: leaving ones first."""
        for draft in self._drafts:
            while len(draft.in_sync) > max(self._wanted(draft), 1):
                loads = self._loads(draft.table)
                old = [
                    rank for rank in draft.in_sync if rank != draft.newest or rank in self._leaving
                ]
                draft.in_sync.remove(
                    max(old, key=lambda r: (r in self._leaving, self._beside(draft, r), loads[r]))
                )

    def repair(self) -> None:
        """Whatever has too few servers that stay gets one more."""
        for draft in self._drafts:
            there = [rank for rank in draft.in_sync if rank not in self._leaving]
            free = [rank for rank in self._staying if rank not in draft.in_sync]
            if (
                draft.syncing != NOBODY
                or not draft.in_sync
                or not movable(self._tables[draft.table])
            ):
                continue
            if len(there) < self._wanted(draft) and free:
                hosts = {self._hosts[rank] for rank in there}
                here, all_ = self._loads(draft.table), self._loads()
                draft.syncing = min(
                    free, key=lambda r: (self._hosts[r] in hosts, here[r], all_[r], r)
                )
                draft.since = self._number

    def balance(self, table: int) -> None:
        """Rows of a table go from the servers that have most to those that have fewest; and from
        hosts that have several of their replicas, which would die together, to others."""
        if table in self._busy or not divisible(self._tables[table]):
            return
        loads = Counter({rank: self._loads(table)[rank] for rank in self._staying})
        while (move := self._move(table, loads) or self._spread(table, loads)) is not None:
            draft, giver, taker = move
            draft.syncing, draft.since = taker, self._number
            loads[giver] -= self._size(draft)
            loads[taker] += self._size(draft)

    def _move(self, table: int, loads: Counter[int]) -> tuple[_Draft, int, int] | None:
        """An arc that is to go from one server to another; cut to size, if need be."""
        mean = sum(loads.values()) / max(len(loads), 1)
        for giver in sorted(loads, key=lambda rank: (-loads[rank], rank)):
            for taker in sorted(loads, key=lambda rank: (loads[rank], rank)):
                if loads[giver] - loads[taker] <= max(1, UNEVEN * mean):
                    break
                amount = max(1, int(min(loads[giver] - mean, mean - loads[taker])))
                options = [
                    d for d in self._drafts if d.table == table and self._may(d, giver, taker)
                ]
                if not options:
                    continue
                fitting = [each for each in options if self._size(each) <= amount]
                if fitting:
                    return max(fitting, key=self._size), giver, taker
                return self._cut(min(options, key=self._size), amount), giver, taker
        return None

    def _spread(self, table: int, loads: Counter[int]) -> tuple[_Draft, int, int] | None:
        """An arc that is to go to another host, where that costs little of the balance."""
        mean = sum(loads.values()) / max(len(loads), 1)
        amount, most = max(1, int(UNEVEN * mean)), max(2, 2 * UNEVEN * mean)
        for draft in self._of(table):
            hosts = {self._hosts[rank] for rank in draft.in_sync}
            givers = [rank for rank in draft.in_sync if rank in loads and self._beside(draft, rank)]
            takers = [rank for rank in loads if self._hosts[rank] not in hosts]
            if draft.syncing != NOBODY or not givers or not takers:
                continue
            giver = max(givers, key=lambda rank: (loads[rank], -rank))
            taker = min(takers, key=lambda rank: (loads[rank], rank))
            size = min(self._size(draft), amount)
            after = Counter(loads)
            after[taker] += size
            after[giver] -= size
            if max(after.values()) - min(after.values()) <= most:
                whole = size == self._size(draft)
                return draft if whole else self._cut(draft, size), giver, taker
        return None

    def _beside(self, draft: _Draft, rank: int) -> bool:
        """Whether another server of its host has the arc as well."""
        return [self._hosts[each] for each in draft.members].count(self._hosts[rank]) > 1

    def _may(self, draft: _Draft, giver: int, taker: int) -> bool:
        """Whether it may go from one to the other, and its replicas are on no fewer hosts then."""
        if draft.syncing != NOBODY or giver not in draft.in_sync or taker in draft.in_sync:
            return False
        others = {self._hosts[rank] for rank in draft.in_sync if rank != giver}
        return self._hosts[taker] not in others or self._hosts[giver] in others

    def _cut(self, draft: _Draft, fragments: int) -> _Draft:
        """So many fragments of its end, as an arc of their own."""
        size, rows = self._tables[draft.table].fragment_rows, draft.rows
        edge = (-(-rows.stop // size) - fragments) * size
        end = _Draft(draft.table, KeyRange(edge, rows.stop), list(draft.in_sync), NOBODY, 0)
        draft.rows = KeyRange(rows.start, edge)
        self._drafts.append(end)
        return end
