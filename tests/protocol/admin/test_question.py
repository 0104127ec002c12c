"""A tool asks the scheduler for a checkpoint, or reports that a process has exited."""

import pytest

from shoal.errors import RangeLost
from shoal.protocol.admin.question import AGAIN_S, Question
from shoal.protocol.machine import Discard, Received, Send, Stop, Ticked
from shoal.protocol.messages.admin import (
    CheckpointPlanned,
    CheckpointRefused,
    CheckpointRequest,
    DeathReport,
    DeathReportSeen,
)
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import HeartbeatSeen, Join
from shoal.protocol.scheduler.notes import MemberLost

CASES = [
    (CheckpointRequest(1), CheckpointPlanned(1, 40, 40, (("here", "/saved"),))),
    (CheckpointRequest(1), CheckpointRefused(1, "no worker")),
    (DeathReport("77"), DeathReportSeen("77")),
]


@pytest.mark.parametrize(("asked", "answer"), CASES)
def test_a_question_is_repeated_until_it_is_answered(asked, answer):
    question = Question(asked, (type(answer),), limit_s=1.0)
    told = [Send(SCHEDULER, asked)]
    assert question.handle(Ticked(), 5.0) == told
    assert question.handle(Received(SCHEDULER, HeartbeatSeen()), 5.0 + AGAIN_S / 2) == []
    assert question.handle(Ticked(), question.deadline()) == told
    assert question.handle(Received(SCHEDULER, answer), 5.3) == [Stop(None)]
    assert question.answer == answer
    assert isinstance(question.arriving(SCHEDULER, answer, 8), Discard)


def test_a_question_ends_after_its_limit():
    question = Question(DeathReport("77"), (DeathReportSeen,), limit_s=1.0)
    question.handle(Ticked(), 5.0)
    assert question.handle(Ticked(), 6.0) == [Stop(None)]
    assert question.answer is None


@pytest.fixture
def rig(rigs):
    """Its processes have the numbers 10 to 12."""
    rig = rigs.SchedulerRig(elastic=True)
    for number, name in enumerate(("server-0", "worker-0", "worker-1"), start=10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    return rig


def test_a_reported_member_is_dead_at_once(rig):
    rig.receive("engine", DeathReport("12"))
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen("12")}
    assert rig.notes(MemberLost) == [
        MemberLost("worker-1", "its process has ended", launch="12", node="worker-1")
    ]
    rig.promise()
    assert rig.view.reason == "worker-1 left"
    rig.receive("engine", DeathReport("12"))  # the answer was lost
    assert rig.notes(MemberLost) == []
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen("12")}


@pytest.mark.parametrize("died", [DeathReport("13"), DeathReport("")])
def test_a_report_of_a_process_that_is_no_member_changes_nothing(rig, died):
    rig.receive("engine", died)
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen(died.launch)}
    assert rig.notes(MemberLost) == []


def test_a_report_of_a_finished_worker_changes_nothing(rig):
    rig.finish("worker-1")
    rig.receive("engine", DeathReport("12"))
    assert rig.notes(MemberLost) == []


def test_a_report_of_the_last_replica_ends_the_run(rig):
    rig.receive("engine", DeathReport("10"))
    assert isinstance(rig.machine._shutdown._error, RangeLost)
    assert "its process has ended" in rig.machine._shutdown.reason


def test_the_parent_of_a_process_is_told_whether_its_work_was_done(rig):
    """A process may have a connection that looks on, which nobody closes."""
    asked = {"launch": "12", "group": "eval", "group_size": 1}
    rig.receive("guest-0", Join("guest-0", "worker", "", "here", **asked))
    rig.finish("worker-1")
    rig.receive("engine", DeathReport("12"))
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen("12", True)}
    assert [each.node for each in rig.notes(MemberLost)] == ["guest-0"]
    rig.receive("engine", DeathReport("11"))
    assert rig.told(DeathReportSeen) == {"engine": DeathReportSeen("11", False)}
