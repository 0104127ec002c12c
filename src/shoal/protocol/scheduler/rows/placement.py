"""Placement: cuts tables into shards, and gives each shard a chain of servers.

A table's key space is a ring: its rows in order, or the hash slots of a sparse table. The ring is
cut into *shards* of whole fragments, as into the ranges of virtual nodes in consistent hashing. A
shard has a chain of servers: the first takes pushes, the last answers pulls. The edges of shards
are chosen, where consistent hashing draws them at random, so that every server has the same number
of fragments in few ranges (decision 0013).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from shoal.keys import KeyRange, split_evenly
from shoal.protocol.views import Member, Placement
from shoal.tables.spec import TableSpec

Placements = tuple[Placement, ...]


def replicas_of(spec: TableSpec, replicas: int) -> int:
    """Return the number of replicas of a table's shards."""
    return replicas if movable(spec) else 1


def movable(spec: TableSpec) -> bool:
    """Return whether a table's shards can be replicated and migrated."""
    return spec.kind != "custom" or spec.saves


def divisible(spec: TableSpec) -> bool:
    """Return whether a table's shards can be split.

    Shards of a custom table cannot: a call that was cut for the previous view would name two.
    """
    return spec.kind != "custom"


def place(spec: TableSpec, servers: Sequence[Member], replicas: int, turn: int) -> Placements:
    """Return the shards of a new table: each server heads one and follows in its neighbours'.

    Servers' numbers of fragments differ by at most one. Replicas of a fragment are on different
    hosts, unless there are fewer hosts than replicas.

    Args:
        spec: the table.
        servers: the members to place it on.
        replicas: the number of servers per shard.
        turn: the index of the first server, so that tables of one fragment are spread.
    """
    ring = _around(servers)
    first = turn % len(ring) if ring else 0
    fragments = spec.fragments()
    placements = []
    for at, part in enumerate(split_evenly(len(fragments), len(ring)) if ring else ()):
        if len(part):
            rows = KeyRange(fragments[part.start].start, fragments[part.stop - 1].stop)
            chain = _chain(ring, (first + at) % len(ring), replicas_of(spec, replicas))
            placements.append(Placement(rows, chain))
    return tuple(placements)


def lost(
    tables: Sequence[TableSpec], placements: Sequence[Placements], living: Collection[int]
) -> list[str]:
    """Return the rows without a living in-sync replica, as text."""
    return [
        f"{spec.name}{placement.rows}"
        for spec, parts in zip(tables, placements, strict=False)
        for placement in parts
        if not any(rank in living for rank in placement.in_sync)
    ]


def crowded(placements: Sequence[Placement], servers: Sequence[Member]) -> list[str]:
    """Return the known hosts with several replicas of a fragment, which fail together."""
    hosts = {member.rank: member.host for member in servers}
    found: dict[str, None] = {}
    for placement in placements:
        there = [hosts.get(rank, "") for rank in placement.chain]
        found.update((host, None) for host in there if host and there.count(host) > 1)
    return sorted(found)


def _around(servers: Sequence[Member]) -> list[Member]:
    """Return the servers around the ring, in turn from each host, so that neighbours differ."""
    by_host: dict[str, list[Member]] = {}
    for member in sorted(servers, key=lambda m: m.rank):
        by_host.setdefault(member.host, []).append(member)
    largest_first = sorted(by_host.values(), key=len, reverse=True)
    return [each for row in zip_longest(*largest_first) for each in row if each is not None]


def _chain(ring: Sequence[Member], at: int, replicas: int) -> tuple[int, ...]:
    """Return the server at a place and following ones, on distinct hosts if possible."""
    rest = [ring[(at + step) % len(ring)] for step in range(1, len(ring))]
    chain = [ring[at]]
    while len(chain) < min(replicas, len(ring)):
        hosts = {member.host for member in chain}
        following = next((m for m in rest if m.host not in hosts), rest[0])
        rest.remove(following)
        chain.append(following)
    return tuple(member.rank for member in chain)
