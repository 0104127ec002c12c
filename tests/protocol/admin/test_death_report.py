"""Whoever has started a process and seen it end tells the scheduler."""

import pytest

from shoal.errors import RangeLost
from shoal.protocol.admin.death_report import DeathReporter
from shoal.protocol.machine import Received, Send, Stop, Ticked
from shoal.protocol.messages import SCHEDULER, DeathReport, DeathReportSeen, Finish, Join


def test_a_death_report_is_repeated_until_it_is_seen():
    obituary = DeathReporter("here", 77, limit_s=1.0)
    told = [Send(SCHEDULER, DeathReport("here", 77))]
    assert obituary.handle(Ticked(), 5.0) == told
    assert obituary.handle(Ticked(), 5.05) == []
    assert obituary.handle(Ticked(), obituary.deadline()) == told
    assert obituary.handle(Received(SCHEDULER, DeathReportSeen(77)), 5.2) == [Stop(None)]


def test_a_death_reporter_stops_after_its_limit():
    obituary = DeathReporter("here", 77, limit_s=1.0)
    obituary.handle(Ticked(), 5.0)
    assert obituary.handle(Ticked(), 6.0) == [Stop(None)]


@pytest.fixture
def rig(rigs):
    """Its processes have the numbers 10 to 12."""
    rig = rigs.SchedulerRig(elastic=True)
    for number, name in enumerate(("server-0", "worker-0", "worker-1"), start=10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", process=number))
    rig.promise()
    return rig


def test_a_reported_member_is_dead_at_once(rig):
    rig.receive("engine", DeathReport("here", 12))
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen(12)}
    assert rig.notes("lost") == [
        {"name": "worker-1", "how": "its process has ended", "node": "worker-1"}
    ]
    rig.promise()
    assert rig.view.reason == "worker-1 left"
    rig.receive("engine", DeathReport("here", 12))  # the answer was lost
    assert rig.notes("lost") == []
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen(12)}


@pytest.mark.parametrize(
    "died", [DeathReport("here", 13), DeathReport("elsewhere", 12), DeathReport("here", 0)]
)
def test_a_report_of_a_process_that_is_no_member_changes_nothing(rig, died):
    rig.receive("engine", died)
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen(died.process)}
    assert rig.notes("lost") == []


def test_a_report_of_a_finished_worker_changes_nothing(rig):
    rig.receive("worker-1", Finish(3))
    rig.receive("engine", DeathReport("here", 12))
    assert rig.notes("lost") == []


def test_a_report_of_the_last_replica_ends_the_run(rig):
    rig.receive("engine", DeathReport("here", 10))
    assert isinstance(rig.machine._shutdown._error, RangeLost)
    assert "its process has ended" in rig.machine._shutdown.reason
