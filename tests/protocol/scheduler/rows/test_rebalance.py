"""Chains that are repaired, and rows that go to who has fewer: steps that come to an end."""

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from shoal.keys import KeyRange, tiles
from shoal.protocol.scheduler.rows.placement import crowded, place
from shoal.protocol.scheduler.rows.rebalance import Migration, Moves, next_placements, unchanged
from shoal.protocol.views import Member, Placement, View
from shoal.tables.spec import Access, TableSpec


def member(rank, incarnation=None, host=""):
    number = rank if incarnation is None else incarnation
    return Member(f"s{number}", "server", rank, number, "", host)


def learners_of(placements):
    return {
        (table, placement.rows.start, placement.chain[-1])
        for table, parts in enumerate(placements)
        for placement in parts
        if placement.syncing_since
    }


class Cluster:
    """Servers and tables, view by view."""

    def __init__(self, servers, tables, replicas=1):
        self.servers = list(servers)
        placements = tuple(
            place(spec, self.servers, replicas, at) for at, spec in enumerate(tables)
        )
        self.view = View(1, 1, tuple(self.servers), (), tuple(tables), placements)
        self.replicas = replicas
        self.leaving = set()

    def step(self, drained=True, synced=None):
        """The next view; returns whether it is another."""
        synced = learners_of(self.view.placements) if synced is None else synced
        moves = Moves(self.replicas, drained, self.leaving, synced)
        before, number = self.view.placements, self.view.number + 1
        placements = next_placements(self.view, self.servers, moves, number)
        for spec, parts in zip(self.view.tables, placements, strict=True):
            assert tiles([placement.rows for placement in parts], spec.keys.stop)
        self.view = replace(
            self.view, number=number, servers=tuple(self.servers), placements=placements
        )
        return not unchanged(before, placements)

    def settle(self):
        for _ in range(50):
            if not self.step():
                return
        raise AssertionError(f"no end: {self.view.placements}")

    def loads(self, table=0):
        spec = self.view.tables[table]
        found = Counter(dict.fromkeys([each.rank for each in self.servers], 0))
        for placement in self.view.placements[table]:
            for rank in placement.chain:
                found[rank] += -(-len(placement.rows) // spec.fragment_rows)
        return found


def table(fragments=60, **more):
    return TableSpec("w", fragments, fragment_rows=1, **more)


def test_a_chain_that_lost_a_server_gets_a_syncing_replica_at_its_end():
    cluster = Cluster(map(member, range(3)), [table()], replicas=2)
    cluster.servers.pop(1)
    cluster.step(drained=False)
    chains = {
        placement.in_sync: placement.chain
        for placement in cluster.view.placements[0]
        if placement.syncing_since
    }
    assert chains == {(0,): (0, 2), (2,): (2, 0)}
    cluster.settle()
    assert all(
        len(placement.in_sync) == 2 and not placement.syncing_since
        for placement in cluster.view.placements[0]
    )


def test_a_syncing_replica_becomes_the_tail_only_when_servers_are_drained():
    cluster = Cluster(map(member, range(3)), [table(1)], replicas=2)
    cluster.servers.pop(0)
    cluster.step(drained=False)
    [placement] = cluster.view.placements[0]
    assert placement == Placement(KeyRange(0, 1), (1, 2), syncing_since=2)
    assert not cluster.step(drained=False)
    assert cluster.step(drained=True)
    assert cluster.view.placements[0] == (Placement(KeyRange(0, 1), (1, 2)),)


def test_a_syncing_replica_starts_again_when_its_sender_dies():
    cluster = Cluster(map(member, range(4)), [table(1)], replicas=3)
    cluster.servers.pop(0)
    cluster.step(drained=False)
    assert cluster.view.placements[0][0] == Placement(KeyRange(0, 1), (1, 2, 3), syncing_since=2)
    cluster.servers.pop(1)  # who sent
    cluster.step(drained=False, synced=())
    assert cluster.view.placements[0][0] == Placement(KeyRange(0, 1), (1, 3), syncing_since=3)


def test_a_server_restarted_under_its_rank_syncs_from_nothing():
    cluster = Cluster(map(member, range(2)), [table(2)], replicas=2)
    cluster.servers[1] = member(1, incarnation=9)
    cluster.step(drained=False)
    assert [
        (placement.in_sync, placement.syncing_since > 0) for placement in cluster.view.placements[0]
    ] == [((0,), True)] * 2


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("fragments", [64, 128, 200])
def test_a_third_server_gets_a_third_of_the_rows(replicas, fragments):
    cluster = Cluster(map(member, range(2)), [table(fragments)], replicas)
    cluster.servers.append(member(2))
    cluster.settle()
    loads, even = cluster.loads(), fragments * replicas / 3
    assert all(abs(load - even) <= 0.1 * even for load in loads.values()), loads
    assert len(cluster.view.placements[0]) <= 6


def test_a_leaving_server_is_left_without_rows():
    cluster = Cluster(map(member, range(3)), [table()], replicas=2)
    cluster.leaving = {"s1"}
    cluster.settle()
    assert cluster.loads()[1] == 0
    assert all(len(placement.in_sync) == 2 for placement in cluster.view.placements[0])


def test_a_leaving_server_stays_when_it_is_the_last():
    """Two are asked to go while there is a third; it dies. One of them has to stay, and counts."""
    cluster = Cluster(map(member, range(3)), [table()], replicas=2)
    migration = Migration(())
    ids = [each.id for each in cluster.servers]
    assert migration.wants_to_go(cluster.view, cluster.servers[0], ids) == ""
    assert migration.wants_to_go(cluster.view, cluster.servers[1], ids) == ""
    left = ids[:2]
    assert migration.wants_to_go(cluster.view, cluster.servers[1], left) == "it is the last server"
    assert migration.wants_to_go(cluster.view, cluster.servers[0], left) == ""
    assert migration.moves(2, True, None, frozenset()).leaving == {"s0"}


def test_rows_that_a_server_received_in_an_earlier_transfer_do_not_count():
    """It has begun anew meanwhile, and with nothing."""
    cluster = Cluster(map(member, range(2)), [table()])
    cluster.servers.append(member(2))
    assert cluster.step(synced=set())
    [(number, row, rank), *_] = learners_of(cluster.view.placements)
    since = next(
        placement.syncing_since
        for placement in cluster.view.placements[number]
        if placement.rows.start == row
    )
    migration = Migration(())

    def synced():
        return migration.moves(1, True, None, frozenset()).synced

    migration.has_synced(cluster.view, cluster.servers[rank], [(number, row, since)])
    migration.adopt(cluster.view)
    assert synced() == {(number, row, rank): since}
    anew = tuple(
        tuple(
            replace(each, syncing_since=since + 1) if each.syncing_since else each
            for each in placements
        )
        for placements in cluster.view.placements
    )
    migration.adopt(replace(cluster.view, placements=anew))
    assert synced() == {}


def test_rows_of_a_custom_table_that_cannot_save_stay():
    spec = TableSpec("s", 0, kind="custom", access=Access("lists")).cut(2)
    cluster = Cluster(map(member, range(2)), [spec])
    before = cluster.view.placements
    cluster.servers.append(member(2))
    cluster.settle()
    assert cluster.view.placements == before


def test_a_custom_tables_shards_are_moved_but_never_split():
    """A call names an arc: where that was cut, it would be for two."""
    spec = TableSpec("s", 0, kind="custom", access=Access("lists"), saves=True).cut(2)
    cluster = Cluster(map(member, range(2)), [spec], replicas=2)
    ranges = [placement.rows for placement in cluster.view.placements[0]]
    cluster.servers.append(member(2))
    cluster.settle()
    assert [placement.chain for placement in cluster.view.placements[0]] == [(0, 1), (1, 0)]
    cluster.servers.pop(0)
    cluster.settle()
    assert [set(placement.chain) for placement in cluster.view.placements[0]] == [{1, 2}, {1, 2}]
    assert [placement.rows for placement in cluster.view.placements[0]] == ranges


def test_a_lost_replica_is_replaced_on_another_host():
    hosts = ["a", "a", "b", "b"]
    servers = [member(rank, host=host) for rank, host in enumerate(hosts)]
    cluster = Cluster(servers, [table(8)], replicas=2)
    cluster.servers.pop(2)
    cluster.settle()
    for placement in cluster.view.placements[0]:
        assert {hosts[rank] for rank in placement.chain} == {"a", "b"}


@pytest.mark.parametrize(
    ("before", "come", "replicas"),
    [("aa", "bb", 2), ("aa", "bc", 2), ("aaa", "bbb", 2), ("aaa", "bbbccc", 3), ("aab", "b", 2)],
)
def test_rows_spread_over_hosts_that_join(before, come, replicas):
    cluster = Cluster(
        [member(rank, host=host) for rank, host in enumerate(before)], [table()], replicas
    )
    for number, host in enumerate(come, len(before)):
        cluster.servers.append(member(number, host=host))
        cluster.settle()
        loads = cluster.loads().values()
        assert max(loads) - min(loads) <= max(2, 0.1 * sum(loads) / len(loads))
    assert crowded(cluster.view.placements[0], cluster.servers) == []


def test_the_replica_removed_from_a_chain_shares_its_host_with_another():
    """By loads alone it was the one that was alone on its host."""
    servers = [member(0, host="a"), member(1, host="b"), member(2, host="b")]
    cluster = Cluster(servers, [table(6)], replicas=2)
    placement = Placement(KeyRange(0, 6), (0, 1, 2))
    cluster.view = replace(cluster.view, placements=((placement,),))
    cluster.step()
    assert all(0 in placement.in_sync for placement in cluster.view.placements[0])


def happens(cluster, random, number):
    """A server dies (not the last that has some rows), comes or wants to go."""
    what = random.choice(["die", "join", "join", "leave"])
    if what == "die" and len(cluster.servers) > 1:
        victim = random.choice(cluster.servers)
        full = [placement.in_sync for parts in cluster.view.placements for placement in parts]
        if all(any(rank != victim.rank for rank in chain) for chain in full):
            cluster.servers.remove(victim)
    elif what == "join" and len(cluster.servers) < 7:
        ranks = {each.rank for each in cluster.servers}
        free = next(rank for rank in range(99) if rank not in ranks)
        cluster.servers.append(member(free, incarnation=100 + number))
    elif what == "leave" and len(cluster.servers) > 1:
        cluster.leaving = {random.choice(cluster.servers).id}


@pytest.mark.parametrize("seed", range(60))
def test_all_rows_end_up_balanced_and_replicated_after_random_joins_and_deaths(seed):
    random = Random(seed)
    replicas = random.randint(1, 3)
    tables = [
        TableSpec(f"t{number}", random.choice([1, 3, 64, 200]), fragment_rows=random.choice([1, 3]))
        for number in range(random.randint(1, 3))
    ]
    cluster = Cluster(map(member, range(random.randint(1, 5))), tables, replicas)
    for number in range(10):
        happens(cluster, random, number)
        for _ in range(60):  # views for other reasons, learners that need their time
            synced = {
                each for each in learners_of(cluster.view.placements) if random.random() < 0.7
            }
            cluster.step(random.random() < 0.8, synced)
        cluster.settle()
        cluster.servers = [each for each in cluster.servers if each.id not in cluster.leaving]
        cluster.leaving = set()
        for at, parts in enumerate(cluster.view.placements):
            wanted = min(replicas, len(cluster.servers))
            assert all(
                len(placement.chain) == wanted and not placement.syncing_since
                for placement in parts
            )
            loads = cluster.loads(at).values()
            mean = sum(loads) / len(loads)
            assert max(loads) - min(loads) <= max(1, 0.1 * mean)
