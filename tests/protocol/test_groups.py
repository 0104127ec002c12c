"""Worker groups, as scheduler, servers and workers have them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import PeerLost
from shoal.protocol.messages import (
    Abort,
    BarrierArrival,
    BarrierReleased,
    Declare,
    End,
    Finish,
    Frozen,
    GroupProgress,
    Heartbeat,
    Join,
    Joined,
    Lease,
    Leased,
    NewView,
    NotDeclared,
    NotJoined,
    Part,
    Reply,
    Request,
)
from shoal.protocol.namespaces import local, qualified, seen_from
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.protocol.scheduler.membership import next_view
from shoal.protocol.views import FOREVER, Member, valid_group
from shoal.protocol.worker.routing import Router
from shoal.tables.spec import asp, bsp


def guest(rig, name, size=1, group="eval"):
    rig.receive(name, Join(name, "worker", "", "here", group=group, group_size=size))


def incarnation(rig, node):
    return rig.machine.members.by_id[node].incarnation


@pytest.fixture
def started(rigs):
    """A scheduler, a server and two workers in their first view."""
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    return rig


@pytest.fixture
def attached(started):
    guest(started, "guest-0")
    started.promise()
    return started


def alive(rig, now):
    """Everybody is heard of."""
    rig.now = now
    for node, member in list(rig.machine.members.by_id.items()):
        if node not in rig.machine.members.finished:
            rig.receive(node, Heartbeat(member.incarnation, 1, rig.view.id))


# ---------------------------------------------------------------------------- who is in


def test_a_group_begins_when_as_many_are_there_as_it_has(started):
    guest(started, "guest-0", size=2)
    assert started.told(Joined)["guest-0"].rank == 0
    assert started.machine._views._proposal is None
    guest(started, "guest-1", size=2)
    started.promise(clocks=((2, 7), (3, 5)), open_round=5)
    names = [member.name for member in started.view.workers]
    assert names == ["worker-0", "worker-1", "eval/worker-0", "eval/worker-1"]
    assert [member.first_clock for member in started.view.group("eval")] == [0, 0]
    assert started.view.groups() == {"", "eval"}


def test_who_dies_before_the_group_begins_is_waited_for(started):
    guest(started, "guest-0", size=2)
    started.handle(PeerLost("guest-0"))
    alive_at = started.now + 1.9
    alive(started, alive_at)
    started.machine.members.detector.cut_off("guest-0", started.now - 5)
    started.at(started.now + 0.2)
    guest(started, "guest-1", size=2)
    assert started.machine._views._proposal is None
    guest(started, "guest-2", size=2)
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
def test_who_cannot_join(attached, asked, reason):
    attached.receive("x", asked)
    assert reason in attached.told(NotJoined)["x"].reason


def test_a_group_that_has_begun_takes_another_only_where_workers_may_come_and_go(started, rigs):
    guest(started, "guest-0", size=2)
    guest(started, "guest-1", size=2)
    started.promise()
    started.machine.members.remove("guest-1")
    guest(started, "guest-2", size=2)
    assert "too late: group 'eval' has started" in started.told(NotJoined)["guest-2"].reason
    rig = rigs.SchedulerRig(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    guest(rig, "guest-0")
    rig.promise()
    guest(rig, "guest-1")
    frozen = Frozen(rig.machine._views._proposal.number, (), (GroupProgress("eval", 4, 6),))
    rig.receive("server-0", frozen)
    assert [member.first_clock for member in rig.view.workers] == [0, 0, 0, 6]


def test_when_a_group_has_finished_the_others_are_told_and_go_on(attached):
    for node in ("worker-0", "worker-1"):
        attached.receive(node, Finish(incarnation(attached, node)))
    assert not attached.sent(End)
    attached.promise()
    assert attached.view.reason == "the first group finished"
    assert [member.name for member in attached.view.workers] == ["eval/worker-0"]
    assert list(attached.told(NewView)) == ["server-0", "guest-0"]
    attached.receive("guest-0", Finish(incarnation(attached, "guest-0")))
    assert attached.told(End)["server-0"] == End()


def test_a_group_without_any_end_is_not_the_runs(attached):
    attached.receive("guest-0", Abort("it broke"))
    assert attached.told(End) == {"guest-0": End("eval/worker-0: it broke")}
    attached.promise()
    assert [member.name for member in attached.view.workers] == ["worker-0", "worker-1"]
    attached.receive("worker-0", Abort("as well"))
    assert attached.told(End)["server-0"] == End("worker-0: as well")


def test_who_has_finished_long_ago_is_forgotten(attached):
    attached.receive("guest-0", Finish(incarnation(attached, "guest-0")))
    attached.promise()
    assert "guest-0" in attached.machine.members.by_id  # its answer may be lost
    alive(attached, 61.0)
    guest(attached, "guest-1")
    attached.promise()
    assert attached.view.group("eval")[0].rank == 0
    assert "guest-0" not in attached.machine.members.by_id
    assert set(attached.machine.ledgers.records()) <= {""}
    assert not attached.machine.members.finished


def test_who_has_left_is_named_while_rounds_of_its_group_wait(rigs):
    """A worker that has finished could be in any of them."""

    def departed(waits):
        gone = Member("gone", "worker", 0, 9, last_clock=FOREVER, group="eval")
        before = replace(rigs.view_of(servers=1), departed=(gone,))
        members = {m.id: m for m in (*before.servers, *before.workers)}
        promise = Frozen((1, 3), (), (GroupProgress("eval", 4, waits=waits),))
        return next_view((1, 3), members, before, (), [promise], "").departed

    assert len(departed(waits=True)) == 1
    assert departed(waits=False) == ()


def test_a_group_begins_anew_whole_also_while_the_one_before_is_in_the_view(attached):
    attached.receive("guest-0", Abort("it broke"))
    guest(attached, "guest-1", size=2)  # no view is without guest-0 yet
    attached.promise()
    assert attached.view.groups() == {""}
    guest(attached, "guest-2", size=2)
    attached.promise()
    assert len(attached.view.group("eval")) == 2


def test_who_has_finished_can_end_nothing(attached):
    inc = incarnation(attached, "guest-0")
    attached.receive("guest-0", Finish(inc))
    attached.promise()
    guest(attached, "guest-1")
    attached.promise()
    attached.receive("guest-0", Abort("late"))
    attached.receive("guest-0", BarrierArrival(inc, "epoch", 0, ("workers",)))
    attached.receive("guest-0", Lease(inc, 0, 1, 4))
    assert not attached.sent(End) + attached.sent(BarrierReleased) + attached.sent(Leased)
    assert [member.id for member in attached.view.group("eval")] == ["guest-1"]


def test_a_run_does_not_wait_for_who_waits_for_others(attached):
    guest(attached, "guest-1", size=1000, group="many")
    for node in ("worker-0", "worker-1", "guest-0"):
        attached.receive(node, Finish(incarnation(attached, node)))
        if attached.machine._views._proposal is not None:
            attached.promise()
    assert attached.machine.ended
    assert attached.told(End)["guest-1"] == End()


@pytest.mark.parametrize("elastic", [False, True])
def test_of_a_group_that_has_died_the_next_takes_over_what_who_dies_may_be_replaced(rigs, elastic):
    rig = rigs.SchedulerRig(elastic=elastic)
    rig.join("server-0", "worker-0", "worker-1")
    guest(rig, "guest-0", size=2)
    guest(rig, "guest-1", size=2)
    rig.promise()
    one, other = incarnation(rig, "guest-0"), incarnation(rig, "guest-1")
    rig.receive("guest-0", Lease(one, 0, 1, 4))
    rig.receive("guest-0", BarrierArrival(one, "go", 0, ("workers",)))
    for node in ("guest-0", "guest-1"):
        rig.machine._lost(node, "killed", rig.now, [])
    rig.promise(clocks=((one, 0), (other, 0)))
    guest(rig, "guest-2", size=2)
    guest(rig, "guest-3", size=2)
    rig.promise()
    anew = incarnation(rig, "guest-2")
    rig.receive("guest-2", BarrierArrival(anew, "go", 0, ("workers",)))
    assert not rig.sent(BarrierReleased)
    rig.receive("guest-2", Lease(anew, 0, 1, 4 if elastic else 8))
    assert rig.told(Leased)["guest-2"].count == (1 if elastic else 2)


# ---------------------------------------------------------------------------- barriers, leases


def test_barriers_of_a_name_are_one_in_each_group(attached):
    attached.receive(
        "guest-0", BarrierArrival(incarnation(attached, "guest-0"), "epoch", 0, ("workers",))
    )
    assert attached.told(BarrierReleased) == {"guest-0": BarrierReleased("epoch", 0)}
    attached.receive("worker-0", BarrierArrival(2, "epoch", 0, ("workers",)))
    assert not attached.sent(BarrierReleased)
    attached.receive("worker-1", BarrierArrival(3, "epoch", 0, ("workers",)))
    assert set(attached.told(BarrierReleased)) == {"worker-0", "worker-1"}


def test_the_next_group_of_a_name_begins_anew(attached):
    def life(node):
        inc = incarnation(attached, node)
        attached.receive(node, BarrierArrival(inc, "epoch", 0, ("workers",)))
        assert attached.told(BarrierReleased) == {node: BarrierReleased("epoch", 0)}
        attached.receive(node, Lease(inc, 0, 1, 4))
        assert attached.told(Leased)[node] == Leased(0, 0, 0, 2, False)
        attached.receive(node, Finish(inc))
        attached.promise()

    life("guest-0")
    guest(attached, "guest-1")
    attached.promise()
    attached.receive("worker-0", Lease(2, 0, 1, 4))
    assert attached.told(Leased)["worker-0"].first == 0  # of its own
    life("guest-1")


def test_a_scheduler_that_restarts_knows_the_groups(attached, rigs):
    inc = incarnation(attached, "guest-0")
    attached.receive("guest-0", Lease(inc, 0, 1, 4))
    attached.receive("guest-0", BarrierArrival(inc, "epoch", 0, ("workers",)))
    again = rigs.SchedulerRig(attached.journal)
    again.at(0.0)
    again.promise()
    assert again.view.group("eval")[0].group_size == 1
    again.receive("guest-0", BarrierArrival(inc, "epoch", 0, ("workers",)))
    assert again.told(BarrierReleased) == {"guest-0": BarrierReleased("epoch", 0)}
    again.receive("guest-0", Lease(inc, 2, 1, 4))
    assert again.told(Leased)["guest-0"] == Leased(2, 0, 2, 1, False)


# ---------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("name", "rule", "owner"),
    [
        ("eval/w", bsp(), "eval"),
        ("w", asp(), ""),
        ("other/w", asp(), ""),
        ("w", bsp(), None),
        ("a//b", asp(), None),
        ("eval/", asp(), None),
    ],
)
def test_whose_clocks_a_table_goes_by_follows_from_its_name(attached, rigs, name, rule, owner):
    spec = replace(rigs.table(rule, name=name), group="somebody's")
    attached.receive("guest-0", Declare(incarnation(attached, "guest-0"), spec))
    if owner is None:
        assert attached.told(NotDeclared)["guest-0"].table == name
        return
    attached.promise()
    assert [(each.name, each.group) for each in attached.view.tables] == [(name, owner)]


def test_another_group_may_declare_what_is_there(attached, rigs):
    attached.receive("worker-0", Declare(2, rigs.table(bsp())))
    attached.promise()
    attached.receive("guest-0", Declare(incarnation(attached, "guest-0"), rigs.table(bsp())))
    assert attached.told(NewView)["guest-0"].view.tables[0].group == ""


@given(
    name=st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1),
    space=st.text("ab1-_", max_size=3),
)
def test_names_are_what_they_were_taken_back(name, space):
    full = name.lstrip("/") or "w"
    assert qualified(local(full, space), space) == full
    assert valid_group(space)


def test_a_view_has_the_names_that_a_worker_says(rigs):
    tables = tuple(rigs.table(name=name) for name in ("w", "eval/w", "evaluation/w"))
    view = rigs.view_of(servers=1, tables=tables)
    assert seen_from(view, "") is view
    seen = seen_from(view, "eval")
    assert [spec.name for spec in seen.tables] == ["/w", "w", "/evaluation/w"]
    assert seen.placements_of("w") == view.placements_of("eval/w")


def test_who_may_push_what(rigs):
    tables = (rigs.table(bsp()), rigs.table(asp(), name="shared"))
    view = rigs.view_of(servers=1, tables=tables)
    router, rows = Router(view, "eval"), KeyRange(0, 4)
    with pytest.raises(InvalidValue, match="table 'w' is bsp and goes by the clocks of the first"):
        router.sub_requests(Exchange((PushOp("w", rows, rigs.as_bytes(1, 1, 1, 1)),)))
    assert router.sub_requests(Exchange((PushOp("shared", rows, rigs.as_bytes(1, 1, 1, 1)),)))
    out = memoryview(bytearray(32))
    assert router.sub_requests(Exchange(pulls=(PullOp("w", rows, out),)))
    assert Router(view).sub_requests(Exchange(pulls=(PullOp("/w", rows, out),)))  # as others say it


@pytest.fixture
def server(rigs):
    """A server of two workers and a guest, with a table of each kind."""
    theirs = replace(rigs.table(bsp(), name="eval/w", fragment_rows=4), group="eval")
    tables = (
        rigs.table(bsp(), fragment_rows=4),
        rigs.table(asp(), name="shared", fragment_rows=4),
        theirs,
    )
    view = rigs.view_of(servers=1, tables=tables)
    there = Member("guest", "worker", 0, 31, group="eval", group_size=1)
    rig = rigs.ServerRig()
    rig.adopt(replace(view, number=2, workers=(*view.workers, there)))
    return rig


def ask(rig, seq, table, push=True, **more):
    """A guest's request."""
    parts = (Part(table, 0, 4),)
    asked = {"pushes": parts} if push else {"pulls": parts}
    payload = (1).to_bytes(8, "little") * 4 if push else b""
    rig.receive("guest", Request(rig.view.id, 31, seq, 0, 0, **asked, **more), payload)
    return [(each.code, each.clock_min) for each in rig.sent(Reply)]


def test_a_server_lets_guests_push_what_is_theirs_or_asynchronous(server):
    assert ask(server, 0, 0) == [("refused", 0)]
    assert ask(server, 1, 1) == [("applied", 0)]
    assert ask(server, 2, 2, advance=1) == [("applied", -1)]  # nobody else is in its rounds
    assert ask(server, 3, 0, push=False) == [("applied", 1)]  # and it waits for nobody


def test_clocks_of_groups_that_have_gone_are_forgotten():
    clocks = Clocks()
    clocks.enter(1, 3)
    clocks.enter(2, 5, "eval")
    clocks.leave(2)
    assert 2 not in clocks
    clocks.keep({"", "more"})
    assert clocks.groups() == ["", "more"]
    assert (clocks.of("").minimum, clocks.of("more").minimum) == (3, FOREVER)
