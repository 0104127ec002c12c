"""Draining: it is for rows that move, and nobody waits for it for ever."""

import pytest
from msgspec.structs import asdict

from shoal.protocol.machine import Ticked
from shoal.protocol.messages.membership import (
    Declare,
    Drain,
    Drained,
    Freeze,
    Frozen,
    Heartbeat,
    Join,
)
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.scheduler.view_change import SOON_S
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.replication.drain import Drainer
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.views import View
from shoal.tables.spec import TableSpec


class Busy(Chains):
    """... with something that never comes to the other servers."""

    idle = False


class NoHandover:
    def flush(self, out):
        pass


@pytest.fixture
def draining():
    return Drainer(Admission(), Busy({}), NoHandover())


def test_a_server_lets_requests_in_again_however_often_it_is_asked(draining):
    """... for that view; for the next one it tries again."""
    for now in range(10):
        draining.begin(Drain((1, 2), 2.0), now / 4, [])
        draining.tick(now / 4)
    assert not draining._admission.draining
    draining.begin(Drain((1, 3), 2.0), 9.0, [])
    assert draining._admission.draining


def test_one_that_comes_before_the_view_that_it_follows_is_left_aside(draining):
    """It once had what waits told to servers of the view before, which was lost with that."""
    draining._admission.promise((1, 2))
    draining.begin(Drain((1, 3), 2.0), 0.0, [])
    assert not draining._admission.draining
    draining._admission.adopt(View(1, 2, (), ()))
    draining.begin(Drain((1, 3), 2.0), 0.1, [])  # it is said again
    assert draining._admission.draining


@pytest.fixture
def rig(rigs):
    """A scheduler of two servers, one of which has just come: rows are to move."""

    class SchedulerRig(rigs.SchedulerRig):
        def frozen(self, *names, drained=False):
            number = self.machine._views._proposal.number
            for name in names:
                self.receive(name, Frozen(number, (), (), drained))
            if self.machine._views.offered is not None:
                self.receive("server-0", Heartbeat(1, self.machine._views.offered.id))

        def at(self, now):
            self.now = now
            self.handle(Ticked())
            return {type(send.message) for send in self.sends(object)}

    options = SchedulerOptions(
        servers=1, workers=1, failure_timeout_s=100.0, drain_s=2.0, pause_s=10.0
    )
    rig = SchedulerRig(**asdict(options))
    rig.receive("server-0", Join("server-0", "server", "", ""))
    rig.receive("worker-0", Join("worker-0", "worker", "", ""))
    rig.frozen("server-0")
    rig.receive("worker-0", Declare(2, TableSpec("w", 64, fragment_rows=8)))
    rig.open()
    rig.frozen("server-0")
    rig.receive("server-1", Join("server-1", "server", "", ""))
    rig.frozen("server-0", "server-1")
    rig.open()
    return rig


def test_rows_move_when_all_have_drained(rig):
    assert len(rig.sent(Drain)) == 2
    for name in ("server-0", "server-1"):
        rig.receive(name, Drained(rig.machine._views._proposal.number))
    assert len(rig.sent(Freeze)) == 2
    rig.frozen("server-0", "server-1", drained=True)
    assert any(placement.syncing_since for placement in rig.machine.view.placements[0])


def test_where_something_came_in_after_all_it_is_tried_again_soon(rig):
    """A tail that had drained was told more by a head that had not: a learner was to have it."""
    for name in ("server-0", "server-1"):
        rig.receive(name, Drained(rig.machine._views._proposal.number))
    rig.frozen("server-0", drained=True)
    rig.frozen("server-1", drained=False)
    assert not any(placement.syncing_since for placement in rig.machine.view.placements[0])
    assert rig.machine.deadline() == SOON_S
    assert rig.at(SOON_S) == {Drain}


def test_where_a_server_cannot_a_view_without_moves_is_made_and_later_it_is_tried_again(rig):
    before = rig.machine.view.placements
    assert rig.at(1.0) == {Drain}
    assert rig.at(2.5) == {Freeze}
    assert rig.at(4.0) == {Freeze}  # the first may have been lost
    rig.frozen("server-0", "server-1")
    assert rig.machine.view.placements == before
    assert rig.sent(Drain) == []
    assert rig.at(8.0) == set()
    assert rig.machine.deadline() == 14.0
    assert rig.at(14.0) == {Drain}


def test_each_drain_that_was_too_short_gives_the_next_one_twice_the_time_up_to_a_bound(rig):
    """On links too slow for the usual time rows never got back to all their replicas."""
    now, asked = 0.0, [rig.sent(Drain)[0].seconds]
    for _ in range(3):
        now += asked[-1]
        assert rig.at(now - 0.25) == {Drain}
        assert rig.at(now) == {Freeze}
        rig.frozen("server-0", "server-1")
        rig.open()
        now += 10.0
        rig.at(now)
        asked.append(rig.sent(Drain)[0].seconds)
    assert asked == [2.0, 4.0, 8.0, 8.0]
    for name in ("server-0", "server-1"):
        rig.receive(name, Drained(rig.machine._views._proposal.number))
    rig.frozen("server-0", "server-1", drained=True)
    assert rig.machine._views._drain_s == 2.0
