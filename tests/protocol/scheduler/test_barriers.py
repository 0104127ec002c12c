"""Barriers: who is waited for, and when all are let go."""

import pytest

from shoal.protocol.limits import BARRIERS_MAX, RELEASED_MAX
from shoal.protocol.machine import PeerLost, Received
from shoal.protocol.messages.admin import Waits
from shoal.protocol.messages.membership import BarrierArrival, BarrierReleased


@pytest.fixture
def cluster(rigs):
    """Of a server and two workers, in its first view."""
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    return rig


def test_a_barrier_is_released_when_all_have_arrived(cluster):
    enter = BarrierArrival(2, "epoch", 0, ("workers",))
    cluster.receive("worker-0", enter)
    assert cluster.sent() == []
    assert cluster.why() == [
        Waits("barrier 'epoch'", "waits for worker-1", 1, (("worker-0", 0.0),))
    ]
    cluster.receive("worker-1", BarrierArrival(3, "epoch", 0, ("workers",)))
    assert cluster.told(BarrierReleased) == {
        n: BarrierReleased("epoch", 0) for n in ("worker-0", "worker-1")
    }
    cluster.receive("worker-0", enter)  # the answer was lost
    assert cluster.told(BarrierReleased) == {"worker-0": BarrierReleased("epoch", 0)}


def test_a_barrier_of_workers_and_servers_waits_for_both(cluster):
    cluster.receive("worker-0", BarrierArrival(2, "all", 0, ("workers", "servers")))
    cluster.receive("worker-1", BarrierArrival(3, "all", 0, ("workers",)))
    reason = "waits for server-0"
    assert cluster.why() == [Waits("barrier 'all'", reason, 1, (("worker-0, worker-1", 0.0),))]
    cluster.receive("server-0", BarrierArrival(1, "all", 0, ("workers", "servers")))
    assert len(cluster.sent(BarrierReleased)) == 3


def test_a_barrier_does_not_wait_for_dead_or_finished_workers(rigs):
    rig = rigs.SchedulerRig(elastic=True, workers=3)
    rig.join("server-0", "worker-0", "worker-1", "worker-2")
    rig.receive("worker-0", BarrierArrival(2, "epoch", 0, ("workers",)))
    rig.finish("worker-1")
    assert rig.sent(BarrierReleased) == []
    rig.handle(PeerLost("worker-2"))
    rig.at(2.0)
    assert rig.told(BarrierReleased) == {"worker-0": BarrierReleased("epoch", 0)}


def test_barriers_in_which_somebody_waits_are_bounded(cluster):
    for generation in range(BARRIERS_MAX):
        cluster.receive("worker-0", BarrierArrival(2, "epoch", generation, ("workers",)))
    one_more = Received("worker-0", BarrierArrival(2, "other", 0, ("workers",)))
    assert "other barriers" in cluster.machine.problem_of(one_more)
    known = Received("worker-1", BarrierArrival(3, "epoch", 7, ("workers",)))
    assert cluster.machine.problem_of(known) == ""


def test_names_of_released_barriers_are_forgotten_in_time(cluster):
    for number in range(RELEASED_MAX + 5):
        cluster.receive("worker-0", BarrierArrival(2, f"step {number}", 0, ()))
    assert len(cluster.machine._barriers.released) == RELEASED_MAX
