"""Where rows live: arcs that tile a table, evenly, with replicas that do not die together."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.keys import tiles
from shoal.protocol.scheduler.rows.placement import crowded, place
from shoal.protocol.views import Member
from shoal.tables.spec import TableSpec

replicas = st.integers(1, 4)


def table(rows, fragment_rows=1):
    return TableSpec("w", rows, fragment_rows=fragment_rows)


def servers_on(*hosts):
    return [Member(f"s{rank}", "server", rank, 1 + rank, "", host) for rank, host in hosts]


def fragments_of(placements, spec, at):
    """How many fragments each server has at that place of their chains."""
    held = Counter()
    for placement in placements:
        held[placement.chain[at]] += -(-len(placement.rows) // spec.fragment_rows)
    return held


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 6), replicas, st.integers(0, 9))
def test_shards_tile_the_table_in_whole_fragments(rows, fragment_rows, count, replicas, turn):
    spec = table(rows, fragment_rows)
    placements = place(spec, servers_on(*((rank, "") for rank in range(count))), replicas, turn)
    assert tiles([placement.rows for placement in placements], rows)
    edges = {rows, *(part.start for part in spec.fragments())}
    assert all(placement.rows.stop in edges for placement in placements)
    for placement in placements:
        assert len(set(placement.chain)) == len(placement.chain) == min(replicas, count)


@given(st.integers(1, 10), replicas, st.integers(0, 9), st.integers(0, 63))
def test_servers_differ_by_at_most_one_fragment(count, replicas, turn, more):
    """At 64 fragments a server that is within 2 %, at every place of the chains."""
    spec = table(64 * count + min(more, count - 1))
    placements = place(spec, servers_on(*((rank, "") for rank in range(count))), replicas, turn)
    for at in range(min(replicas, count)):
        held = fragments_of(placements, spec, at)
        assert len(held) == count
        assert max(held.values()) - min(held.values()) <= 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), replicas)
def test_replicas_are_on_different_hosts_if_there_are_enough(sizes, replicas):
    hosts = [f"host-{number}" for number, size in enumerate(sizes) for _ in range(size)]
    servers = servers_on(*enumerate(hosts))
    placements = place(table(64), servers, replicas, 0)
    by_rank = dict(enumerate(hosts))
    for placement in placements:
        apart = len({by_rank[rank] for rank in placement.chain})
        assert apart == min(len(placement.chain), len(sizes))
    assert bool(crowded(placements, servers)) == (min(replicas, len(servers)) > len(sizes))


def test_neighbours_in_a_chain_are_on_different_hosts():
    servers = servers_on((0, "a"), (1, "a"), (2, "b"), (3, "b"))
    assert [placement.chain for placement in place(table(4), servers, 2, 0)] == [
        (0, 2),
        (2, 1),
        (1, 3),
        (3, 0),
    ]
    assert crowded(place(table(4), servers, 3, 0), servers) == ["a", "b"]


@pytest.mark.parametrize(("turn", "rank"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_tables_of_one_fragment_are_placed_on_servers_in_turn(turn, rank):
    [placement] = place(table(1), servers_on((0, ""), (1, ""), (2, "")), 1, turn)
    assert placement.chain == (rank,)


def test_without_servers_a_table_has_no_placements():
    assert place(table(4), [], 1, 0) == ()
