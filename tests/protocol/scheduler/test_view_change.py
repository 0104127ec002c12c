"""A view is offered to the servers of the view before, and is made when one has adopted it."""

import pytest
from msgspec.structs import replace

from shoal.errors import RangeLost
from shoal.protocol.messages.admin import DeathReport
from shoal.protocol.messages.membership import (
    Declare,
    End,
    Finished,
    Freeze,
    Frozen,
    GroupProgress,
    Heartbeat,
    Join,
    NewView,
    ViewRefused,
)
from shoal.protocol.scheduler.notes import MemberLost, ViewDropped, ViewMade, ViewOffered
from shoal.protocol.views import NO_VIEW
from shoal.tables.consistency import bsp


@pytest.fixture
def rig(rigs):
    """Two servers with two replicas, two workers, and a view that is offered: a worker left."""
    rig = rigs.SchedulerRig(elastic=True, servers=2, replicas=2)
    for number, name in enumerate(("server-0", "server-1", "worker-0", "worker-1"), start=10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    rig.receive("worker-0", Declare(3, rigs.table()))
    rig.promise()
    rig.receive("engine", DeathReport("13"))
    promise(rig)
    return rig


def promise(rig, **more):
    number = rig.machine._views._proposal.number
    for server in rig.machine.members.servers():
        rig.receive(server, Frozen(number, (), **more))


def beat(rig, node, view):
    rig.receive(node, Heartbeat(rig.incarnation(node), view))


def test_a_view_is_offered_to_the_servers_of_the_one_before(rig):
    assert rig.told(NewView).keys() == {"server-0", "server-1"}
    assert rig.view.number == 2
    assert rig.notes(ViewOffered)[0].view == (1, 3)
    assert "to adopt it" in rig.why()[0].reason


def test_the_first_server_that_adopts_it_makes_it_the_view_and_the_others_are_told(rig):
    beat(rig, "server-1", (1, 3))
    assert rig.view.number == 3
    assert rig.told(NewView).keys() == {"worker-0"}
    assert rig.notes(ViewMade)[0].view == (1, 3)


def test_a_server_without_it_is_sent_it_again_and_a_worker_is_not(rig):
    beat(rig, "server-0", (1, 2))
    assert rig.told(NewView)["server-0"].view.number == 3
    beat(rig, "worker-0", (1, 2))
    assert rig.sent(NewView) == []


def test_a_worker_has_not_finished_before_new_heads_know_its_clocks(rig):
    """Seed 957240: it left with the view before, and a head of the next waited for its clock."""
    assert rig.finish("worker-0", (1, 2)) == []
    beat(rig, "server-1", (1, 3))
    rig.finish("worker-0", (1, 2))
    assert rig.sent(Finished) == []
    assert not rig.machine.members.finished
    rig.finish("worker-0", (1, 3))
    assert rig.machine.members.finished == {"worker-0"}
    rig.finish("worker-0", (1, 2))  # a copy that took longer
    assert rig.sent() == [Finished()]


def test_a_worker_that_an_offered_view_lacks_finishes_before_it_is_adopted(rigs):
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    rig.receive("worker-1", Declare(3, rigs.table()))
    rig.open()
    rig.finish("worker-0", (1, 1))  # frozen servers have its clocks
    promise(rig)
    assert [each.id for each in rig.machine._views.offered.workers] == ["worker-1"]
    rig.finish("worker-0", (1, 1))
    assert rig.sent() == [Finished()]


def test_a_worker_that_leaves_before_it_has_had_its_first_view_is_lost(rigs):
    """Its join has timed out, and the view that counts on it is on its way."""
    rig = rigs.SchedulerRig(on_worker_loss="drop")
    rig.join("server-0", "worker-0", "worker-1")
    rig.finish("worker-0", NO_VIEW)
    assert [note.how for note in rig.notes(MemberLost)] == ["it left before its first view"]


def test_a_refused_view_is_dropped_and_another_is_made_of_the_one_before(rig):
    rig.receive("server-0", ViewRefused((1, 3), (1, 2)))
    assert rig.told(Freeze)["server-0"] == Freeze((1, 4), (1, 2))
    promise(rig)
    assert rig.notes(ViewDropped)[0].view == (1, 3)
    beat(rig, "server-0", (1, 4))
    assert rig.view.number == 4
    assert [worker.id for worker in rig.view.workers] == ["worker-0"]


def test_a_proposal_that_a_server_has_refused_is_made_again_with_another_number(rig):
    beat(rig, "server-0", (1, 3))
    rig.receive("worker-2", Join("worker-2", "worker", "", "here"))
    rig.receive("server-0", ViewRefused((1, 4), (1, 3)))
    assert rig.told(Freeze)["server-1"] == Freeze((1, 5), (1, 3))


def test_the_newest_view_that_a_server_has_adopted_is_the_one_before(rig):
    """Its heartbeat was lost."""
    offered = rig.machine._views.offered
    rig.receive("server-0", ViewRefused((1, 3), (1, 2)))
    promise(rig, adopted=offered)
    assert rig.view == offered
    assert rig.machine._views.offered.number == 4


def test_a_restarted_scheduler_knows_the_offered_view(rig):
    again = rig.restart()
    again.at(0.0)
    assert again.view.number == 2
    promise(again, adopted=rig.machine._views.offered)
    assert again.view.number == 3
    again.adopt()
    assert again.view.number == 4


def test_a_view_of_an_earlier_scheduler_that_this_one_never_heard_of_counts(rig):
    journal = rig.journal
    offered = replace(rig.machine._views.offered, number=7)
    again = type(rig)(journal, servers=2, replicas=2, elastic=True)
    again.at(0.0)
    promise(again, adopted=offered)
    assert again.view == offered


def test_a_view_whose_servers_have_died_is_made_at_once(rigs):
    rig = rigs.SchedulerRig(elastic=True)  # there is no table
    for number, name in enumerate(("server-0", "worker-0", "worker-1"), start=10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    rig.receive("server-1", Join("server-1", "server", "", "here", launch="20"))
    promise(rig)
    rig.receive("engine", DeathReport("10"))
    assert rig.view.number == 2
    assert {"server-1", "worker-0", "worker-1"} <= rig.told(NewView).keys()


def test_a_worker_that_left_is_named_as_long_as_its_pushes_wait(rigs):
    rig = rigs.SchedulerRig(elastic=True)
    for number, name in enumerate(("server-0", "worker-0", "worker-1"), start=10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    rig.receive("worker-0", Declare(2, rigs.table(bsp())))
    rig.promise()
    rig.receive("engine", DeathReport("12"))
    departed = []
    for waits in (True, True, False):
        progress = (GroupProgress("", 1, waits=waits),)
        number = rig.machine._views._proposal.number
        rig.receive("server-0", Frozen(number, ((2, 1), (3, 4)), progress))
        rig.adopt()
        departed.append([(each.id, each.last_clock) for each in rig.view.departed])
        name = f"worker-{1 + len(departed)}"
        rig.receive(name, Join(name, "worker", "", "here", launch=f"2{len(departed)}"))
    assert departed == [[("worker-1", 4)], [("worker-1", 4)], []]


@pytest.fixture
def moving(rigs):
    """All rows of server-0 have moved to server-1 in a view that is offered."""
    rig = rigs.SchedulerRig(elastic=True)
    for number, name in enumerate(("server-0", "server-1", "worker-0", "worker-1"), start=10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
        if rig.machine._views._proposal is not None:
            rig.promise()
    rig.receive("worker-0", Declare(3, rigs.table()))
    rig.promise()
    rig.receive("worker-2", Join("worker-2", "worker", "", "here", launch="14"))
    promise(rig)
    views = rig.machine._views
    moved = tuple(
        tuple(replace(each, chain=(1,), syncing_since=0) for each in parts)
        for parts in views.view.placements
    )
    kept = tuple(tuple(replace(each, chain=(0,)) for each in parts) for parts in moved)
    views.view = replace(views.view, placements=kept)
    views.offered = replace(views.offered, placements=moved)
    return rig


@pytest.mark.parametrize("launch", ["10", "11"])
def test_rows_that_are_in_one_of_the_two_views_are_not_lost_before_one_is_adopted(moving, launch):
    moving.receive("engine", DeathReport(launch))
    assert moving.sent(End) == []


def test_the_run_ends_when_the_view_is_dropped_that_had_the_rows(moving):
    moving.receive("engine", DeathReport("10"))
    moving.receive("server-1", ViewRefused(moving.machine._views.offered.id, moving.view.id))
    promise(moving)
    assert "server-0 died with the last replica of" in moving.sent(End)[0].error
    assert moving.sent(End)[0].kind == "lost"
    assert isinstance(moving.machine._shutdown._error, RangeLost)


def without_server_1(rig):
    """The offered view is one without server-1, which is about to leave: all rows on server-0."""
    views = rig.machine._views
    alone = tuple(
        tuple(replace(each, chain=(0,), syncing_since=0) for each in parts)
        for parts in views.offered.placements
    )
    servers = views.offered.servers[:1]
    views.offered = replace(views.offered, servers=servers, placements=alone)
    return alone


def test_an_offered_view_whose_servers_have_died_is_dropped_where_another_has_the_rows(rig):
    without_server_1(rig)
    rig.receive("engine", DeathReport("10"))
    assert rig.sent(End) == rig.sent(NewView) == []
    assert rig.notes(ViewDropped)[0].view == (1, 3)
    assert rig.told(Freeze)["server-1"] == Freeze((1, 4), (1, 2))
    promise(rig)
    rig.adopt()
    assert rig.view.number == 4
    assert {each.chain for parts in rig.view.placements for each in parts} == {(1,)}


def test_nobody_is_told_an_offered_view_that_was_lost_with_its_servers(rig):
    """Servers that thaw may have refused it."""
    alone = without_server_1(rig)
    rig.machine._views.view = replace(rig.view, placements=alone)
    rig.receive("engine", DeathReport("10"))
    assert rig.sent(NewView) == rig.notes(ViewMade) == []
    assert "with the last replica of w" in rig.sent(End)[0].error
