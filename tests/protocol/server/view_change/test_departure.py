"""A server that was told to leave ends by itself when its scheduler is gone."""

import pytest

from shoal.errors import LeftAlone
from shoal.protocol.machine import Asked, PeerLost, Received, Send, Stop, Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Heartbeat, HeartbeatSeen, Leave, LeaveRefused
from shoal.protocol.requests import GoAway
from shoal.protocol.server.view_change.departure import CUT_OFF_SHARE
from shoal.protocol.session_options import SessionOptions

SILENT_S = SessionOptions().farewell_s
CUT_OFF_S = SILENT_S * CUT_OFF_SHARE


class Leaving:
    """A server with rows, which is told to leave, and what it says."""

    def __init__(self, chain):
        self.machine = chain.servers[0]
        self.stopped = None
        self.sent = []
        self.event(Ticked(), 0.0)
        self.heard(0.0)

    def event(self, event, now):
        for effect in self.machine.handle(event, now):
            if isinstance(effect, Stop):
                self.stopped = effect.error
            elif isinstance(effect, Send) and effect.to == SCHEDULER:
                self.sent.append(type(effect.message))

    def heard(self, now):
        self.event(Received(SCHEDULER, HeartbeatSeen()), now)

    def leave(self, now):
        self.event(Asked(1, GoAway()), now)

    def cut_off(self, now):
        self.event(PeerLost(SCHEDULER), now)

    def wait(self, until):
        """Tick whenever something is due, as a process that runs does."""
        while self.stopped is None and (at := self.machine.deadline()) < until:
            self.event(Ticked(), at)
        if self.stopped is None:
            self.event(Ticked(), until)


@pytest.fixture
def server(rigs):
    return Leaving(rigs.Chain(length=1))


def test_it_leaves_within_two_seconds_of_being_cut_off(server):
    server.cut_off(1.0)
    server.leave(10.0)
    server.wait(10.0 + CUT_OFF_S - 0.01)
    assert server.stopped is None
    assert {Leave, Heartbeat} <= set(server.sent)  # it looked for the scheduler
    server.wait(10.0 + CUT_OFF_S + 0.01)
    assert isinstance(server.stopped, LeftAlone)
    assert "its rows were not moved" in str(server.stopped)
    assert CUT_OFF_S < 2


def test_a_connection_that_is_silent_is_given_longer(server):
    server.leave(0.0)
    server.wait(SILENT_S - 0.01)
    assert server.stopped is None
    server.wait(SILENT_S + 0.01)
    assert isinstance(server.stopped, LeftAlone)


def test_it_does_not_leave_a_scheduler_that_answers(server):
    server.leave(0.0)
    for second in range(20):
        server.heard(second)
        server.wait(second + 0.9)
    assert server.stopped is None


def test_it_does_not_leave_a_scheduler_that_has_come_back(server):
    server.leave(0.0)
    server.cut_off(0.1)
    server.heard(1.0)
    server.wait(1.0 + CUT_OFF_S + 0.1)
    assert server.stopped is None


def test_time_for_which_its_process_did_not_run_does_not_count(server):
    server.leave(0.0)
    server.event(Ticked(), 60.0)  # it was stopped
    assert server.stopped is None
    server.heard(60.1)
    server.wait(61.0)
    assert server.stopped is None


def test_it_stays_after_a_refusal(server):
    server.leave(0.0)
    server.event(Received(SCHEDULER, LeaveRefused("it is the last server")), 0.1)
    server.cut_off(0.2)
    server.wait(10.0)
    assert server.stopped is None


def test_nobody_leaves_who_was_not_told_to(server):
    server.cut_off(0.0)
    server.wait(20.0)
    assert server.stopped is None


def test_before_the_first_view_it_leaves_at_once(rigs):
    server = Leaving(rigs.Chain(length=1))
    server.machine.session.view = None
    server.leave(0.0)
    assert isinstance(server.stopped, LeftAlone)
    assert Leave not in server.sent
