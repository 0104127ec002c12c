"""The memory that a server has for its tables."""

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.protocol.machine import Discard, Offload, Offloaded, Received, Send
from shoal.protocol.messages.base import SAME, SCHEDULER, Part
from shoal.protocol.messages.membership import NewView, OpenShards, ShardsOpened
from shoal.protocol.messages.replication import Replicate
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.requests.memory import MemoryOptions
from shoal.protocol.server.requests.requests import RequestOptions
from shoal.protocol.session import Session
from shoal.protocol.views import Member, Placement, View
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.opening import bytes_needed, open_shard
from shoal.tables.sizes import INDEX_BYTES, SPARSE_KEY_BYTES
from shoal.tables.spec import Access, TableSpec

ROW = 4 + SPARSE_KEY_BYTES  # of the sparse tables here
WORKERS = 2


def sparse(rule=None, name="e", **options):
    rule = rule or asp()
    return TableSpec(
        name, kind="sparse", access=Access("sum"), merge="sum", consistency=rule, **options
    ).cut(1)


class Servers:
    """A chain of servers with a sparse table, whose messages to each other are delivered at once.

    rows:  for which each server has memory
    """

    def __init__(self, *rows, rule=None):
        length = len(rows)
        self.servers = [
            ServerMachine(
                Session(f"server-{rank}", "server"),
                open_shard,
                requests=RequestOptions(MemoryOptions(INDEX_BYTES + each * ROW, bytes_needed)),
            )
            for rank, each in enumerate(rows)
        ]
        members = tuple(Member(f"server-{r}", "server", r, 1 + r) for r in range(length))
        workers = tuple(Member(f"worker-{r}", "worker", r, 11 + r) for r in range(WORKERS))
        spec = sparse(rule)
        chain = Placement(KeyRange(0, SLOTS), tuple(range(length)))
        self.view = View(1, 1, members, workers, (spec,), ((chain,),))
        self.sent = []
        self.reply = None
        self.seqs = [-1] * WORKERS
        for rank in range(length):
            self.receive(rank, SCHEDULER, NewView(self.view))
        self.deliver()

    def receive(self, rank, sender, message, payload=b""):
        machine = self.servers[rank]
        sink = machine.arriving(sender, message, len(payload)) if payload else None
        assert not isinstance(sink, Discard), sink
        if sink is not None:
            sink.fill(memoryview(payload))
        for each in machine.handle(Received(sender, message, sink), 0.0):
            if not isinstance(each, Send):
                continue
            payload = b"".join(bytes(view) for view in each.buffers)
            if isinstance(each.message, Reply):
                self.reply = each.message, payload
            elif each.to.startswith("server-"):
                self.sent.append((rank, int(each.to[-1]), each.message, payload))

    def deliver(self):
        """Deliver what servers send to each other; returns it."""
        told = []
        while self.sent:
            source, to, message, payload = self.sent.pop(0)
            told.append(message)
            self.receive(to, f"server-{source}", message, payload)
        return told

    def ask(self, worker, pushed=(), pulled=(), rank=0, clock=0, **more):
        """Push ones to keys, pull keys; returns the answer's code."""
        pushed, pulled = (np.array(sorted(k, key=slot_of), np.uint64) for k in (pushed, pulled))
        pushes = (Part(0, 0, SLOTS, len(pushed)),) if len(pushed) else ()
        pulls = (Part(0, 0, SLOTS, len(pulled)),) if len(pulled) else more.pop("pulls", ())
        payload = bytes(pushed) + bytes(np.ones(len(pushed), np.float32)) + bytes(pulled)
        self.seqs[worker] += 1
        request = Request((1, 1), 11 + worker, self.seqs[worker], 0, clock, pushes, pulls=pulls)
        self.reply = None
        self.receive(rank, f"worker-{worker}", replace(request, **more), payload)
        return self.reply[0].code if self.reply else None

    def advance(self, to):
        """All workers end their clock."""
        for worker in range(WORKERS):
            self.ask(worker, advance=to)

    def shard(self, rank=0):
        return self.servers[rank].state.replicas[0].shard

    def equal(self):
        """Whether all replicas have the same rows."""
        found = [dict(zip(s.keys.tolist(), s.records.tolist(), strict=False)) for s in self.shards]
        return all(each == found[0] for each in found)

    @property
    def shards(self):
        return [self.shard(rank) for rank in range(len(self.servers))]


# ---------------------------------------------------------------------------- growth


def test_new_keys_beyond_the_limit_are_refused_and_old_ones_go_on():
    servers = Servers(10)
    assert servers.ask(0, range(8)) == "applied"
    assert servers.ask(0, range(6, 11)) == "refused"
    reason = servers.reply[0].reason
    assert "table 'e' has 8 rows" in reason
    for told in ("3 new keys need up to 150 bytes, and 100 bytes of", "max_rows", "--memory"):
        assert told in reason
    assert len(servers.shard()) == 8
    assert servers.ask(0, range(8)) == "applied"
    assert servers.ask(0, range(5, 10)) == "applied"  # two new ones fit
    assert servers.ask(0, [10]) == "refused"
    assert servers.ask(0, range(10)) == "applied"
    assert servers.ask(0, pulled=[7]) == "applied"
    assert np.frombuffer(servers.reply[1], np.float32) == 4.0


def test_a_key_that_a_push_names_twice_is_one_row():
    servers = Servers(1)
    assert servers.ask(0, [3, 3, 3]) == "applied"


def test_plain_writes_are_refused_too():
    servers = Servers(2)
    assert servers.ask(0, [1, 2, 3], assign=True) == "refused"
    assert servers.ask(0, [1, 2], assign=True) == "applied"


def test_pulls_are_answered_beyond_the_limit_and_create_no_rows():
    servers = Servers(2)
    assert servers.ask(0, pulled=[1, 2]) == "applied"
    assert len(servers.shard()) == 2
    assert servers.ask(0, pulled=[1, 3, 4]) == "applied"
    assert np.frombuffer(servers.reply[1], np.float32).tolist() == [0, 0, 0]
    assert len(servers.shard()) == 2


def test_far_from_the_limit_no_key_is_looked_up(monkeypatch):
    servers = Servers(1000)
    monkeypatch.setattr(type(servers.shard()), "new_keys", None)
    for n in range(9):
        assert servers.ask(0, range(100 * n, 100 * n + 100)) == "applied"


def test_no_key_is_looked_up_in_a_shard_on_which_another_thread_works(monkeypatch):
    servers = Servers(10, rule=bsp())
    assert servers.ask(0, range(6)) == "accepted"
    servers.shard().lend(True)
    monkeypatch.setattr(type(servers.shard()), "new_keys", None)
    assert servers.ask(1, range(5, 12)) == "refused"  # seven more than six may be there


def test_a_round_holds_what_it_has_accepted():
    """What waits for the round is counted, so that the round has memory for all of it."""
    servers = Servers(10, rule=bsp())
    assert servers.ask(0, range(6)) == "accepted"
    assert servers.ask(1, range(5, 12)) == "refused"  # 0 to 11 are twelve
    assert len(servers.shard()) == 0
    assert servers.ask(1, range(2, 10)) == "accepted"  # 0 to 9 are ten
    servers.advance(1)
    assert len(servers.shard()) == 10
    assert servers.ask(0, range(10), clock=1) == "accepted"
    assert servers.ask(1, [10], clock=1) == "refused"


def test_a_pull_of_keys_that_wait_for_their_round_is_no_growth():
    servers = Servers(4, rule=ssp(3, "round_end"))
    servers.ask(0, range(4), pulls=(Part(0, 0, SLOTS, SAME),))
    assert servers.ask(1, range(4)) == "accepted"
    assert servers.ask(1, [9]) == "refused"


def test_nothing_of_a_refused_push_is_replicated():
    servers = Servers(10, 10)
    servers.ask(0, range(10))
    assert any(isinstance(each, Replicate) for each in servers.deliver())
    assert servers.reply[0].code == "applied"
    assert servers.ask(0, range(5, 11)) == "refused"
    assert servers.deliver() == []
    servers.ask(0, range(10))
    servers.deliver()
    assert servers.reply[0].code == "applied"
    assert servers.equal()


@pytest.mark.parametrize("rule", [asp(), bsp()])
def test_a_replica_beyond_its_own_limit_applies_what_the_head_has_applied(rule):
    servers = Servers(10, 3, rule=rule)
    servers.ask(0, range(8))
    servers.advance(1)
    servers.deliver()
    assert [len(servers.shard(rank)) for rank in (0, 1)] == [8, 8]
    assert servers.equal()
    assert servers.ask(0, pulled=range(20, 30), rank=int(rule == bsp())) == "applied"
    assert [len(servers.shard(rank)) for rank in (0, 1)] == [8, 8]


def test_rows_that_other_heads_create_count(monkeypatch):
    """A server is the head of one table and follows in another."""
    servers = Servers(100, 100)
    memory = servers.servers[1].requests.memory
    assert memory.problem(((0, KeyRange(0, SLOTS), 50),), []) == ""
    spare = memory._spare
    servers.ask(0, range(40))
    servers.deliver()
    assert memory._spare == spare - 40 * ROW


# ---------------------------------------------------------------------------- opening


DENSE = TableSpec("w", 1000, fragment_rows=500)  # 4,000 bytes, and 2,000 of staging


class Opening:
    """A server that opens tables."""

    def __init__(self, rigs, limit):
        self.opened = []

        def opener(spec, rows):
            self.opened.append(spec.name)
            return open_shard(spec, rows)

        options = RequestOptions(MemoryOptions(limit, bytes_needed))
        machine = ServerMachine(Session("server-0", "server"), opener, requests=options)
        self.rigs, self.rig, self.number = rigs, rigs.Rig(machine), 0
        self.rig.receive(SCHEDULER, NewView(rigs.view_of()))

    def ask(self, *specs, view=(1, 1)):
        """Returns what was refused, with the reasons."""
        self.number += 1
        tables = tuple((spec, (spec.keys,)) for spec in specs)
        self.rig.receive(SCHEDULER, OpenShards((1, self.number), view, tables))
        answers = self.rig.sent(ShardsOpened)
        for each in [each for each in self.rig.effects if isinstance(each, Offload)]:
            self.rig.handle(Offloaded(each.ticket, each.work()))
            answers += self.rig.sent(ShardsOpened)
        return {table: reason for table, _, reason in answers[-1].failed}


def test_a_table_that_does_not_fit_is_refused_before_it_is_opened(rigs):
    server = Opening(rigs, 6000)
    large = TableSpec("large", 1001, fragment_rows=1001)
    reason = server.ask(large)["large"]
    for told in ("'large' needs 7.8 KiB", "5.9 KiB of 5.9 KiB are free", "--memory"):
        assert told in reason
    assert server.opened == []
    assert server.ask(DENSE) == {}
    assert server.opened == ["w"]


def test_optimizer_state_counts(rigs):
    server = Opening(rigs, 6000)
    adam = TableSpec("adam", 1000, fragment_rows=500, access=Access("adam"))
    assert list(server.ask(adam)) == ["adam"]
    assert server.opened == []


def test_of_several_tables_those_are_opened_that_fit_together(rigs):
    server = Opening(rigs, 12_000)
    specs = [TableSpec(name, 1000, fragment_rows=500) for name in "abc"]
    assert list(server.ask(*specs)) == ["c"]
    assert server.opened == ["a", "b"]


def test_what_is_in_the_view_counts_and_what_is_not_wanted_any_more_does_not(rigs):
    server = Opening(rigs, 13_000)
    other = TableSpec("other", 1000, fragment_rows=500)
    assert server.ask(DENSE, other) == {}
    third = TableSpec("third", 1000, fragment_rows=500)
    assert list(server.ask(DENSE, other, third)) == ["third"]
    assert server.ask(DENSE, third) == {}  # without `other`
    server.rig.receive(SCHEDULER, NewView(server.rigs.view_of(number=2, tables=(DENSE, third))))
    assert list(server.ask(other, view=(1, 2))) == ["other"]


def test_memory_of_a_shard_that_is_still_being_opened_counts_though_it_is_not_wanted(rigs):
    server = Opening(rigs, 7000)
    number, spec = 1, DENSE
    server.rig.receive(SCHEDULER, OpenShards((1, number), (1, 1), ((spec, (spec.keys,)),)))
    [work] = [each for each in server.rig.effects if isinstance(each, Offload)]
    server.number = 1
    other = TableSpec("other", 1000, fragment_rows=500)
    assert list(server.ask(other)) == ["other"]
    server.rig.handle(Offloaded(work.ticket, work.work()))
    assert server.ask(other) == {}


def test_a_bounded_table_that_takes_more_than_was_known_is_refused_after_all(rigs):
    """Its optimizer state is known once it is compiled; no row has been touched then."""
    spec = sparse(name="b", row_shape=(4,), max_rows=1000)
    adam = TableSpec("b", kind="sparse", row_shape=(4,), access=Access("adam"), max_rows=1000).cut(
        1
    )
    server = Opening(rigs, 80_000)
    assert server.ask(spec) == {}
    assert list(Opening(rigs, 80_000).ask(adam)) == ["b"]
    assert list(Opening(rigs, 60_000).ask(spec)) == ["b"]


def test_tables_of_which_nothing_is_known_are_opened(rigs):
    server = Opening(rigs, INDEX_BYTES)
    assert server.ask(sparse()) == {}
    assert list(Opening(rigs, INDEX_BYTES - 1).ask(sparse())) == ["e"]
