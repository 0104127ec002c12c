"""Which views name a clock for a checkpoint: one every so often, and one after a request."""

import pytest
from msgspec.structs import replace

from shoal.protocol.limits import WINDOW
from shoal.protocol.messages.admin import CheckpointPlanned, CheckpointRefused, CheckpointRequest
from shoal.protocol.messages.membership import Freeze, Frozen, GroupProgress, ViewRefused
from shoal.protocol.scheduler.checkpoint_plan import AHEAD, KEPT, NAMED_MAX, CheckpointPlan, marked
from shoal.protocol.scheduler.failure_detector import LOOK_S
from shoal.protocol.views import FOREVER, Member, View
from shoal.tables.consistency import bsp
from shoal.tables.spec import TableSpec

WORKERS = tuple(Member(f"worker-{n}", "worker", n, 11 + n) for n in (0, 1))
VIEW = View(1, 1, (), WORKERS, (TableSpec("w", 8, consistency=bsp()),))


def at(clocks, open_round, **more):
    """What a server promises."""
    return Frozen((1, 2), clocks, (GroupProgress("", open_round, **more),))


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


def test_a_clock_that_workers_have_not_reached_is_kept_however_many_are_asked_for():
    """It is promised: the oldest of them were forgotten."""
    view, asked = VIEW, range(100, 100 + 10 * NAMED_MAX, 10)
    slow = at(((11, 90), (12, 0)), 0)
    for wanted in asked:
        view = replace(view, checkpoint_clocks=marked(view, [slow], wanted))
    assert view.checkpoint_clocks == tuple(wanted + AHEAD for wanted in asked)
    assert marked(view, [slow], asked[-1] + 10) == view.checkpoint_clocks  # and it is refused
    reached = at(((11, 9999), (12, asked[19] + AHEAD)), 0)
    kept = marked(view, [reached], asked[-1] + 10)
    assert kept[: KEPT - 1] == tuple(wanted + AHEAD for wanted in asked[20 - KEPT + 1 : 20])
    assert len(kept) == NAMED_MAX - 20 + KEPT


def test_views_name_a_checkpoint_clock_every_checkpoint_s(rigs):
    rig = rigs.SchedulerRig(checkpoint_every_s=5.0)
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
    rig = rigs.SchedulerRig(checkpoint_every_s=1.0, failure_timeout_s=1000)
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


# ---------------------------------------------------------------------------- requests


@pytest.fixture
def rig(rigs):
    """A scheduler with a server and two workers, incarnations 2 and 3."""
    rig = rigs.SchedulerRig(start_clock=1000)
    rig.join("server-0", "worker-0", "worker-1")
    return rig


def test_a_request_is_answered_once_a_view_that_names_its_clock_counts(rig):
    rig.receive("somebody", CheckpointRequest(7))
    assert rig.told(Freeze) == {"server-0": Freeze((1, 2), (1, 1))}
    rig.receive("somebody", CheckpointRequest(7))  # again, before the answer
    assert rig.sent(Freeze) == []
    rig.promise(clocks=((2, 30), (3, 28)), open_round=28)
    answer = CheckpointPlanned(7, 30 + AHEAD, 1030 + AHEAD, (("here", "/saved"),))
    assert rig.told(CheckpointPlanned) == {"somebody": answer}
    rig.receive("somebody", CheckpointRequest(7))  # the answer was lost
    assert rig.told(CheckpointPlanned) == {"somebody": answer}
    assert rig.sent(Freeze) == []
    rig.receive("somebody", CheckpointRequest(8))
    assert rig.sent(Freeze) != []


def test_requests_share_a_checkpoint_that_is_still_to_come(rig):
    rig.receive("somebody", CheckpointRequest(1))
    rig.receive("worker-0", CheckpointRequest(1, 30))
    rig.promise(clocks=((2, 30), (3, 28)), open_round=28)
    rig.receive("another", CheckpointRequest(1))
    rig.promise(clocks=((2, 32), (3, 30)), open_round=30)
    assert rig.view.checkpoint_clocks == (30 + AHEAD,)
    assert rig.told(CheckpointPlanned)["another"].clock == 30 + AHEAD


def test_a_checkpoint_has_the_pushes_that_its_worker_has_made_before(rig):
    """Servers may not have heard of them, and an earlier clock may be named already."""
    rig.receive("somebody", CheckpointRequest(1))
    rig.promise(clocks=((2, 30), (3, 28)), open_round=28)
    rig.receive("worker-0", CheckpointRequest(1, 90))
    rig.promise(clocks=((2, 31), (3, 30)), open_round=30)
    assert rig.view.checkpoint_clocks == (30 + AHEAD, 90 + AHEAD)
    assert rig.told(CheckpointPlanned)["worker-0"].clock == 90 + AHEAD


def test_a_clock_that_no_worker_can_have_reached_is_not_named():
    assert marked(VIEW, [at(((11, 4),), 3)], 1 << 60) == (4 + WINDOW + AHEAD,)


def test_a_request_is_refused_where_servers_have_no_folder_or_no_worker_is_at_work(rig):
    rig.receive("somebody", CheckpointRequest(1))
    rig.promise(folder="")
    [refusal] = rig.sent(CheckpointRefused)
    assert refusal.number == 1
    assert "server-0 has no folder for checkpoints" in refusal.reason
    assert rig.view.checkpoint_clocks == ()
    for rank in (0, 1):
        rig.finish(f"worker-{rank}")
    rig.receive("somebody", CheckpointRequest(2))
    [refusal] = rig.sent(CheckpointRefused)
    assert "no worker is at work" in refusal.reason


def test_a_request_is_refused_without_servers():
    plan, out = CheckpointPlan(0.0), []
    assert plan.ask("somebody", CheckpointRequest(1), True, out)
    plan.mark(VIEW, (), 0.0, out)
    assert "this run has no servers: its workers write checkpoints" in out[0].message.reason


def test_a_request_outlives_a_view_that_was_not_adopted(rig):
    rig.receive("somebody", CheckpointRequest(1))
    number = rig.machine._views._proposal.number
    rig.receive("server-0", Frozen(number, ((2, 30), (3, 28)), folder="/saved"))  # offered
    assert rig.sent(CheckpointPlanned) == []
    rig.receive("server-0", ViewRefused(number, (1, 1)))
    assert rig.sent(Freeze) != []
    rig.promise(clocks=((2, 41), (3, 40)), open_round=40)
    assert rig.told(CheckpointPlanned)["somebody"].clock == 41 + AHEAD


def test_a_request_for_a_clock_that_no_worker_comes_to_costs_later_ones_nothing():
    """Its clock was remembered, and all that were asked for later were measured by it."""
    plan, out = CheckpointPlan(0.0), []
    server = Member("server-0", "server", 0, 1)
    promises = [(server, replace(at(((11, 4), (12, 4)), 4), folder="/saved"))]
    view = VIEW
    for number, clock in ((1, FOREVER - 1), (2, 5)):
        assert plan.ask("tool", CheckpointRequest(number, clock), True, out)
        view = plan.mark(view, promises, 0.0, out)
        plan.adopted(view, out)
    assert [type(each.message) for each in out] == [CheckpointPlanned] * 2
    assert len(view.checkpoint_clocks) == 1  # the second is in the first
