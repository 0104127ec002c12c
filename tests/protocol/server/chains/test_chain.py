"""Chains: what a head does is done by the others, and only then acknowledged."""

from collections import Counter

import pytest
from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.machine import Received, Send
from shoal.protocol.messages.base import SCHEDULER, Part
from shoal.protocol.messages.membership import Freeze, Frozen, GroupProgress, NewView
from shoal.protocol.messages.replication import Replicate, ReplicateAck
from shoal.protocol.messages.requests import Probe
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import Change, Operation
from shoal.protocol.server.state.replicas import Replicas
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.views import FOREVER, Placement
from shoal.tables.consistency import bsp, ssp
from shoal.tables.dense.shard import DenseShard

ROWS = 4


@pytest.fixture
def chain(rigs):
    return rigs.Chain()


def test_a_push_is_acknowledged_when_the_tail_has_it(chain):
    assert chain.ask(0, 0, 0, 1, 2, 3, 4) == []
    assert (chain.rows(0), chain.rows(1)) == ([1, 2, 3, 4], [0, 0, 0, 0])
    chain.deliver(Replicate)
    assert chain.rows(1) == [1, 2, 3, 4]
    assert chain.told == []
    chain.deliver(ReplicateAck)
    assert chain.told == [("worker-0", 0, "applied", [])]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_every_server_of_the_chain_has_it_once_whatever_comes_twice(rigs, length):
    chain = rigs.Chain(length=length)
    for seq in range(3):
        chain.ask(0, 0, seq, 1, 1, 1, 1)
    chain.told = []
    chain.deliver(times=2)
    assert [chain.rows(rank) for rank in range(length)] == [[3] * ROWS] * length
    assert [seq for _, seq, code, _ in chain.told if code == "applied"] == [0, 1, 2]


def counting(monkeypatch, owner, name, calls):
    right = getattr(owner, name)
    right = right.fget if isinstance(right, property) else right

    def counted(self, *args):
        calls[name] += 1
        return right(self, *args)

    found = property(counted) if isinstance(getattr(owner, name), property) else counted
    monkeypatch.setattr(owner, name, found)


@pytest.mark.parametrize("length", [2, 3])
def test_the_work_for_a_push_does_not_grow_with_those_under_way(rigs, monkeypatch, length):
    calls = Counter()
    counting(monkeypatch, Operation, "done", calls)
    counting(monkeypatch, RequestLog, "unreplicated", calls)

    def a_push(count):
        chain = rigs.Chain(length=length)
        calls.clear()
        for seq in range(count):
            chain.ask(0, 0, seq, 1, 1, 1, 1)
        chain.told = []
        chain.deliver(Replicate)
        chain.deliver(ReplicateAck)
        assert [seq for _, seq, code, _ in chain.told if code == "applied"] == [*range(count)]
        for server in chain.servers:
            assert server.chains.idle
            assert not server.chains._log
            assert not any(map(bool, server.requests.wait_queue._lacked.values()))
        return sum(calls.values()) / count

    assert a_push(200) < 1.5 * a_push(8)


def test_a_push_of_a_slow_chain_delays_none_of_another(rigs):
    """Two tables: their second servers have their pushes in turns."""
    chain = rigs.Chain(None, None)
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.ask(0, 0, 1, 2, 2, 2, 2, table=1)
    chain.ask(0, 1, 0, 3, 3, 3, 3)
    chain.told = []
    [ack] = [each for each in acks_of(chain, 0) if len(each.done) == 2]
    later = replace(ack, done=((0, 0, 0), *ack.done[1:]))
    chain.receive(0, "server-1", later)
    assert [(to, seq) for to, seq, _, _ in chain.told] == [("worker-0", 1)]
    chain.receive(0, "server-1", ack)
    told = [(to, seq) for to, seq, _, _ in chain.told]
    assert told == [("worker-0", 1), ("worker-0", 0), ("worker-1", 0)]


def acks_of(chain, rank):
    """The last acknowledgement to a server, once all its messages have come."""
    chain.deliver(Replicate)
    found = [e.message for e in chain.under_way if isinstance(e.message, ReplicateAck)]
    chain.under_way.clear()
    return found[-1:]


def test_what_comes_out_of_order_is_done_in_order(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.ask(0, 0, 1, 5, 5, 5, 5, assign=True)
    chain.under_way.reverse()
    chain.told = []
    chain.deliver()
    assert chain.rows(1) == chain.rows(0) == [5] * ROWS
    assert [seq for _, seq, _, _ in chain.told] == [0, 1]


def test_a_head_says_whom_a_push_waits_for(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.told = []
    effects = chain.servers[0].handle(Received("worker-0", Probe(chain.view.id, 11, 0)), 0.0)
    [reply] = [each.message for each in effects if isinstance(each, Send)]
    assert (reply.code, reply.reason) == ("accepted", "waits for server-1 to have it as well")


def test_what_is_lost_is_sent_again(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.under_way.clear()
    due = chain.servers[0].replication.wakes_at()
    chain.tick(0, due)
    chain.deliver()
    assert chain.rows(1) == [1] * ROWS
    assert ("worker-0", 0, "applied", []) in chain.told


def test_an_acknowledgement_that_is_lost_is_asked_for(rigs):
    chain = rigs.Chain(length=3)
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.deliver(Replicate)
    chain.under_way.clear()  # nobody hears of it
    for round in range(1, 8):
        for rank in range(3):
            chain.tick(rank, 10.0 * round)
        chain.deliver()
    assert ("worker-0", 0, "applied", []) in chain.told
    assert [chain.rows(rank) for rank in range(3)] == [[1] * ROWS] * 3


# ---------------------------------------------------------------------------- rounds


def test_a_round_is_replicated_once_and_not_each_push(rigs):
    chain = rigs.Chain(bsp(), workers=4)
    for worker in range(4):
        assert chain.ask(0, worker, 0, 1, 1, 1, 1) == [(f"worker-{worker}", 0, "accepted")]
    for worker in range(4):
        chain.ask(0, worker, 1, advance=1)
    sent = [(message, payload) for _, _, message, payload in chain.under_way if payload]
    assert [message.what for message, _ in sent] == ["round"]
    assert sum(len(payload) for _, payload in sent) == 8 * ROWS
    chain.told = []
    chain.deliver()
    assert chain.rows(1) == [4] * ROWS
    assert sorted(to for to, seq, code, _ in chain.told if (seq, code) == (0, "applied")) == [
        f"worker-{worker}" for worker in range(4)
    ]


def test_a_tail_answers_when_it_has_the_round_not_when_workers_have_told_it(rigs):
    chain = rigs.Chain(bsp(), workers=1)
    chain.ask(0, 0, 0, 7, 7, 7, 7)
    chain.ask(0, 0, 1, advance=1)
    held, chain.under_way = chain.under_way, []
    pulls = (Part(0, 0, ROWS),)
    assert chain.ask(1, 0, 1, advance=1, pulls=pulls) == []
    [(_, reason)] = chain.servers[1].waiting()
    assert reason == "waits for clock 1 to come from server-0 (at 0)"
    chain.under_way = held
    chain.deliver()
    assert ("worker-0", 1, "applied", [7] * ROWS) in chain.told


def test_pulls_go_to_tails_and_pushes_to_heads(rigs):
    chain = rigs.Chain(ssp(1))
    assert chain.ask(1, 0, 0, 1, 1, 1, 1) == [("worker-0", 0, "refused")]
    assert chain.ask(0, 0, 1, pulls=(Part(0, 0, ROWS),)) == [("worker-0", 1, "refused")]
    assert chain.ask(1, 0, 2, pulls=(Part(0, 0, ROWS),)) == [("worker-0", 2, "applied")]


# ---------------------------------------------------------------------------- deaths


def test_who_takes_over_knows_what_was_done(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.deliver(Replicate)  # and the head dies before it answers
    chain.without(0)
    assert chain.ask(1, 0, 0, 1, 1, 1, 1) == [("worker-0", 0, "applied")]
    assert chain.rows(1) == [1] * ROWS


def test_who_takes_over_does_what_it_never_had(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.without(0)
    assert chain.ask(1, 0, 0, 1, 1, 1, 1) == [("worker-0", 0, "applied")]
    assert chain.rows(1) == [1] * ROWS


def test_a_head_whose_tail_dies_goes_on_alone(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.without(1)
    assert chain.ask(0, 0, 0, 1, 1, 1, 1) == [("worker-0", 0, "applied")]
    assert chain.rows(0) == [1] * ROWS


def test_what_a_server_in_the_middle_had_alone_is_sent_by_the_head(rigs):
    chain = rigs.Chain(length=3)
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.ask(0, 0, 1, 2, 2, 2, 2)
    first = next(each for each in chain.under_way if isinstance(each[2], Replicate))
    chain.receive(1, "server-0", first[2], first[3])  # 1 has the first; 2 has neither
    chain.without(1)
    chain.deliver()
    assert chain.rows(0) == chain.rows(2) == [3] * ROWS


def test_who_takes_over_waits_for_pushes_that_only_the_dead_had_accepted(rigs):
    chain = rigs.Chain(bsp())
    for worker in (0, 1):
        chain.ask(0, worker, 0, 1, 1, 1, 1)
        chain.ask(1, worker, 1, advance=1)  # both have told the tail that round 0 is over
    assert chain.servers[1].state.clocks.of("").minimum == 1
    chain.without(0)
    assert chain.servers[1].state.clocks.of("").minimum == 0
    assert chain.ask(1, 0, 0, 1, 1, 1, 1) == [("worker-0", 0, "accepted")]
    chain.ask(1, 0, 2, advance=1)
    assert chain.rows(1) == [0] * ROWS
    chain.ask(1, 1, 0, 1, 1, 1, 1)
    chain.ask(1, 1, 2, advance=1)
    assert chain.rows(1) == [2] * ROWS


def test_who_takes_over_from_who_took_over_waits_for_them_as_well(rigs):
    """Server 0 dies, server 1 is to be sent again what that had, and gives the rows away."""
    chain = rigs.Chain(bsp(), length=3)
    for worker in (0, 1):
        chain.ask(0, worker, 0, 1, 1, 1, 1)
        for rank in (1, 2):
            chain.ask(rank, worker, 1, advance=1)
    chain.without(0)
    chain.deliver()
    chain.view = replace(
        chain.view,
        number=chain.view.number + 1,
        placements=((Placement(KeyRange(0, ROWS), (2,)),),),
    )
    for rank in (1, 2):
        chain.receive(rank, SCHEDULER, NewView(chain.view))
    chain.deliver()
    for worker in (0, 1):
        assert chain.ask(2, worker, 0, 1, 1, 1, 1) == [(f"worker-{worker}", 0, "accepted")]
    for worker in (0, 1):
        chain.ask(2, worker, 2, advance=1)
    assert chain.rows(2) == [2] * ROWS


def test_that_nobody_works_holds_for_that_view_only(rigs):
    """Who joins after all have left is waited for again."""
    chain = rigs.Chain(bsp(), workers=1)
    nobody = replace(chain.view, number=2, workers=())
    for view in (nobody, replace(chain.view, number=3)):
        for rank in (0, 1):
            chain.receive(rank, SCHEDULER, NewView(view))
        chain.deliver()
    chain.view = replace(chain.view, number=3)
    chains = chain.servers[1].chains
    assert chains.reached(chains.replicas[0], FOREVER) == 0
    assert chain.ask(1, 0, 0, clock=1, pulls=(Part(0, 0, ROWS),)) == []
    assert chain.servers[1].waiting()


def test_nothing_of_an_earlier_view_is_done_or_believed(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    late = list(chain.under_way)
    chain.without()  # the same servers, another view
    for source, to, message, payload in late:
        chain.receive(int(to[-1]), f"server-{source}", message, payload)
    assert chain.rows(1) == [0] * ROWS
    chain.deliver()
    assert chain.rows(1) == [1] * ROWS


def test_a_server_that_has_promised_a_view_does_nothing_in_this_one(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.receive(1, SCHEDULER, Freeze((1, 9)))
    chain.deliver()
    assert chain.rows(1) == [0] * ROWS


def test_a_promise_says_how_far_the_heads_are(rigs):
    chain = rigs.Chain(bsp(), workers=1)
    chain.ask(0, 0, 0, 7, 7, 7, 7)
    chain.ask(0, 0, 1, advance=1)
    chain.deliver()
    effects = chain.servers[1].handle(Received(SCHEDULER, Freeze((1, 9), (1, 1))), 0.0)
    assert [each.message for each in effects if isinstance(each, Send)] == [
        Frozen((1, 9), ((11, 0),), (GroupProgress("", 0, 1, 1),))
    ]


def test_what_is_sent_again_does_not_say_how_far_its_head_was_with_other_arcs(rigs):
    """Who takes over an arc is not as far with it as with those that it had."""
    low, high = KeyRange(0, 2), KeyRange(2, ROWS)
    view = rigs.view_of(servers=3, tables=(rigs.table(rows=ROWS, fragment_rows=ROWS),))
    view = replace(view, placements=((Placement(low, (0, 1, 2)), Placement(high, (1, 2))),))
    holding, out = Replicas(), []
    middle = Chains(holding.by_number)
    holding.adopt(view, 1, DenseShard)
    middle.adopt(view, 1, out)
    replica = holding.by_number[1]
    change = Change(replica, Part(0, 2, ROWS), version=replica.count())
    middle.carry(Operation("round", (1,), 5, [change], round=4, weight=1.0), out)
    assert [each.message.clock for each in out] == [5]
    after = replace(view, number=2, placements=((Placement(low, (1, 2)), Placement(high, (1, 2))),))
    out.clear()
    assert holding.adopt(after, 1, DenseShard).begin == {"": 0}
    middle.adopt(after, 1, out)
    assert [each.message.clock for each in out] == [0]


def test_what_a_server_in_the_middle_sends_again_says_no_clock_of_what_follows(rigs):
    chain = rigs.Chain(bsp(), length=3, workers=1)
    for clock in (0, 1):
        chain.ask(0, 0, 2 * clock, 1, 1, 1, 1, clock=clock)
        for rank in range(3):
            chain.ask(rank, 0, 2 * clock + 1, clock=clock, advance=clock + 1)
    while first := [each for each in chain.under_way if each.to == "server-1"]:
        chain.under_way = []
        for each in first:  # nothing comes to the tail
            chain.receive(1, f"server-{each.source}", each.message, each.payload)
    assert (chain.rows(1), chain.rows(2)) == ([2] * ROWS, [0] * ROWS)
    chain.under_way = []
    chain.without()  # the same servers, another view
    again = [each for each in chain.under_way if each.source == 1 and each.payload]
    chain.receive(2, "server-1", again[0].message, again[0].payload)
    assert chain.rows(2) == [1] * ROWS
    pulls = (Part(0, 0, ROWS),)
    assert chain.ask(2, 0, 4, clock=2, pulls=pulls) == []  # it lacks the second round
    chain.deliver()
    assert ("worker-0", 4, "applied", [2] * ROWS) in chain.told


# ---------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "message",
    [
        Replicate((1, 1), 0, (0,), 0, "push", (Part(0, 0, ROWS),), (), ()),
        Replicate((1, 1), 0, (0,), 0, "push", (Part(0, 0, 99),), (1,), (None,)),
        Replicate((1, 1), 0, (0,), 0, "push", (Part(7, 0, ROWS),), (1,), (None,)),
        Replicate((9, 9), 0, (0,), 0, "push", (Part(0, 0, ROWS),), (1,), (None,)),
    ],
)
def test_what_is_not_for_this_server_changes_nothing(chain, message):
    chain.receive(1, "server-0", message, bytes(8 * ROWS))
    chain.receive(0, "server-1", message, bytes(8 * ROWS))
    assert chain.rows(0) == chain.rows(1) == [0] * ROWS


def test_an_acknowledgement_of_what_was_not_sent_changes_nothing(chain):
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.told = []
    chain.receive(0, "server-1", ReplicateAck((1, 1), 99, ()))
    chain.receive(0, "worker-1", ReplicateAck((1, 1), 1, ((0, 0, 5),)))
    assert chain.told == []


def test_a_greeting_is_answered_with_a_greeting_and_nothing_else(rigs):
    """It was once given back as it came: and the other took its own words for news of the next."""
    chain = rigs.Chain(length=2)
    view, said = chain.view.id, ((0, 0, 3),)
    chain.under_way.clear()
    chain.receive(1, "server-0", ReplicateAck(view, 0, said))
    assert [message for _, _, message, _ in chain.under_way] == [ReplicateAck(view, 0, ())]


def test_what_came_before_its_turn_is_not_acknowledged(chain):
    """It is not applied: its worker would be told that another server has it."""
    for seq in range(3):
        chain.ask(0, 0, seq, 1, 1, 1, 1)
    source, to, message, payload = chain.under_way.pop()
    assert message.number > 0
    chain.receive(int(to[-1]), f"server-{source}", message, payload)
    assert chain.rows(1) == [0] * ROWS
    acks = [m for _, _, m, _ in chain.under_way if isinstance(m, ReplicateAck)]
    assert [ack.number for ack in acks if ack.number] == []
    first = chain.under_way.pop(0)
    chain.receive(1, f"server-{first[0]}", first[2], first[3])
    acks = [m for _, _, m, _ in chain.under_way if isinstance(m, ReplicateAck)]
    assert max(ack.number for ack in acks) == first[2].number + 1
