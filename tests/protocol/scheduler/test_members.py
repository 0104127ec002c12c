"""Worker groups: how they join, begin, finish and fail, each by itself."""

import pytest
from msgspec.structs import replace

from shoal.protocol.machine import PeerLost, Received
from shoal.protocol.messages.admin import DeathReport
from shoal.protocol.messages.membership import (
    Abort,
    BarrierArrival,
    BarrierReleased,
    End,
    Frozen,
    GroupProgress,
    Join,
    Joined,
    Lease,
    Leased,
    Leave,
    NewView,
    NotJoined,
    Synced,
    ViewRefused,
    WaitTimes,
)
from shoal.protocol.scheduler import members
from shoal.protocol.scheduler.membership import next_view
from shoal.protocol.views import FOREVER, Member


def test_a_group_enters_the_view_when_all_its_workers_have_joined(started):
    started.guest("guest-0", size=2)
    assert started.told(Joined)["guest-0"].rank == 0
    assert started.machine._views._proposal is None
    started.guest("guest-1", size=2)
    started.promise(clocks=((2, 7), (3, 5)), open_round=5)
    names = [member.name for member in started.view.workers]
    assert names == ["worker-0", "worker-1", "eval/worker-0", "eval/worker-1"]
    assert [member.first_clock for member in started.view.group("eval")] == [0, 0]
    assert started.view.groups() == {"", "eval"}


def test_a_worker_that_dies_before_its_group_begins_is_replaced(started):
    started.guest("guest-0", size=2)
    started.handle(PeerLost("guest-0"))
    alive_at = started.now + 1.9
    started.alive(alive_at)
    started.machine.members.detector.cut_off("guest-0", started.now - 5)
    started.at(started.now + 0.2)
    started.guest("guest-1", size=2)
    assert started.machine._views._proposal is None
    started.guest("guest-2", size=2)
    started.promise()
    assert [member.rank for member in started.view.group("eval")] == [0, 1]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Join("x", "worker", "", "", group="eval", group_size=1), "group 'eval' has 1 workers and"),
        (Join("x", "worker", "", "", group="eval", group_size=2), "is of 1 workers, and not of 2"),
        (Join("x", "worker", "", "", group="a/b", group_size=1), "there can be none"),
        (Join("x", "worker", "", "", group="more", group_size=0), "there can be none"),
        (Join("x", "server", "", "", group="more", group_size=1), "there can be none"),
        (Join("x", "worker", "", ""), "too late: the run has started with all its 2 workers"),
    ],
)
def test_a_join_that_does_not_fit_its_group_is_refused(attached, asked, reason):
    attached.receive("x", asked)
    assert reason in attached.told(NotJoined)["x"].reason


def test_a_group_that_has_begun_takes_more_workers_only_if_the_run_is_elastic(started, rigs):
    started.guest("guest-0", size=2)
    started.guest("guest-1", size=2)
    started.promise()
    started.machine.members.remove("guest-1")
    started.guest("guest-2", size=2)
    assert "too late: group 'eval' has started" in started.told(NotJoined)["guest-2"].reason
    rig = rigs.SchedulerRig(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    rig.guest("guest-0")
    rig.promise()
    rig.guest("guest-1")
    frozen = Frozen(rig.machine._views._proposal.number, (), (GroupProgress("eval", 4, 6),))
    rig.receive("server-0", frozen)
    rig.adopt()
    assert [member.first_clock for member in rig.view.workers] == [0, 0, 0, 6]


def test_a_finished_group_leaves_the_view_and_the_run_goes_on(attached):
    for node in ("worker-0", "worker-1"):
        attached.finish(node)
    assert not attached.sent(End)
    attached.promise()
    assert attached.view.reason == "the first group finished"
    assert [member.name for member in attached.view.workers] == ["eval/worker-0"]
    assert list(attached.told(NewView)) == ["server-0", "guest-0"]
    attached.finish("guest-0")
    attached.confirm()
    assert attached.told(End)["server-0"] == End()


def test_an_aborted_group_ends_alone_unless_it_is_the_first(attached):
    attached.receive("guest-0", Abort("it broke"))
    assert attached.told(End) == {"guest-0": End("eval/worker-0: it broke")}
    attached.promise()
    assert [member.name for member in attached.view.workers] == ["worker-0", "worker-1"]
    attached.receive("worker-0", Abort("as well"))
    assert attached.told(End)["server-0"] == End("worker-0: as well")


def test_a_finished_worker_is_forgotten_after_a_while(attached):
    attached.finish("guest-0")
    attached.promise()
    assert "guest-0" in attached.machine.members.by_id  # its answer may be lost
    attached.alive(61.0)
    attached.guest("guest-1")
    attached.promise()
    assert attached.view.group("eval")[0].rank == 0
    assert "guest-0" not in attached.machine.members.by_id
    assert set(attached.machine.ledgers.records()) <= {""}
    assert not attached.machine.members.finished


def test_a_departed_worker_stays_in_the_view_while_rounds_of_its_group_wait(rigs):
    """A worker that has finished could be in any of them."""

    def departed(waits):
        gone = Member("gone", "worker", 0, 9, last_clock=FOREVER, group="eval")
        before = replace(rigs.view_of(servers=1), departed=(gone,))
        members = {m.id: m for m in (*before.servers, *before.workers)}
        promise = Frozen((1, 3), (), (GroupProgress("eval", 4, waits=waits),))
        return next_view((1, 3), members, before, (), [promise], "").departed

    assert len(departed(waits=True)) == 1
    assert departed(waits=False) == ()


def test_a_group_of_an_aborted_groups_name_waits_for_all_its_workers(attached):
    attached.receive("guest-0", Abort("it broke"))
    attached.guest("guest-1", size=2)  # no view is without guest-0 yet
    attached.promise()
    assert attached.view.groups() == {""}
    attached.guest("guest-2", size=2)
    attached.promise()
    assert len(attached.view.group("eval")) == 2


def test_messages_of_a_finished_worker_have_no_effect(attached):
    inc = attached.incarnation("guest-0")
    attached.finish("guest-0")
    attached.promise()
    attached.guest("guest-1")
    attached.promise()
    attached.receive("guest-0", Abort("late"))
    attached.receive("guest-0", BarrierArrival(inc, "epoch", 0, ("workers",)))
    attached.receive("guest-0", Lease(inc, 0, 1, 4))
    assert not attached.sent(End) + attached.sent(BarrierReleased) + attached.sent(Leased)
    assert [member.id for member in attached.view.group("eval")] == ["guest-1"]


def test_a_run_ends_without_waiting_for_an_incomplete_group(attached):
    attached.guest("guest-1", size=1000, group="many")
    for node in ("worker-0", "worker-1", "guest-0"):
        attached.finish(node)
        if attached.machine._views._proposal is not None:
            attached.promise()
    attached.confirm()
    assert attached.machine.ended
    assert attached.told(End)["guest-1"] == End()


@pytest.mark.parametrize(
    "message", [ViewRefused((1, 1), (1, 1)), Leave(2), Synced(2, ((0, 0, 1),)), WaitTimes(2, ())]
)
def test_what_servers_say_is_not_taken_from_a_worker(started, message):
    assert "server nodes alone" in started.machine.problem_of(Received("worker-0", message))


def test_a_promise_with_a_view_that_no_scheduler_has_made_is_refused(started):
    view = replace(started.view, servers=())
    promise = Frozen((1, 2), (), adopted=replace(view, tables=(), placements=((),)))
    assert "placements of 1" in started.machine.problem_of(Received("server-0", promise))


@pytest.mark.parametrize("option", ["stop", "drop", "replace"])
def test_a_workers_loss_ends_the_run_or_not_as_the_option_says(rigs, option):
    """With "stop" others went on for a while, and wrote checkpoints without its data."""
    rig = rigs.SchedulerRig(on_worker_loss=option, elastic=option == "replace")
    for number, name in enumerate(("server-0", "worker-0", "worker-1"), 10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    rig.receive("engine", DeathReport("12"))
    assert rig.machine.ended == (option == "stop")
    if option == "stop":
        assert "worker-1 is lost (its process has ended)" in rig.told(End)["worker-0"].error
        return
    rig.promise()
    rig.finish("worker-0")
    rig.confirm()
    assert rig.machine.ended == (option == "drop")
    if option == "replace":
        rig.join("worker-2")
        rig.finish("worker-2")
        rig.confirm()
        assert rig.machine.ended


def test_a_guests_loss_does_not_stop_a_run(rigs):
    rig = rigs.SchedulerRig(on_worker_loss="stop")
    rig.join("server-0", "worker-0", "worker-1")
    rig.receive("guest-0", Join("guest-0", "worker", "", "here", 0, 77, "eval", 1))
    rig.promise()
    rig.receive("engine", DeathReport("77"))
    assert not rig.machine.ended


@pytest.mark.parametrize(("option", "refused"), [("replace", True), ("drop", False)])
def test_a_successor_waits_until_its_predecessor_counts_as_dead(rigs, option, refused):
    """By another rank it would be another worker, and nobody would replace that one."""
    rig = rigs.SchedulerRig(elastic=True, on_worker_loss=option)
    rig.join("server-0", "worker-0", "worker-1")
    again = Join("worker-1-again", "worker", "", "", rank=1)
    rig.receive("worker-1-again", again)
    answers = rig.told(NotJoined)
    assert bool(answers) == refused
    if refused:
        assert answers["worker-1-again"].full
        assert "worker-1 does not count as dead yet" in answers["worker-1-again"].reason
        rig.handle(PeerLost("worker-1"))
        rig.at(rig.now + 3.0)
        rig.receive("worker-1-again", again)
        assert rig.told(Joined)["worker-1-again"].rank == 1


def test_a_run_has_as_many_members_as_views_can_name(rigs, monkeypatch):
    monkeypatch.setattr(members, "MEMBERS_MAX", 3)
    rig = rigs.SchedulerRig(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    rig.receive("worker-2", Join("worker-2", "worker", "", ""))
    assert rig.told(NotJoined)["worker-2"].reason == "a run has at most 3 members"
