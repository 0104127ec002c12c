"""Rebalancing: repairs chains, and moves shards to servers that have fewer rows.

A server gets a shard as its *syncing replica*: it is appended to the chain and receives the rows.
When it has them it becomes a replica, and if the chain has more servers than it needs one of the
others leaves. So repair, a server that joins and a server that leaves are the same steps. Shards
are split, syncing replicas become replicas and servers leave chains only after the servers were
drained: then all replicas of a shard are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.scheduler.rows.placement import Placements, divisible, movable, replicas_of
from shoal.protocol.views import Member, NodeId, Placement, View
from shoal.tables.spec import TableSpec

UNEVEN = 0.05  # allowed difference of servers' loads, as a share of the mean; or one fragment
NONE = -1


Opened = frozenset[tuple[str, KeyRange, int]]  # (table, rows, rank)
Barred = frozenset[tuple[str, int]]  # (table, rank)


class Moves(msgspec.Struct, frozen=True):
    """The wanted changes of chains in the next view, and which are possible.

    Attributes:
        replicas: the number of replicas of each shard.
        drained: whether no operation is under way between servers.
        leaving: the servers that leave.
        synced: the (table, first row, rank) of syncing replicas that are complete.
        opened: the shards that servers have opened; None for a plan of the shards to open.
        barred: the servers that cannot open shards of a table.
    """

    replicas: int = 1
    drained: bool = False
    leaving: Collection[NodeId] = ()
    synced: Collection[tuple[int, int, int]] = ()
    opened: Opened | None = None
    barred: Barred = frozenset()

    def takes(self, table: TableSpec, rows: KeyRange, rank: int) -> bool:
        """Return whether a server may get these rows."""
        if (table.name, rank) in self.barred:
            return False
        return self.opened is None or (table.name, rows, rank) in self.opened


def next_placements(
    before: View, servers: Sequence[Member], moves: Moves, number: int
) -> tuple[Placements, ...]:
    """Return the placements of a view's tables in view `number`, on these servers."""
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
    """Return whether two placements are equal apart from numbers of views."""

    def shards(tables: Sequence[Placements]) -> list[list[tuple[object, ...]]]:
        return [[(a.rows, a.chain, a.syncing_since > 0) for a in parts] for parts in tables]

    return shards(before) == shards(after)


class _Draft(msgspec.Struct, eq=False):
    """A placement in preparation.

    Attributes:
        in_sync: the ranks of the replicas.
        syncing: the rank of the syncing replica.
        since: the view in which its transfer began.
        newest: the rank of the replica that was the syncing replica until now.
    """

    table: int
    rows: KeyRange
    in_sync: list[int]
    syncing: int
    since: int
    newest: int = NONE

    @property
    def members(self) -> list[int]:
        return self.in_sync if self.syncing == NONE else [*self.in_sync, self.syncing]


class _Plan:
    """Drafts of all placements, and the servers that stay."""

    def __init__(self, before: View, servers: Sequence[Member], moves: Moves, number: int) -> None:
        self._tables = before.tables
        self._moves = moves
        self._number = number
        self._hosts = {member.rank: member.host for member in servers}
        self._stayed = {member.rank for member in servers if member in before.servers}
        self._leaving = {member.rank for member in servers if member.id in moves.leaving}
        self._staying = [rank for rank in sorted(self._hosts) if rank not in self._leaving]
        self._drafts = [  # by table
            [self._draft(table, placement) for placement in parts]
            for table, parts in enumerate(before.placements)
        ]
        self._busy = {each.table for each in self._all() if each.syncing != NONE}

    def _draft(self, table: int, placement: Placement) -> _Draft:
        """Return the draft of a placement, without the servers that are gone."""
        in_sync = [rank for rank in placement.in_sync if rank in self._stayed]
        draft = _Draft(table, placement.rows, in_sync, NONE, 0)
        if placement.syncing_since and placement.chain[-1] in self._stayed:
            syncing = placement.chain[-1]
            there = (table, placement.rows.start, syncing) in self._moves.synced
            if there and self._moves.drained:
                in_sync.append(syncing)
                draft.newest = syncing
            elif in_sync:
                same_giver = in_sync[-1] == placement.tail
                if same_giver or self._takes(draft, syncing):
                    draft.syncing = syncing
                    draft.since = placement.syncing_since if same_giver else self._number
        return draft

    def _all(self) -> Iterator[_Draft]:
        return chain.from_iterable(self._drafts)

    def placements(self, table: int) -> Placements:
        drafts = sorted(self._drafts[table], key=lambda draft: draft.rows.start)
        return tuple(Placement(each.rows, tuple(each.members), each.since) for each in drafts)

    def _size(self, draft: _Draft) -> int:
        """Return the number of fragments of a shard."""
        return -(-len(draft.rows) // self._tables[draft.table].fragment_rows)

    def _loads(self, table: int | None = None) -> Counter[int]:
        """Return the number of fragments by server."""
        loads: Counter[int] = Counter(dict.fromkeys(self._hosts, 0))
        for draft in self._all() if table is None else self._drafts[table]:
            for rank in draft.members:
                loads[rank] += self._size(draft)
        return loads

    def _wanted(self, draft: _Draft) -> int:
        """Return the number of replicas that a shard should have."""
        return min(replicas_of(self._tables[draft.table], self._moves.replicas), len(self._staying))

    def _takes(self, draft: _Draft, rank: int) -> bool:
        """Return whether a server may become the syncing replica of a shard."""
        return self._moves.takes(self._tables[draft.table], draft.rows, rank)

    def _barred(self, table: int, rank: int) -> bool:
        return (self._tables[table].name, rank) in self._moves.barred

    # ------------------------------------------------------------------ steps

    def drop_surplus(self) -> None:
        """Remove replicas that a shard does not need, on leaving servers first."""
        for draft in self._all():
            while len(draft.in_sync) > max(self._wanted(draft), 1):
                loads = self._loads(draft.table)
                old = [r for r in draft.in_sync if r != draft.newest or r in self._leaving]
                leaves = max(
                    old, key=lambda r: (r in self._leaving, self._beside(draft, r), loads[r])
                )
                draft.in_sync.remove(leaves)

    def repair(self) -> None:
        """Add a syncing replica to shards with too few replicas on staying servers."""
        for draft in self._all():
            there = [rank for rank in draft.in_sync if rank not in self._leaving]
            others = [rank for rank in self._staying if rank not in draft.in_sync]
            free = [rank for rank in others if self._takes(draft, rank)]
            if draft.syncing != NONE or not draft.in_sync or not movable(self._tables[draft.table]):
                continue
            if len(there) < self._wanted(draft) and free:
                hosts = {self._hosts[rank] for rank in there}
                here, all_ = self._loads(draft.table), self._loads()
                draft.syncing = min(
                    free, key=lambda r: (self._hosts[r] in hosts, here[r], all_[r], r)
                )
                draft.since = self._number

    def balance(self, table: int) -> None:
        """Move rows from the servers with most to those with fewest, and off crowded hosts.

        A host with several replicas of a shard is crowded: these would fail together.
        """
        if len(self._staying) < 2 or table in self._busy or not divisible(self._tables[table]):
            return
        held = self._loads(table)
        loads = Counter({rank: held[rank] for rank in self._staying})
        while (move := self._move(table, loads) or self._spread(table, loads)) is not None:
            draft, giver, taker = move
            if not self._takes(draft, taker):
                return
            draft.syncing, draft.since = taker, self._number
            loads[giver] -= self._size(draft)
            loads[taker] += self._size(draft)

    def _move(self, table: int, loads: Counter[int]) -> tuple[_Draft, int, int] | None:
        """Return a shard to move, its giver and its taker; split it to size if necessary."""
        mean = sum(loads.values()) / max(len(loads), 1)
        shards = [each for each in self._drafts[table] if each.syncing == NONE]
        for giver in sorted(loads, key=lambda rank: (-loads[rank], rank)):
            held = [each for each in shards if giver in each.in_sync]
            for taker in sorted(loads, key=lambda rank: (loads[rank], rank)):
                if loads[giver] - loads[taker] <= max(1, UNEVEN * mean):
                    break
                if self._barred(table, taker):
                    continue
                amount = max(1, int(min(loads[giver] - mean, mean - loads[taker])))
                options = [each for each in held if self._may(each, giver, taker)]
                if not options:
                    continue
                fitting = [each for each in options if self._size(each) <= amount]
                if fitting:
                    return max(fitting, key=self._size), giver, taker
                return self._cut(min(options, key=self._size), amount), giver, taker
        return None

    def _spread(self, table: int, loads: Counter[int]) -> tuple[_Draft, int, int] | None:
        """Return a shard to move to another host, giver and taker, if that keeps the balance."""
        mean = sum(loads.values()) / max(len(loads), 1)
        amount, most = max(1, int(UNEVEN * mean)), max(2, 2 * UNEVEN * mean)
        for draft in self._drafts[table]:
            hosts = {self._hosts[rank] for rank in draft.in_sync}
            givers = [rank for rank in draft.in_sync if rank in loads and self._beside(draft, rank)]
            takers = [rank for rank in loads if self._hosts[rank] not in hosts]
            takers = [rank for rank in takers if not self._barred(table, rank)]
            if draft.syncing != NONE or not givers or not takers:
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
        """Return whether another server on the same host as this one has the shard as well."""
        return [self._hosts[each] for each in draft.members].count(self._hosts[rank]) > 1

    def _may(self, draft: _Draft, giver: int, taker: int) -> bool:
        """Return whether a shard may move from giver to taker without replicas on fewer hosts."""
        if taker in draft.in_sync:
            return False
        others = {self._hosts[rank] for rank in draft.in_sync if rank != giver}
        return self._hosts[taker] not in others or self._hosts[giver] in others

    def _cut(self, draft: _Draft, fragments: int) -> _Draft:
        """Split off the last `fragments` fragments, and return them as a shard of their own."""
        size, rows = self._tables[draft.table].fragment_rows, draft.rows
        edge = (-(-rows.stop // size) - fragments) * size
        end = _Draft(draft.table, KeyRange(edge, rows.stop), list(draft.in_sync), NONE, 0)
        draft.rows = KeyRange(rows.start, edge)
        self._drafts[draft.table].append(end)
        return end


class Migration:
    """The state of migrating shards that is not in the view.

    Attributes:
        left: the servers that have left on request; it survives a restart of the scheduler.
    """

    def __init__(self, left: Iterable[NodeId]) -> None:
        self.left: set[NodeId] = set(left)
        self._leaving: set[NodeId] = set()
        self._synced: dict[tuple[int, int, int], int] = {}  # (table, first row, rank) -> since

    def moves(self, replicas: int, drained: bool, opened: Opened | None, barred: Barred) -> Moves:
        return Moves(replicas, drained, self._leaving, self._synced, opened, barred)

    def has_synced(
        self, view: View, member: Member, placements: Sequence[tuple[int, int, int]]
    ) -> None:
        """Note that a syncing replica has all rows of these shards."""
        self._synced.update({(table, row, member.rank): since for table, row, since in placements})
        self._forget_others(view)

    def _forget_others(self, view: View) -> None:
        """Forget all syncing replicas but those of this view, in their current transfers."""
        syncing = {
            (table, placement.rows.start, placement.chain[-1]): placement.syncing_since
            for table, placements in enumerate(view.placements)
            for placement in placements
        }
        self._synced = {k: v for k, v in self._synced.items() if syncing.get(k) == v > 0}

    def wants_to_go(self, view: View | None, member: Member, servers: Collection[NodeId]) -> str:
        """Let a server leave, or return why it cannot.

        The answer may change: a server that was to leave stays if the others have died meanwhile.
        """
        against = self._against(view, member, servers)
        if against:
            self._leaving.discard(member.id)
        else:
            self._leaving.add(member.id)
        return against

    def _against(self, view: View | None, member: Member, servers: Collection[NodeId]) -> str:
        if view is None or all(node == member.id or node in self._leaving for node in servers):
            return "it is the last server"
        for spec, placements in zip(view.tables, view.placements, strict=True):
            here = any(member.rank in placement.chain for placement in placements)
            if here and not movable(spec):
                return f"table {spec.name!r} is custom, and its handler cannot save and load"
        return ""

    def gone(self, view: View) -> list[NodeId]:
        """Return the leaving servers that are not in a view."""
        return [node for node in sorted(self._leaving) if view.member(node) is None]

    def adopt(self, view: View) -> list[NodeId]:
        """Adopt a new view; return the servers that have left with it."""
        self._forget_others(view)
        gone = self.gone(view)
        self._leaving.difference_update(gone)
        self.left.update(gone)
        return gone
