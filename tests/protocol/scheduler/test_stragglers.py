"""Who waits for whom, as the scheduler knows it, and workers that the others go on without."""

import pytest

from shoal.protocol.messages.admin import StatusReply, StatusRequest, Waits
from shoal.protocol.messages.membership import End, Heartbeat, Join, WaitTimes
from shoal.protocol.scheduler.notes import StragglerDropped
from shoal.protocol.scheduler.options import WITHOUT_A_BREAK
from shoal.protocol.scheduler.stragglers import REPORTS


@pytest.fixture
def make(rigs):
    return rigs.SchedulerRig


def waits(who, what, reason, seconds):
    return Waits(what, reason, 1, ((who, seconds),))


def test_status_names_the_missing_worker_and_the_server_that_has_not_frozen(make):
    rig = make()
    rig.join("server-0", "worker-0")
    assert rig.why() == [
        waits("the scheduler", "the first view", "waits for 1 of 2 workers (worker-1)", 0.0)
    ]
    rig.receive("worker-1", Join("worker-1", "worker", "", ""))
    rig.now += 3
    first, frozen = rig.why()
    assert frozen == waits("the scheduler", "view 1.1", "waits for server-0 to freeze", 3.0)
    assert (first.what, first.longest[0][1]) == ("the first view", 3.0)
    rig.promise()
    assert rig.why() == []


def waited(rig, *totals):
    """A server tells every second how long it has waited for both workers so far."""
    for first, second in totals:
        rig.now += 1
        rig.receive("server-0", WaitTimes(1, ((2, first), (3, second))))


def test_a_worker_that_others_wait_for_most_of_the_window_is_dropped(make):
    rig = make(slow_share=0.5, slow_window_s=4.0, elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    waited(rig, (0, 0), (0.1, 0.6), (0.2, 1.3), (0.3, 1.9))
    assert "worker-1" in rig.machine.members.by_id
    waited(rig, (0.4, 2.5))
    reason = "the others waited for worker-1 62% of the last 4 s"
    assert rig.told(End) == {"worker-1": End(reason, "dropped")}
    assert rig.notes(StragglerDropped) == [StragglerDropped(name="worker-1", reason=reason)]
    rig.promise()
    assert [member.name for member in rig.view.workers] == ["worker-0"]
    waited(rig, (3.4, 2.5), (6.4, 2.5), (9.4, 2.5), (12.4, 2.5))
    assert "worker-0" in rig.machine.members.by_id  # somebody is left


def test_a_worker_for_which_others_wait_without_a_break_is_dropped(make):
    rig = make(slow_share=WITHOUT_A_BREAK, slow_window_s=4.0, elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    waited(rig, (0, 0), (0, 0.5), *((0, 0.5 + n) for n in range(1, 4)))
    assert "worker-1" in rig.machine.members.by_id
    waited(rig, (0, 4.5))
    assert [each.name for each in rig.notes(StragglerDropped)] == ["worker-1"]


@pytest.mark.parametrize(
    ("options", "totals"),
    [
        ({"slow_share": 0.0}, [(0, n) for n in range(9)]),  # nobody wants it
        ({"slow_share": 0.5}, [(0.3 * n, 0.4 * n) for n in range(20)]),  # by turns
        ({"slow_share": WITHOUT_A_BREAK}, [(0, 0.95 * n) for n in range(20)]),  # with breaks
        ({"slow_share": 0.5}, [(0, 0), (0, 1), (0, 1.9), (0, 1.9), (0, 1.9), (0, 2.5), (0, 2.5)]),
    ],
)
def test_a_worker_below_the_slow_share_is_not_dropped(make, options, totals):
    rig = make(slow_window_s=4.0, **options)
    rig.join("server-0", "worker-0", "worker-1")
    waited(rig, *totals)
    assert len(rig.machine.members.by_id) == 3


def test_a_worker_that_has_finished_is_not_dropped(make):
    rig = make(slow_share=0.5, slow_window_s=2.0)
    rig.join("server-0", "worker-0", "worker-1")
    rig.finish("worker-1")
    waited(rig, (0, 0), (0, 1), (0, 2), (0, 3))
    assert "worker-1" in rig.machine.members.by_id


def test_no_worker_is_dropped_before_a_whole_window_has_passed(make):
    rig = make(slow_share=0.5, slow_window_s=4.0)
    rig.join("server-0", "worker-0", "worker-1")
    waited(rig, (0, 0), (0, 3), (0, 4))
    assert "worker-1" in rig.machine.members.by_id


def test_no_worker_is_dropped_while_a_server_is_silent(make):
    rig = make(servers=2, slow_share=0.5, slow_window_s=3.0)
    rig.join("server-0", "server-1", "worker-0", "worker-1")
    told = [(0, n) for n in range(9)]
    for seconds in told:
        rig.now += 1
        rig.receive("server-0", WaitTimes(1, ((3, seconds[0]), (4, seconds[1]))))
    assert "worker-1" in rig.machine.members.by_id
    for seconds in told:
        rig.now += 1
        rig.receive("server-1", Heartbeat(2, rig.view.id))
        rig.receive("server-0", WaitTimes(1, ((3, seconds[0]), (4, 9 + seconds[1]))))
    assert "worker-1" not in rig.machine.members.by_id


def test_status_has_each_workers_share_of_the_window(make):
    rig = make(slow_window_s=4.0)
    rig.join("server-0", "worker-0", "worker-1")
    waited(rig, (0, 0), (0, 1), (0, 2))
    rig.receive("somebody", StatusRequest())
    [because] = rig.sent(StatusReply)
    assert because.slow == (("worker-1", 0.5), ("worker-0", 0.0))
    assert because.over_s == 4.0
    assert because.view == rig.view


def test_reports_are_bounded_and_of_workers_that_there_are(make):
    rig = make(slow_share=0.5, slow_window_s=4.0, elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    for number in range(3 * REPORTS):
        rig.now += 0.001
        rig.receive("server-0", WaitTimes(1, ((2, 0.0), (1000 + number, 9.0))))
    reports = rig.machine._stragglers._reports
    assert list(reports) == [(1, 2)]
    assert len(reports[1, 2]) < REPORTS
