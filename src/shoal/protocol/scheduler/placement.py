"""Where the rows of a table live: arcs of its ring, each with a chain of servers.

A table's keys are a ring: rows in their order, or the hash slots that a sparse table's keys are
scattered over. The ring is cut into *arcs* of whole fragments, and an arc is what a virtual node of
consistent hashing holds: it has a chain of servers of its own, of which the first takes pushes and
the last answers pulls. The ends of arcs are chosen, where others hash them: so every server has the
same number of fragments, in few ranges (decision 0013).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from shoal.keys import KeyRange, split_evenly
from shoal.protocol.views import Member, Placement
from shoal.tables.spec import TableSpec

Placements = tuple[Placement, ...]


def replicas_of(spec: TableSpec, replicas: int) -> int:
    """How many servers are to have a table's rows."""
    return replicas if movable(spec) else 1


def movable(spec: TableSpec) -> bool:
    """Whether rows can be on several servers, or go to others."""
    return spec.kind != "custom" or spec.saves


def divisible(spec: TableSpec) -> bool:
    """Whether its arcs can be cut: a call names one, and whoever cut it for the view before would
    name two."""
    return spec.kind != "custom"


def place(spec: TableSpec, servers: Sequence[Member], replicas: int, turn: int) -> Placements:
    """A new table's arcs: each server is the head of one, and follows in those of its neighbours.

    No server has more than one fragment more than another. Replicas of a fragment are on different
    hosts, unless there are fewer hosts than replicas.

    turn: which server comes first: tables of one fragment are not to be all on the same
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
    """The rows of which no server lives that has all of them, in words."""
    return [
        f"{spec.name}{placement.rows}"
        for spec, parts in zip(tables, placements, strict=False)
        for placement in parts
        if not any(rank in living for rank in placement.in_sync)
    ]


def crowded(placements: Sequence[Placement], servers: Sequence[Member]) -> list[str]:
    """The hosts, where they are known, that have several replicas of a fragment: these die
    together."""
    hosts = {member.rank: member.host for member in servers}
    found: dict[str, None] = {}
    for placement in placements:
        there = [hosts.get(rank, "") for rank in placement.chain]
        found.update((host, None) for host in there if host and there.count(host) > 1)
    return sorted(found)


def _around(servers: Sequence[Member]) -> list[Member]:
    """The servers around the ring: by turns from each host, so that neighbours are on others."""
    by_host: dict[str, list[Member]] = {}
    for member in sorted(servers, key=lambda m: m.rank):
        by_host.setdefault(member.host, []).append(member)
    largest_first = sorted(by_host.values(), key=len, reverse=True)
    return [each for row in zip_longest(*largest_first) for each in row if each is not None]


def _chain(ring: Sequence[Member], at: int, replicas: int) -> tuple[int, ...]:
    """The server at that place and those after it: on hosts that are not in the chain, if any."""
    rest = [ring[(at + step) % len(ring)] for step in range(1, len(ring))]
    chain = [ring[at]]
    while len(chain) < min(replicas, len(ring)):
        hosts = {member.host for member in chain}
        following = next((m for m in rest if m.host not in hosts), rest[0])
        rest.remove(following)
        chain.append(following)
    return tuple(member.rank for member in chain)
