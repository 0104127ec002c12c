"""The scheduler by hand: joins, views, deaths."""

import msgspec
import pytest

from shoal.errors import JoinTimeout, RunAborted
from shoal.protocol.machine import PeerLost, Persist, Send
from shoal.protocol.messages.membership import (
    Abort,
    BarrierArrival,
    Declare,
    End,
    Finish,
    Freeze,
    Frozen,
    GroupProgress,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Joined,
    NewView,
    NotDeclared,
    NotJoined,
)
from shoal.protocol.scheduler.notes import (
    MemberLost,
    OutOfDate,
    ReplicasCrowded,
    ViewImpossible,
    ViewMade,
)
from shoal.tables.spec import Access, TableSpec


@pytest.fixture
def make(rigs):
    return rigs.SchedulerRig


@pytest.fixture
def cluster(make):
    """In its first view."""
    rig = make()
    rig.join("server-0", "worker-0", "worker-1")
    return rig


# ---------------------------------------------------------------------------- joining


def test_the_first_view_waits_for_all_joins_and_for_frozen_servers(make):
    rig = make()
    rig.join("server-0", "worker-0")
    assert rig.view is None
    assert rig.notes(ViewImpossible) == [
        ViewImpossible(reason="waiting for 1 of 2 workers (worker-1)")
    ]
    rig.receive("worker-1", Join("worker-1", "worker", "", ""))
    assert rig.told(Freeze) == {"server-0": Freeze((1, 1))}
    assert rig.view is None
    rig.promise()
    assert rig.view.id == (1, 1)
    assert sorted(rig.told(NewView)) == ["server-0", "worker-0", "worker-1"]


def test_a_join_gets_a_new_incarnation_and_the_rank_it_asks_for_if_free(make):
    rig = make()
    for node, wish in (("a", 1), ("b", 1), ("c", -1)):
        rig.receive(node, Join(node, "worker" if node != "c" else "server", "", "", wish))
    joined = {node: (m.incarnation, m.name) for node, m in rig.machine.members.by_id.items()}
    assert joined == {"a": (1, "worker-1"), "b": (2, "worker-0"), "c": (3, "server-0")}


def test_a_repeated_join_gets_the_same_answer(make):
    rig = make()
    rig.join("worker-0")
    assert rig.sent(Joined) == [Joined(1, 0)]
    rig.join("worker-0")
    assert rig.sent(Joined) == [Joined(1, 0)]
    assert len(rig.machine.members.by_id) == 1


def test_a_repeated_join_does_not_delay_a_proposed_view(make):
    """Each would once have begun another view, and made the servers' promises void."""
    rig = make(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    late = Join("worker-2", "worker", "", "")
    rig.receive("worker-2", late)
    assert rig.told(Freeze) == {"server-0": Freeze((1, 2), (1, 1))}
    rig.receive("worker-2", late)
    rig.receive("worker-3", Join("worker-3", "worker", "", ""))
    assert rig.sent(Freeze) == []
    rig.receive("server-0", Frozen((1, 2), (), (GroupProgress("", 5),)))
    rig.adopt()
    assert [m.first_clock for m in rig.view.workers] == [0, 0, 5, 5]
    assert rig.view.reason == "worker-2, worker-3 joined"


def test_a_late_or_surplus_join_is_refused_with_its_reason(make):
    rig = make()
    rig.join("worker-0", "worker-1", "worker-2")
    reason = "too many: this run has 2 workers and all of them have joined"
    assert rig.sent() == [NotJoined(reason, full=True)]
    rig.join("server-0", "worker-3")
    assert rig.sent() == [NotJoined("too late: the run has started with all its 2 workers")]
    rig.receive("x", Join("x", "scheduler", "", ""))
    assert rig.sent() == [NotJoined("there is a scheduler already")]


def test_a_server_may_join_a_running_run_that_refuses_workers(make):
    rig = make()
    rig.join("server-0", "worker-0", "worker-1", "server-1")
    assert [member.name for member in rig.machine.view.servers] == ["server-0", "server-1"]
    rig.join("worker-2")
    assert "too late" in rig.sent(NotJoined)[0].reason


def test_a_join_timeout_names_the_missing_members(make):
    rig = make(join_timeout_s=60, failure_timeout_s=100)
    rig.join("server-0", "worker-1")
    rig.at(60.0)
    reason = "missing after 60 s: 1 of 2 workers (worker-1)"
    assert rig.told(End) == {"server-0": End(reason), "worker-1": End(reason)}
    rig.receive("worker-1", Join("worker-1", "worker", "", ""))  # it has not heard yet
    assert rig.sent() == [End(reason)]
    rig.at(62.0)
    assert isinstance(rig.stop.error, JoinTimeout)
    assert rig.stop.error.message == reason


def test_a_member_lost_before_the_first_view_is_waited_for_again(make):
    rig = make(servers=2, workers=1)
    for node in ("server-0", "server-1", "worker-0"):
        rig.receive(node, Join(node, node.split("-")[0], "", ""))
    rig.receive("server-0", Frozen((1, 1), ()))
    rig.now = 5.0
    for node in ("server-0", "worker-0"):
        rig.receive(node, Join(node, node.split("-")[0], "", ""))
    rig.at(10.0)  # server-1 was silent
    assert [note.name for note in rig.notes(MemberLost)] == ["server-1"]
    rig.receive("server-0", Frozen((1, 1), ()))
    assert rig.view is None
    rig.join("server-1")
    assert rig.view.id == (1, 2)
    assert len(rig.view.servers) == 2


def test_a_join_of_a_member_that_was_declared_dead_is_refused_once_there_is_a_view(make):
    rig = make(failure_timeout_s=10)
    rig.join("server-0", "worker-0", "worker-1", "server-1")
    former = rig.machine.view.member("server-1").incarnation
    rig.now = 5.0
    for node in ("server-0", "worker-0", "worker-1"):
        rig.receive(node, Heartbeat(rig.machine.view.member(node).incarnation, rig.view.id))
    rig.at(10.0)  # server-1 was silent; the view with it may still be on its way there
    assert [note.name for note in rig.notes(MemberLost)] == ["server-1"]
    rig.receive("server-1", Join("server-1", "server", "", "", incarnation=former))
    assert "declared dead" in rig.told(NotJoined)["server-1"].reason
    rig.receive("server-1", Join("server-1", "server", "", ""))  # started again
    assert rig.sent(Joined)[0].incarnation > former


def test_a_join_in_another_nodes_name_is_refused(make):
    rig = make()
    rig.receive("worker-0", Join("worker-1", "worker", "", ""))
    assert rig.told(NotJoined) == {
        "worker-0": NotJoined("the message names a member other than its sender")
    }


# ---------------------------------------------------------------------------- views


def test_a_freeze_is_repeated_until_every_server_is_frozen(make):
    rig = make()
    for node in ("server-0", "worker-0", "worker-1"):
        rig.receive(node, Join(node, node.split("-")[0], "", ""))
    rig.at(0.25)
    assert rig.told(Freeze) == {"server-0": Freeze((1, 1))}
    rig.receive("server-0", Frozen((1, 9), ()))  # of another view
    assert rig.view is None
    rig.promise()
    rig.at(0.5)
    assert rig.sent(Freeze) == []


def test_a_view_is_journaled_before_it_is_sent(cluster):
    kinds = [
        "disk" if isinstance(each, Persist) else "told"
        for each in cluster.effects
        if isinstance(each, Persist)
        or (isinstance(each, Send) and isinstance(each.message, NewView))
    ]
    assert kinds == ["disk", "told", "told", "told"]


def test_a_declared_table_is_in_the_next_view(cluster, rigs):
    spec = rigs.table(fragment_rows=0)
    cluster.receive("worker-0", Declare(2, spec))
    cluster.promise()
    assert cluster.view.reason == "table 'w' was declared"
    assert [table.name for table in cluster.view.tables] == ["w"]
    assert cluster.view.tables[0].fragment_rows > 0
    cluster.receive("worker-1", Declare(3, spec))
    assert cluster.sent() == [NewView(cluster.view)]
    cluster.receive("worker-1", Declare(3, msgspec.structs.replace(spec, access=Access("assign"))))
    difference = "access is 'assign', and was declared as 'sum'"
    told = f"table 'w' exists with another specification. {difference}"
    assert cluster.sent() == [NotDeclared("w", told)]


def test_a_table_declared_before_the_first_view_is_in_the_second(make, rigs):
    rig = make()
    rig.join("server-0", "worker-0")
    rig.receive("worker-0", Declare(2, rigs.table()))
    assert rig.sent() == []
    rig.join("worker-1")
    rig.promise()
    assert [table.name for table in rig.view.tables] == ["w"]


def test_without_servers_a_table_is_refused(make, rigs):
    rig = make(servers=0)
    rig.join("worker-0", "worker-1")
    assert rig.view.id == (1, 1)
    rig.receive("worker-0", Declare(1, rigs.table()))
    assert "no servers to keep tables" in rig.sent(NotDeclared)[0].reason


def test_a_heartbeat_is_answered_and_with_the_view_if_it_has_an_old_one(cluster):
    cluster.receive("worker-0", Heartbeat(2, (1, 1)))
    assert cluster.sent() == [HeartbeatSeen()]
    cluster.receive("worker-0", Heartbeat(2, (0, 0)))
    assert cluster.sent() == [HeartbeatSeen(), NewView(cluster.view)]


def test_a_heartbeat_of_a_stranger_is_answered_with_the_end(cluster):
    cluster.receive("worker-9", Heartbeat(9, (1, 1)))
    assert "no member of the run" in cluster.sent(End)[0].error


def test_replicas_on_one_host_are_noted_until_another_host_joins(make):
    rig = make(servers=2, workers=1, replicas=2)
    rig.join("server-0", "server-1", "worker-0")
    rig.receive("worker-0", Declare(3, TableSpec("w", 8)))
    rig.promise()
    assert rig.notes(ReplicasCrowded) == [ReplicasCrowded(hosts=["here"])]
    rig.receive("server-2", Join("server-2", "server", "", "there"))
    rig.promise()
    assert rig.notes(ReplicasCrowded) == []


# ---------------------------------------------------------------------------- deaths


def test_messages_of_an_earlier_incarnation_are_ignored(make):
    """Seed 903: a worker taken for dead, its old Join that came in late, and then its Finish."""
    rig = make(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    rig.now = 9.0
    rig.receive("server-0", Heartbeat(1, (1, 1)))
    rig.receive("worker-1", Heartbeat(3, (1, 1)))
    rig.at(10.0)
    rig.promise()
    assert rig.notes(MemberLost) == []  # of this event; the one before lost worker-0
    assert "worker-0" not in rig.machine.members.by_id
    rig.join("worker-0")
    assert rig.machine.members.by_id["worker-0"].incarnation == 4
    for message in (
        Finish(2),
        Heartbeat(2, (1, 1)),
        BarrierArrival(2, "epoch", 0, ("workers",)),
    ):
        rig.now += 1.0
        rig.receive("worker-0", message)
        assert rig.sent() == []
        assert rig.notes(OutOfDate)
    assert rig.machine.members.finished == set()
    rig.now = 19.0
    rig.receive("server-0", Heartbeat(1, (1, 1)))
    rig.receive("worker-1", Heartbeat(3, (1, 1)))
    rig.at(20.0)  # the new self was never heard of
    assert [note.name for note in rig.notes(MemberLost)] == ["worker-0"]


def test_the_first_view_closes_gaps_among_the_ranks(make):
    """Seed 881: a replacement joined before the death was noticed, and got a rank too high."""
    rig = make(elastic=True)
    rig.join("worker-0", "worker-1")
    rig.receive("other", Join("other", "worker", "", ""))
    assert rig.machine.members.by_id["other"].rank == 2
    rig.handle(PeerLost("worker-0"))
    rig.at(2.0)
    assert sorted(rig.machine.members.by_id) == ["other", "worker-1"]
    rig.join("server-0")
    assert [(m.id, m.rank) for m in rig.view.workers] == [("worker-1", 0), ("other", 1)]
    assert {m.rank for m in rig.machine.members.by_id.values() if m.role == "worker"} == {0, 1}


def test_a_silent_worker_departs_with_its_last_clock(make):
    rig = make(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    rig.now = 5.0
    for node, incarnation in (("server-0", 1), ("worker-0", 2)):
        rig.receive(node, Heartbeat(incarnation, (1, 1)))
    rig.at(10.0)
    assert [note.name for note in rig.notes(MemberLost)] == ["worker-1"]
    rig.promise(clocks=((2, 9), (3, 7)), open_round=7)
    assert rig.view.reason == "worker-1 left"
    assert [(m.name, m.last_clock) for m in rig.view.departed] == [("worker-1", 7)]


def test_a_heartbeat_after_a_broken_connection_keeps_a_member(cluster):
    cluster.handle(PeerLost("worker-0"))
    cluster.handle(PeerLost("worker-1"))
    cluster.receive("worker-0", Heartbeat(2, (1, 1)))
    cluster.at(2.0)
    assert [note.name for note in cluster.notes(MemberLost)] == ["worker-1"]


def test_a_sole_replicas_death_ends_the_run_and_names_the_server(make):
    cluster = make(same_host=True)  # where a connection that broke is a proof
    cluster.join("server-0", "worker-0", "worker-1")
    cluster.handle(PeerLost("server-0"))
    cluster.at(2.0)
    told = cluster.told(End)
    assert sorted(told) == ["worker-0", "worker-1"]
    assert "server-0 on here died" in told["worker-0"].error
    cluster.at(5.0)
    assert isinstance(cluster.stop.error, RunAborted)


def test_two_deaths_in_one_tick_end_the_run_without_another_view(make):
    """It once went on to make a view without any server."""
    cluster = make(same_host=True)
    cluster.join("server-0", "worker-0", "worker-1")
    for node in ("server-0", "worker-1"):
        cluster.handle(PeerLost(node))
    cluster.at(2.0)
    assert len(cluster.notes(MemberLost)) == 1
    assert cluster.notes(ViewMade) == []
    assert cluster.view.id == (1, 1)


def test_the_last_workers_death_ends_the_run(cluster):
    for node in ("worker-0", "worker-1"):
        cluster.handle(PeerLost(node))
    cluster.at(2.0)
    assert cluster.told(End) == {"server-0": End("every worker has died")}


def test_an_elastic_run_outlives_its_last_worker(make):
    rig = make(elastic=True, workers=1)
    rig.join("server-0", "worker-0")
    rig.handle(PeerLost("worker-0"))
    rig.at(2.0)
    assert not rig.machine.ended


def test_an_abort_ends_the_run_with_its_reason(cluster):
    cluster.receive("worker-1", Abort("out of memory"))
    assert cluster.told(End)["worker-0"] == End("worker-1: out of memory")
