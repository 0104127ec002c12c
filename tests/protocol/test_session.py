"""One member's conversation with the scheduler."""

import pytest

from shoal.errors import JoinRefused, JoinTimeout, RunAborted
from shoal.protocol.machine import Resolve, Send, Stop
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import (
    Abort,
    BarrierArrival,
    BarrierReleased,
    End,
    Finish,
    Finished,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Joined,
    NewView,
    NotJoined,
)
from shoal.protocol.requests import AbortRun, Cancel
from shoal.protocol.session import Session
from shoal.protocol.session_options import SessionOptions

OPTIONS = SessionOptions(
    join_timeout_s=10, heartbeat_s=1, resend_s=0.5, scheduler_timeout_s=20, farewell_s=5
)


class Talk:
    """A session and what it says."""

    def __init__(self, role="worker", **more):
        self.session = Session(f"{role}-0", role, options=OPTIONS, **more)

    def tick(self, now):
        out = []
        self.session.tick(now, out)
        return self.heard(out)

    def wait(self, until):
        """Tick whenever something is due, as a process that runs does."""
        while self.session.deadline() < until:
            self.tick(self.session.deadline())
        return self.tick(until)

    def handle(self, message, now=0.0):
        out = []
        self.session.handle(message, now, out)
        return self.heard(out)

    def heard(self, out):
        self.out = out
        return [each.message for each in out if isinstance(each, Send)]

    @property
    def stop(self):
        return next(each for each in self.out if isinstance(each, Stop))

    @property
    def resolved(self):
        return {e.request_id: e.outcome.error for e in self.out if isinstance(e, Resolve)}


@pytest.fixture
def joined(rigs):
    talk = Talk()
    talk.tick(0.0)
    talk.handle(NewView(rigs.view_of()))
    return talk


def test_a_member_repeats_its_join_until_it_is_in_a_view(rigs):
    talk = Talk(address="tcp://here", host="here", rank=3)
    assert talk.tick(0.0) == [Join("worker-0", "worker", "tcp://here", "here", 3)]
    assert talk.tick(0.4) == []
    assert talk.handle(Joined(7, 3), 0.45) == []
    assert (talk.session.incarnation, talk.session.name) == (7, "worker-3")
    [again] = talk.tick(0.5)  # it has joined, and waits for the view
    assert again.incarnation == 7
    talk.handle(NewView(rigs.view_of()), 0.6)
    assert talk.session.view_id == (1, 1)
    assert [type(message) for message in talk.tick(1.0)] == [Heartbeat]


def test_a_view_of_a_former_self_is_not_adopted(rigs):
    talk = Talk()
    talk.tick(0.0)
    talk.handle(Joined(70, 0), 0.1)  # the view was made with its former self, of incarnation 11
    assert talk.handle(NewView(rigs.view_of()), 0.2) == []
    assert talk.session.view is None
    assert not talk.session.ended


def test_a_scheduler_that_was_started_anew_counts_incarnations_from_one(rigs):
    talk = Talk()
    talk.tick(0.0)
    talk.handle(Joined(70, 0, "run-a"), 0.1)
    talk.handle(Joined(11, 0, "run-b"), 0.2)
    talk.handle(NewView(rigs.view_of()), 0.3)
    assert (talk.session.incarnation, talk.session.run) == (11, "run-b")
    assert talk.session.view_id == (1, 1)


def test_a_member_that_has_a_successor_ends(joined):
    joined.handle(Joined(70, 5), 0.1)  # a Join of this member came after it was declared dead
    assert joined.session.ended
    assert "declared dead; start it again" in str(joined.out[-1].error)


def test_an_address_is_announced_before_joining():
    talk = Talk()
    talk.session.announce("unix:///a.sock")
    assert talk.tick(0.0)[0].address == "unix:///a.sock"


def test_the_deadline_is_the_earliest_of_join_heartbeat_and_resend(joined):
    assert joined.session.deadline() == 0.5  # when it would have joined again
    joined.tick(0.5)
    assert joined.session.deadline() == 1.5
    joined.session.ask("finish", 1, Finish(11), 0.6, [])
    assert joined.session.deadline() == pytest.approx(1.1)


def test_a_join_that_is_never_answered_times_out():
    talk = Talk(rank=3)
    talk.tick(0.0)
    talk.wait(10.0)
    assert isinstance(talk.stop.error, JoinTimeout)
    assert "the scheduler did not answer this worker within 10 s" in str(talk.stop.error)
    assert talk.session.deadline() == float("inf")


def test_a_join_to_an_incomplete_cluster_times_out():
    talk = Talk()
    talk.tick(0.0)
    talk.handle(Joined(7, 1), 1.0)
    talk.wait(10.0)
    assert str(talk.stop.error) == ("worker-1 joined, but the cluster was not complete within 10 s")


def test_a_refused_join_stops_the_member_with_the_reason():
    talk = Talk()
    talk.handle(NotJoined("too late: the run has started"))
    assert isinstance(talk.stop.error, JoinRefused)
    assert "refused this worker: too late" in str(talk.stop.error)


def test_a_silent_scheduler_stops_the_member(joined):
    joined.wait(19.9)
    assert not joined.session.ended
    joined.wait(20.0)
    assert str(joined.stop.error) == "the scheduler has not answered for 20 s"


def test_a_member_that_did_not_run_does_not_take_the_scheduler_for_silent(joined):
    joined.tick(1.0)
    joined.tick(100.0)  # its timer was due at 2: it was stopped, or in a user's code
    assert not joined.session.ended
    joined.handle(HeartbeatSeen(), 100.1)
    joined.wait(120.0)
    assert not joined.session.ended
    joined.wait(120.1)
    assert str(joined.stop.error) == "the scheduler has not answered for 20 s"


def test_a_member_that_did_not_run_has_its_whole_time_to_join():
    talk = Talk()
    talk.tick(0.0)
    talk.tick(30.0)
    assert not talk.session.ended


def test_an_older_or_equal_view_is_ignored(joined, rigs):
    joined.handle(NewView(rigs.view_of(3)))
    for number in (1, 2, 3):
        joined.handle(NewView(rigs.view_of(number)))
        assert joined.session.view_id == (1, 3)
        assert joined.out == []


def test_a_view_without_the_member_stops_it(joined, rigs):
    joined.handle(NewView(rigs.view_of(2, workers=[1], reason="worker-0 left")))
    assert isinstance(joined.stop.error, RunAborted)
    assert "(worker-0 left) is without this worker-0" in str(joined.stop.error)


def test_a_view_with_another_incarnation_of_the_member_stops_it(joined, rigs):
    """A late copy of its Join was answered after it had been taken for dead."""
    joined.session.incarnation = 5
    joined.handle(NewView(rigs.view_of(2)))
    assert "start it again so that it joins" in str(joined.stop.error)


def test_a_barrier_arrival_is_repeated_until_it_is_answered(joined):
    out = []
    joined.session.enter_barrier(1, "epoch", ("workers",), 0.0, out)
    assert joined.heard(out) == [BarrierArrival(11, "epoch", 0, ("workers",))]
    assert joined.session.questions() == ["barrier epoch 0"]
    assert BarrierArrival(11, "epoch", 0, ("workers",)) in joined.tick(0.5)
    joined.handle(BarrierReleased("epoch", 1))  # of somebody who is ahead
    assert joined.resolved == {}
    joined.handle(BarrierReleased("epoch", 0))
    assert joined.resolved == {1: None}
    joined.handle(BarrierReleased("epoch", 0))
    assert joined.resolved == {}


def test_barriers_of_one_name_are_numbered_in_order(joined):
    for generation in range(3):
        out = []
        joined.session.enter_barrier(generation, "epoch", ("workers",), 0.0, out)
        assert joined.heard(out)[0].generation == generation


def test_a_finish_asked_twice_resolves_both_requests(joined):
    out = []
    joined.session.finish(1, 0.0, out)
    joined.session.finish(2, 0.0, out)
    joined.handle(Finished())
    assert joined.resolved == {1: None, 2: None}


def test_a_cancelled_finish_is_not_repeated(joined):
    joined.session.finish(1, 0.0, [])
    joined.session.asked(2, Cancel(1), 0, 0.0, [])
    assert joined.session.questions() == []
    joined.handle(Finished())
    assert joined.resolved == {}


def test_a_finish_without_an_answer_resolves_after_the_farewell_time(joined):
    """A scheduler that has ended the run does not answer any more, and its connection is closed."""
    joined.session.finish(1, 0.0, [])
    joined.session.peer_lost(SCHEDULER, 0.0, closed=True)
    joined.tick(4.9)
    assert joined.resolved == {}
    joined.tick(5.0)
    assert joined.resolved == {1: None}


def test_that_time_begins_when_the_connection_is_closed(joined):
    """A scheduler whose path was cut closes the old connection, and answers on the next."""
    joined.session.finish(1, 0.0, [])
    joined.wait(7.0)
    joined.session.peer_lost(SCHEDULER, 7.0, closed=True)
    joined.wait(11.9)
    assert joined.resolved == {}
    joined.wait(12.0)
    assert joined.resolved == {1: None}


@pytest.mark.parametrize("how", ["stands still", "is cut off"])
def test_a_finish_waits_for_the_scheduler(joined, how):
    """It would take this worker for dead, or end the run without having asked the servers."""
    joined.session.finish(1, 0.0, [])
    if how == "is cut off":
        joined.session.peer_lost(SCHEDULER, 0.0, closed=False)
    joined.wait(19.9)
    assert joined.resolved == {}
    joined.wait(20.0)
    assert "has not answered" in str(joined.resolved[1])


def test_an_end_with_an_error_is_confirmed_and_fails_waiting_requests(joined):
    joined.session.enter_barrier(1, "epoch", ("workers",), 0.0, [])
    assert joined.handle(End("server-0 died")) == [Finish(11)]
    assert joined.stop.error.message == "server-0 died"
    assert joined.resolved[1].message == "server-0 died"
    assert joined.tick(100.0) == []


def test_an_orderly_end_stops_the_member_without_an_error(joined):
    joined.handle(End(""))
    assert joined.stop.error is None


def test_asking_for_a_view_sends_a_heartbeat_with_the_present_view(joined):
    out = []
    joined.session.ask_for_view((1, 2), out)
    assert joined.heard(out) == [Heartbeat(11, (1, 1))]


def test_a_view_is_asked_for_once_and_then_by_heartbeats(joined):
    """Its answer takes a while on a slow link, which more answers would fill."""
    out = []
    for newer in ((1, 2), (1, 2), (1, 1), (1, 2), (2, 1), (2, 1)):
        joined.session.ask_for_view(newer, out)
    assert joined.heard(out) == [Heartbeat(11, (1, 1))] * 2
    assert Heartbeat(11, (1, 1)) in joined.tick(1.0)


def test_an_abort_is_repeated_until_the_scheduler_ends_the_run(joined):
    asked = []
    joined.session.asked(7, AbortRun("loss is nan"), 0, 0.0, asked)
    assert joined.heard(asked) == [Abort("loss is nan")]
    assert Abort("loss is nan") in joined.tick(0.6)
    assert Abort("loss is nan") in joined.tick(1.2)
    joined.handle(End("worker-0: loss is nan"), 1.3)
    assert isinstance(joined.resolved[7], RunAborted)
    assert joined.tick(2.0) == []


def test_a_server_ends_when_the_scheduler_knows_that_it_was_told(rigs):
    """Its answer may be lost, and the scheduler would take its rows for lost."""
    server = Talk("server")
    server.tick(0.0)
    server.handle(NewView(rigs.view_of()))
    for _ in range(2):  # the scheduler repeats it
        assert server.handle(End(""), 1.0) == [Finish(1)]
        assert not server.session.ended
    server.handle(Finished(), 1.5)
    assert server.stop.error is None


def test_a_server_ends_without_that_after_the_farewell_time(rigs):
    server = Talk("server")
    server.tick(0.0)
    server.handle(NewView(rigs.view_of()))
    server.handle(End(""), 1.0)
    server.wait(5.9)
    assert not server.session.ended
    server.wait(6.0)
    assert server.stop.error is None
