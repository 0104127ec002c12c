"""Which clocks have a checkpoint: every so many, or those that views name."""

import pytest
from msgspec.structs import replace

from shoal.protocol.checkpoint_clocks import AHEAD, KEPT, CheckpointClocks, marked
from shoal.protocol.machine import Received, Send
from shoal.protocol.messages import SCHEDULER, Freeze, Frozen, GroupProgress, NewView
from shoal.protocol.scheduler.failure_detector import LOOK_S
from shoal.protocol.views import FOREVER, Member, View
from shoal.tables.spec import TableSpec, bsp, ssp

WORKERS = tuple(Member(f"worker-{n}", "worker", n, 11 + n) for n in (0, 1))
VIEW = View(1, 1, (), WORKERS, (TableSpec("w", 8, consistency=bsp()),))


def at(clocks, open_round, **more):
    """What a server promises."""
    return Frozen((1, 2), clocks, (GroupProgress("", open_round, **more),))


def test_checkpoint_clocks_are_named_by_views_or_every_n_clocks():
    checkpoint_clocks = CheckpointClocks()
    assert not checkpoint_clocks
    assert (checkpoint_clocks.latest(100), checkpoint_clocks.following(0)) == (0, FOREVER)
    checkpoint_clocks.adopt(replace(VIEW, checkpoint_clocks=(7, 30)))
    assert [checkpoint_clocks.latest(at) for at in (6, 7, 29, 30, FOREVER)] == [0, 7, 7, 30, 0]
    assert [checkpoint_clocks.following(at) for at in (0, 7, 30)] == [7, 30, FOREVER]
    assert [at for at in range(40) if checkpoint_clocks.at(at)] == [7, 30]
    both = CheckpointClocks(10)
    both.adopt(replace(VIEW, checkpoint_clocks=(7,)))
    assert [at for at in range(35) if both.at(at)] == [7, 10, 20, 30]
    assert [both.following(at) for at in (0, 7, 10)] == [7, 10, 20]


def test_a_new_checkpoint_clock_is_beyond_all_that_any_server_has_seen():
    promises = [at(((11, 4), (12, FOREVER)), 3), at(((11, 5),), 0)]
    assert marked(VIEW, promises) == (5 + AHEAD,)
    heads = [at(((11, 4),), 3, replayed=9)]
    assert marked(VIEW, heads) == (9 + AHEAD,)
    pushed = [at(((11, 4),), 3, closed=12), *heads]  # its worker has not advanced yet
    assert marked(VIEW, pushed) == (12 + AHEAD,)


def test_a_new_checkpoint_clock_follows_the_first_groups_clocks_only():
    """Also where a server has not heard that a worker of another group has gone."""
    guest = Member("guest", "worker", 0, 31, group="eval")
    promises = [at(((11, 4), (12, 4), (31, 1000)), 3)]
    assert marked(VIEW, promises) == (4 + AHEAD,)
    assert marked(replace(VIEW, workers=(*WORKERS, guest)), promises) == (4 + AHEAD,)


@pytest.mark.parametrize("length", [1, 2])
def test_a_push_ahead_of_a_named_clock_is_not_in_its_checkpoint(rigs, length):
    chain = rigs.Chain(ssp(2), length=length)
    chain.ask(0, 0, 0, 1, 1, 1, 1, clock=7)
    chain.deliver()
    for server in chain.servers:
        effects = server.handle(Received(SCHEDULER, Freeze((1, 9))), 0.0)
        [promise] = [each.message for each in effects if isinstance(each, Send)]
        assert promise.standing("").closed == 8
    chain.view = replace(chain.view, number=9, checkpoint_clocks=(6, 12))
    for rank in range(length):
        chain.receive(rank, SCHEDULER, NewView(chain.view))
    for worker in (0, 1):
        chain.ask(0, worker, 1, advance=12)
    chain.deliver()
    assert [(clock, rows) for _, _, clock, rows in chain.saved] == [(12, [1] * 4)]


def test_no_checkpoint_clock_is_named_while_the_last_is_still_to_come():
    before = replace(VIEW, checkpoint_clocks=(3, 9))
    assert marked(before, [at(((11, 8),), 8)]) == (3, 9)
    fast = at(((11, 8), (12, 30)), 8)
    assert marked(before, [fast]) == (3, 9)  # the slowest has not come to it
    assert marked(before, [at(((11, 9), (12, 30)), 9)]) == (3, 9, 30 + AHEAD)
    others = at(((11, 9), (12, 3)), 9)  # which has not heard of some advances
    assert marked(before, [others, fast]) == (3, 9, 30 + AHEAD)


def test_only_the_latest_checkpoint_clocks_are_kept():
    view = VIEW
    for clock in range(0, 20 * KEPT, 20):
        view = replace(view, checkpoint_clocks=marked(view, [at(((11, clock),), clock)]))
    assert len(view.checkpoint_clocks) == KEPT
    assert view.checkpoint_clocks[-1] == 20 * (KEPT - 1) + AHEAD


def test_views_name_a_checkpoint_clock_every_checkpoint_s(rigs):
    rig = rigs.SchedulerRig(checkpoint_s=5.0)
    rig.join("server-0", "worker-0", "worker-1")
    assert rig.view.checkpoint_clocks == ()
    rig.at(4.9)
    assert rig.sent(Freeze) == []
    rig.at(5.0)
    assert rig.told(Freeze) == {"server-0": Freeze((1, 2), (1, 1))}
    rig.promise(clocks=((2, 30), (3, 28)), open_round=28)
    assert rig.view.checkpoint_clocks == (30 + AHEAD,)
    assert rig.view.reason == "a checkpoint is due"
    again = rig.restart()  # it goes on naming them, and remembers those it has named
    again.at(6.0)
    again.promise()
    assert again.view.checkpoint_clocks == (30 + AHEAD,)
    again.at(11.0)
    again.promise(clocks=((2, 50), (3, 47)), open_round=50)
    assert again.view.checkpoint_clocks == (30 + AHEAD, 50 + AHEAD)


def test_a_view_that_could_name_no_clock_is_made_less_often(rigs):
    """Workers take longer for a clock than from one checkpoint to the next."""
    rig = rigs.SchedulerRig(checkpoint_s=1.0, silence_s=1000)
    rig.join("server-0", "worker-0", "worker-1")
    made = []
    for tenth in range(1, 300):
        rig.at(tenth / 10)
        if rig.sent(Freeze):
            made.append(rig.now)
            rig.promise(clocks=((2, 7), (3, 7)), open_round=7)
    assert made == [1.0, 2.0, 4.0, 8.0, 16.0, 24.0]
    rig.at(32.0)
    rig.promise(clocks=((2, 90), (3, 90)), open_round=90)
    rig.at(33.0)
    assert rig.sent(Freeze)


def test_without_checkpoint_s_no_view_is_proposed_for_a_checkpoint(rigs):
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    assert rig.machine.deadline() == 10.0 - LOOK_S  # silence
