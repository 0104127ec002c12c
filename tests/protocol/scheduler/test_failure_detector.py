"""Detection: no fixed time-out; nobody is blamed for the scheduler's own pauses."""

import pytest
from msgspec.structs import replace

from shoal.protocol.machine import PeerLost
from shoal.protocol.messages.admin import DeathReport
from shoal.protocol.messages.membership import (
    Busy,
    End,
    Frozen,
    Heartbeat,
    Join,
    Leave,
    ProcessHeartbeat,
)
from shoal.protocol.scheduler.failure_detector import HALVES_S, LOOK_S, PATIENCE, FailureDetector
from shoal.protocol.scheduler.notes import MemberLost
from shoal.protocol.scheduler.options import SchedulerOptions

OPTIONS = SchedulerOptions(
    servers=1, workers=1, failure_timeout_s=10.0, silence_most_s=40.0, broken_s=2.0
)


@pytest.fixture
def detector():
    return FailureDetector(OPTIONS)


@pytest.fixture
def cluster(rigs):
    """A server that has a table alone, and two workers."""
    rig = rigs.SchedulerRig(sole_replica_timeout_s=60.0)
    rig.join("server-0", "worker-0", "worker-1")
    return rig


def beats(detector, *times):
    for now in times:
        detector.heard_of("a", now, beat=True)


def process_beats(detector, times, turns, at="", in_user_code=False):
    """A heartbeat of the process at each time, with the number of its loop's turns."""
    for now, turn in zip(times, turns, strict=True):
        detector.process_lives(ProcessHeartbeat("a", 1, turn, at, in_user_code), float(now))


def alive(rig, *nodes):
    for node in nodes:
        member = rig.machine.members.by_id[node]
        rig.receive(node, Heartbeat(member.incarnation, rig.view.id))


def test_a_regular_member_has_the_lowest_limit(detector):
    beats(detector, *range(20))
    assert detector.limit("a") == OPTIONS.failure_timeout_s
    assert detector.wakes_at() == 19 + OPTIONS.failure_timeout_s - LOOK_S


def test_a_late_heartbeat_raises_the_members_limit(detector):
    beats(detector, 0, 1, 2, 3, 11)  # seven seconds late
    assert detector.limit("a") > PATIENCE * 6
    assert detector.silent(11 + 2 * OPTIONS.failure_timeout_s - 1) == []


def test_a_raised_limit_decays_with_regular_heartbeats(detector):
    beats(detector, 0, 1, 2, 3, 11)
    beats(detector, *range(12, 12 + int(4 * HALVES_S)))
    assert detector.limit("a") == OPTIONS.failure_timeout_s


def test_a_limit_is_capped_at_silence_most(detector):
    beats(detector, 0, 1, 500)
    assert detector.limit("a") == OPTIONS.silence_most_s


def test_a_late_heartbeat_raises_the_limit_of_a_broken_connection_too(detector):
    beats(detector, 0, 1, 2, 6)
    detector.cut_off("a", 6.0)
    assert detector.silent(6.0 + OPTIONS.broken_s) == []
    assert detector.silent(6.0 + PATIENCE * 3.0) == []  # and once more
    assert detector.silent(6.0 + PATIENCE * 3.0 + LOOK_S) == ["a"]
    assert "its connection broke" in detector.how("a", 15.0)


def test_a_heartbeat_clears_a_broken_connection(detector):
    beats(detector, 0, 1)
    detector.cut_off("a", 1.0)
    detector.heard_of("a", 2.0)
    assert detector.silent(1.0 + OPTIONS.broken_s) == []


def test_a_member_whose_loop_is_busy_is_alive_as_long_as_its_process_says_so(detector):
    beats(detector, 0, 1)
    process_beats(detector, range(2, 40), [7] * 38, "restore (shard.py:310)")
    assert detector.silent(41.0) == []
    assert detector.busy(41.0) == [("a", "restore (shard.py:310)", 39.0)]
    process_beats(detector, [42], [8])
    assert detector.busy(42.0) == []
    assert detector.limit("a") == OPTIONS.failure_timeout_s  # a busy loop is no late heartbeat


def test_a_process_that_ends_with_its_loop_busy_is_dead_after_the_silence(detector):
    beats(detector, 0, 1)
    process_beats(detector, range(2, 30), [7] * 28, "restore (shard.py:310)")
    last = 29.0
    assert detector.silent(last + OPTIONS.failure_timeout_s) == []
    assert detector.silent(last + OPTIONS.failure_timeout_s + LOOK_S) == ["a"]
    assert "not heard of for 10" in detector.how("a", last + OPTIONS.failure_timeout_s + LOOK_S)


def test_a_member_whose_loop_makes_no_turn_for_the_hang_time_out_is_hung(detector):
    beats(detector, 0, 1)
    process_beats(detector, range(2, 80), [7] * 78, "wait (shard.py:31)")
    assert detector.silent(80.0) == []  # suspected
    process_beats(detector, [80], [7], "wait (shard.py:31)")
    assert detector.silent(80.0 + LOOK_S) == ["a"]
    assert detector.how("a", 80.0) == "hung: its loop has been at wait (shard.py:31) for 78 s"


def test_a_users_code_may_take_any_time(detector):
    beats(detector, 0, 1)
    process_beats(detector, range(2, 300), [7] * 298, "push (mine.py:3)", in_user_code=True)
    assert detector.silent(300.0) == []
    process_beats(detector, range(300, 350), [7] * 50, "merge (shard.py:9)")
    assert detector.silent(350.0) == []  # it hangs for less than the time-out since


def test_a_heartbeat_that_was_sent_before_its_process_died_does_not_hide_the_death(detector):
    beats(detector, 0, 1)
    detector.cut_off("a", 1.5)
    process_beats(detector, [1.5], [7])
    detector.silent(1.5 + OPTIONS.broken_s)
    assert detector.silent(1.5 + OPTIONS.broken_s + LOOK_S) == ["a"]


def test_a_process_that_sends_heartbeats_after_its_connection_broke_is_alive(detector):
    beats(detector, 0, 1)
    detector.cut_off("a", 1.5)
    process_beats(detector, [2.5], [7], "restore (shard.py:310)")
    detector.silent(2.5 + OPTIONS.broken_s)
    assert detector.silent(2.5 + OPTIONS.broken_s + LOOK_S) == []


def test_workers_are_told_of_a_server_that_is_busy(cluster):
    server = cluster.machine.members.by_id["server-0"]
    at = "merge (shard.py:9)"
    for now in (1.0, 2.0):
        cluster.now = now
        cluster.receive("x", ProcessHeartbeat("server-0", server.incarnation, 5, at))
    assert cluster.told(Busy) == dict.fromkeys(["worker-0", "worker-1"], Busy("server-0", at))
    [wait] = [each for each in cluster.why() if each.longest[0][0] == "server-0"]
    assert (wait.reason, wait.longest[0][1]) == (f"its loop is at {at}", 1.0)


def test_a_heartbeat_of_a_former_incarnation_keeps_nobody_alive(cluster):
    for now in range(12):
        cluster.at(float(now))
        alive(cluster, "server-0", "worker-1")
        cluster.receive("x", ProcessHeartbeat("worker-0", 99, now))
    assert "worker-0" not in cluster.machine.members.by_id


def test_a_scheduler_that_was_stopped_declares_no_member_dead_for_its_own_pause(cluster):
    """It was SIGSTOPped for a minute: what its members have said meanwhile is still unread."""
    cluster.now = 60.0
    alive(cluster, "worker-0")
    assert cluster.notes(MemberLost) == []
    cluster.at(60.5)
    assert cluster.notes(MemberLost) == []
    alive(cluster, "server-0")
    cluster.at(63.0)  # and worker-1 has really gone
    assert [note.name for note in cluster.notes(MemberLost)] == ["worker-1"]


def test_a_sole_replica_is_waited_for_longer_when_its_death_is_not_proven(cluster):
    for now in range(0, 60, 5):
        cluster.at(float(now))
        assert cluster.notes(MemberLost) == []
        alive(cluster, "worker-0", "worker-1")
    [wait] = [each for each in cluster.why() if each.what == "server-0"]
    assert wait.longest[0][0] == "the scheduler"
    assert "nobody else has" in wait.reason
    assert wait.longest[0][1] == 55.0
    cluster.at(60.0)
    assert "not heard of for 60.0 s" in cluster.told(End)["worker-0"].error


def test_a_silent_sole_replica_that_is_heard_of_again_does_not_end_the_run(cluster):
    for now in range(0, 40, 5):
        cluster.at(float(now))
        alive(cluster, "worker-0", "worker-1")
    alive(cluster, "server-0")
    assert [each for each in cluster.why() if each.what == "server-0"] == []
    cluster.at(44.0)
    assert not cluster.machine.ended


def test_a_sole_replica_whose_process_ended_ends_the_run_at_once(rigs):
    rig = rigs.SchedulerRig()
    rig.receive("server-0", Join("server-0", "server", "", "here", launch="77"))
    rig.join("worker-0", "worker-1")
    rig.receive("engine", DeathReport("77"))
    assert "its process has ended" in rig.told(End)["worker-0"].error


def test_a_broken_connection_between_hosts_does_not_prove_a_death(cluster):
    cluster.handle(PeerLost("server-0"))
    cluster.at(9.0)
    assert cluster.notes(MemberLost) == []
    assert not cluster.machine.ended


@pytest.mark.parametrize("closed", [True, False])
def test_only_a_connection_that_the_peer_has_closed_counts_as_broken(cluster, closed):
    cluster.handle(PeerLost("worker-0", closed=closed))
    for now in range(1, 9):
        alive(cluster, "server-0", "worker-1")
        cluster.at(float(now))
    assert ("worker-0" in cluster.machine.members.by_id) != closed


def test_a_member_that_left_with_a_pending_view_is_not_looked_up_again(rigs):
    """Both were silent at once: the second was no member any more when it was looked up."""
    rig = rigs.SchedulerRig(servers=2, workers=1)
    rig.join("server-0", "server-1", "worker-0")
    leaving = rig.machine.members.by_id["server-1"]
    rig.receive("server-1", Leave(leaving.incarnation))
    proposal = rig.machine._views._proposal
    assert proposal is not None
    proposal.hurry()
    rig.receive("server-1", Frozen(proposal.number, ()))
    rig.now = 9.0
    alive(rig, "worker-0")
    rig.at(11.0)
    assert "server-0" not in rig.machine.members.by_id


def test_the_death_of_the_last_server_ends_the_run_even_if_it_is_in_no_view(rigs):
    rig = rigs.SchedulerRig(elastic=True, workers=1)
    rig.join("server-0", "worker-0")
    rig.receive("late", Join("late", "server", "", "here", launch="8"))  # in no view yet
    members = rig.machine.members.by_id
    members["server-0"] = replace(members["server-0"], launch="7")
    rig.receive("engine", DeathReport("7"))
    assert not rig.machine.ended
    rig.receive("engine", DeathReport("8"))
    assert rig.machine.ended


# ---------------------------------------------------------------------------- who is cut off


def silence(cluster, until):
    """The members that are declared dead while nobody is heard of."""
    found = []
    while cluster.now < until:
        cluster.at(cluster.now + 1.0)
        found += [note.name for note in cluster.notes(MemberLost)]
    return found


def test_where_nobody_is_heard_of_the_scheduler_may_be_cut_off(cluster):
    assert silence(cluster, 55.0) == []
    assert {each.longest[0][0] for each in cluster.why()} == {"the scheduler"}
    assert any("is the scheduler's host cut off?" in each.reason for each in cluster.why())
    alive(cluster, "server-0")  # the path is back, and others may need a moment
    assert silence(cluster, 62.0) == []
    alive(cluster, "server-0", "worker-0", "worker-1")
    assert all("cut off" not in each.reason for each in cluster.why())


def test_of_those_that_were_silent_together_the_dead_are_found_after_that(cluster):
    assert silence(cluster, 30.0) == []
    for now in (30.0, 35.0, 39.0):
        alive(cluster, "server-0", "worker-0")
        cluster.at(now)
        assert cluster.notes(MemberLost) == []
    assert silence(cluster, 41.0) == ["worker-1"]


def test_a_cluster_that_is_gone_is_not_waited_for_for_ever(cluster):
    assert silence(cluster, 59.0) == []
    assert silence(cluster, 62.0) == ["server-0"]  # and the run with it


def test_members_whose_connections_broke_are_gone(cluster):
    for node in ("worker-0", "worker-1"):
        cluster.handle(PeerLost(node))
    assert {*silence(cluster, 5.0)} == {"worker-0", "worker-1"}


def test_a_member_alone_has_nobody_to_be_compared_with(rigs):
    rig = rigs.SchedulerRig(servers=0, workers=1)
    rig.join("worker-0")
    assert silence(rig, 11.0) == ["worker-0"]
