"""Other servers have the rows: what is under way is cut anew, sent again, and answered once."""

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.protocol.machine import Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import NewView
from shoal.protocol.messages.requests import Request
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.protocol.views import Placement
from shoal.protocol.worker.rerouting import chained, moved
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.spec import Access, TableSpec

ROWS = 4


@pytest.fixture
def rig(rigs):
    """Worker 0 of two servers: [0:2) goes to 0 and [2:4) to 1, and each has the other's."""

    return lambda rule: rigs.WorkerRig(rigs.table(rule), servers=2, replicas=2)


def asked(rig):
    """The requests that were sent last: (server, seq, rows pushed, rows pulled, advance)."""
    return [
        (
            each.to[-1],
            each.message.seq,
            [(p.start, p.stop) for p in each.message.pushes],
            [(p.start, p.stop) for p in each.message.pulls],
            each.message.advance,
        )
        for each in rig.sends(Request)
    ]


def push(rigs):
    return PushOp("w", KeyRange(0, ROWS), rigs.as_bytes(1, 2, 3, 4))


def test_pushes_go_to_heads_and_pulls_to_tails(rigs, rig):
    rig = rig(ssp(1))
    out = rigs.as_bytes(0, 0, 0, 0)
    rig.ask(1, Exchange((push(rigs),), pulls=(PullOp("w", KeyRange(0, ROWS), out),)))
    assert asked(rig) == [("0", 0, [(0, 2)], [], -1), ("1", 0, [(2, 4)], [], -1)]
    rig.answer(0, 0, "applied")
    assert asked(rig) == []  # the tails may not have it before
    rig.answer(1, 0, "applied")
    assert asked(rig) == [("0", 1, [], [(2, 4)], -1), ("1", 1, [], [(0, 2)], -1)]


def test_a_pull_waits_for_its_push_to_be_applied_not_only_accepted(rigs, rig):
    rig = rig(ssp(1))
    out = rigs.as_bytes(0, 0, 0, 0)
    rig.ask(1, Exchange((push(rigs),), pulls=(PullOp("w", KeyRange(0, ROWS), out),)))
    for server in (0, 1):
        rig.answer(server, 0, "accepted")
    assert asked(rig) == []


def test_an_asynchronous_push_and_pull_go_to_the_head_together(rigs, rig):
    rig = rig(asp())
    out = rigs.as_bytes(0, 0, 0, 0)
    rig.ask(1, Exchange((push(rigs),), pulls=(PullOp("w", KeyRange(0, ROWS), out),)))
    assert asked(rig) == [
        ("0", 0, [(0, 2)], [(0, 2)], -1),
        ("1", 0, [(2, 4)], [(2, 4)], -1),
    ]


def test_after_a_heads_death_its_push_goes_to_the_next_replica_under_the_same_seq(rigs, rig):
    rig = rig(asp())
    rig.ask(1, Exchange((push(rigs),)))
    rig.answer(1, 0, "applied")
    rig.receive(SCHEDULER, NewView(rigs.died(rig.view, 0)))
    assert asked(rig)[0] == ("1", 0, [(0, 2)], [], -1)
    [sent] = [each for each in rig.sends(Request) if each.message.seq == 0]
    assert b"".join(bytes(b) for b in sent.buffers) == bytes(rigs.as_bytes(1, 2))
    rig.answer(1, 0, "applied", view=(1, 2))
    assert rig.resolved()[1].error is None


def test_a_reply_of_the_previous_view_does_not_resolve_a_rerouted_push(rigs, rig):
    rig = rig(asp())
    rig.ask(1, Exchange((push(rigs),)))
    rig.receive(SCHEDULER, NewView(rigs.died(rig.view, 0)))
    server, seq, pushed, _, _ = asked(rig)[0]
    assert (server, seq, sorted(pushed)) == ("1", 0, [(0, 2), (2, 4)])
    rig.answer(1, 0, "applied", view=(1, 1))  # of its own half
    assert rig.resolved() == {}
    rig.answer(1, 0, "applied", view=(1, 2))
    assert rig.resolved()[1].error is None


def test_accepted_pushes_are_resent_after_a_death_before_their_clock(rigs, rig):
    rig = rig(bsp())
    rig.ask(1, Exchange((push(rigs),), advance=True))
    for server in (0, 1):
        rig.answer(server, 0, "accepted")
    assert asked(rig) == [] or all(each[4] == 1 for each in asked(rig))
    for server in (0, 1):
        rig.answer(server, 1, "applied")
    rig.receive(SCHEDULER, NewView(rigs.died(rig.view, 0)))
    told = [(each[1], each[4]) for each in asked(rig)]
    assert told == [(0, -1), (2, 0), (3, 1)]  # each clock, once what is below it is there
    assert [each.follows for each in rig.sent(Request)] == [(), (), (0,)]


def test_a_push_and_its_pull_are_split_when_another_replica_becomes_the_tail(rigs):
    """One server had the rows; then it heads a chain, and the pull is the tail's."""
    rig = rigs.WorkerRig(rigs.table(ssp(1), fragment_rows=ROWS), servers=2)
    out = rigs.as_bytes(0, 0, 0, 0)
    rig.ask(1, Exchange((push(rigs),), pulls=(PullOp("w", KeyRange(0, ROWS), out),)))
    assert asked(rig) == [("0", 0, [(0, ROWS)], [(0, ROWS)], -1)]
    placements = tuple(
        tuple(replace(placement, chain=(0, 1)) for placement in placements)
        for placements in rig.view.placements
    )
    rig.receive(SCHEDULER, NewView(replace(rig.view, number=2, placements=placements)))
    assert ("0", 0, [(0, ROWS)], [], -1) in asked(rig)
    assert not any(pulls for _, _, _, pulls, _ in asked(rig))
    rig.answer(0, 0, "applied", view=(1, 2))
    assert [(to, pulls) for to, _, _, pulls, _ in asked(rig) if pulls] == [("1", [(0, ROWS)])]


def slots(rigs, *edges):
    """A view whose servers have the slots of a sparse table between these edges."""
    spec = TableSpec("e", kind="sparse", access=Access("sum"), merge="sum").cut(1)
    view = rigs.view_of(servers=3, tables=(spec,))
    placements = tuple(Placement(KeyRange(*rows), (at,)) for at, rows in enumerate(pairwise(edges)))
    return replace(view, number=len(edges), placements=(placements,))


def test_keys_in_any_order_reach_the_servers_that_share_their_slots_later(rigs):
    """One server had the table, so that nobody sorted them; then three, and one all shards."""
    rig = rigs.WorkerRig()
    views = [slots(rigs, *edges, SLOTS) for edges in ((0,), (0, 2000), (0, 2000, 3000))]
    on_one = tuple(replace(each, chain=(0,)) for each in views[-1].placements[0])
    views.append(replace(views[-1], number=9, placements=(on_one,)))
    rig.receive(SCHEDULER, NewView(views[0]))
    keys = np.arange(40, dtype=np.uint64)
    out = np.zeros(40, np.float32)
    exchange = Exchange(
        (PushOp("e", KeyRange(0, SLOTS), keys.astype(np.float32).view(np.uint8).data, keys.data),),
        pulls=(PullOp("e", KeyRange(0, SLOTS), out.view(np.uint8).data, keys.data),),
    )
    rig.ask(1, exchange)
    for view in views[1:]:
        rig.receive(SCHEDULER, NewView(view))
        found = {}
        for sent in rig.sends(Request):
            buffers = iter(sent.buffers)
            for part in sent.message.pushes:
                here = np.frombuffer(next(buffers), np.uint64).tolist()
                assert all(part.start <= slot_of(key) < part.stop for key in here)
                found |= dict(zip(here, np.frombuffer(next(buffers), np.float32), strict=True))
        assert found == {key: key for key in range(40)}
    rig.answer(0, 1, "applied", np.array([*found], np.float32).tobytes(), view=views[-1].id)
    assert rig.resolved()[1].error is None
    assert out.tolist() == list(range(40))


def test_a_timed_out_push_is_resent_to_the_next_replica_from_its_copy(rigs, rig):
    """Its caller may write to its buffer by then."""
    rig = rig(bsp())
    values = rigs.as_bytes(1, 2, 3, 4)
    rig.ask(1, Exchange((PushOp("w", KeyRange(0, ROWS), values),), timeout_s=1.0))
    for server in (0, 1):
        rig.answer(server, 0, "accepted")
    for rig.now in (1.5, 3.0, 5.0):
        rig.handle(Ticked())
    values[:] = bytes(8 * ROWS)
    rig.receive(SCHEDULER, NewView(rigs.died(rig.view, 0)))
    [sent] = [each for each in rig.sends(Request) if each.message.seq == 0]
    assert sorted(memoryview(b"".join(map(bytes, sent.buffers))).cast("q")) == [1, 2, 3, 4]


def test_an_advance_does_not_wait_for_a_dead_server_without_rows(rigs):
    """All servers hear of clocks, and one that is gone would keep them for ever."""
    rig = rigs.WorkerRig(rigs.table(bsp(), rows=2), servers=3, replicas=2)
    assert [placement.chain for placement in rig.view.placements[0]] == [(0, 1)]
    rig.ask(1, Exchange(advance=True))
    for server in (0, 1):
        rig.answer(server, 0, "applied")
    assert rig.resolved() == {}
    rig.receive(SCHEDULER, NewView(rigs.died(rig.view, 2)))
    assert [each[:2] for each in asked(rig)] == [("0", 0), ("1", 0), ("0", 1), ("1", 1)]
    for server in (0, 1):
        rig.answer(server, 0, "applied", view=(1, 2))
    assert rig.resolved()[1].error is None


def test_moved_and_chained_tell_changed_chains_and_replicated_tables(rigs):
    one = rigs.view_of(servers=2, tables=(rigs.table(),))
    two = rigs.view_of(servers=2, replicas=2, tables=(rigs.table(),))
    assert (chained(one), chained(two)) == (False, True)
    assert moved(two, rigs.died(two, 0))
    more = rigs.view_of(servers=2, replicas=2, tables=(rigs.table(), rigs.table(name="v")))
    assert not moved(two, more)


def test_a_view_with_the_same_chains_resends_nothing(rigs, rig):
    rig = rig(asp())
    rig.ask(1, Exchange((push(rigs),)))
    rig.receive(SCHEDULER, NewView(replace(rig.view, number=2)))
    assert asked(rig) == []


def test_a_state_keeps_its_slots_when_it_is_rerouted(rigs, rig):
    rig = rig(asp())
    rows, slot = rigs.as_bytes(1, 2, 3, 4), rigs.as_bytes(5, 6, 7, 8)
    push = PushOp("w", KeyRange(0, ROWS), rows, slots=(slot,))
    rig.ask(1, Exchange((push,), assign=True, updates=9))
    out, state = rigs.as_bytes(0, 0, 0, 0), rigs.as_bytes(0, 0, 0, 0)
    rig.ask(2, Exchange(pulls=(PullOp("w", KeyRange(0, ROWS), out, slots=(state,)),)))
    rig.receive(SCHEDULER, NewView(rigs.died(rig.view, 0)))
    [sent] = [each for each in rig.sends(Request) if each.message.pushes]
    pieces = {(part.start, part.slots): None for part in sent.message.pushes}
    assert (sent.to, sent.message.updates, sorted(pieces)) == ("server-1", 9, [(0, 1), (2, 1)])
    assert sorted(b"".join(map(bytes, sent.buffers))) == sorted(bytes(rows) + bytes(slot))
    [pull] = [each.message for each in rig.sends(Request) if each.message.pulls]
    assert {(part.start, part.stop, part.slots) for part in pull.pulls} == {(0, 2, 1), (2, 4, 1)}
