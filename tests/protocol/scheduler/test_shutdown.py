"""The end of a run: everybody is told, until they have confirmed it."""

import pytest

from shoal.protocol.messages import End, Finish, Finished


@pytest.fixture
def cluster(rigs):
    """Of a server and two workers, in its first view."""
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    return rig


def test_the_run_ends_when_all_workers_have_finished(cluster):
    cluster.receive("worker-0", Finish(2))
    assert cluster.sent() == [Finished()]
    cluster.receive("worker-1", Finish(3))
    assert cluster.told(End) == {"server-0": End("")}
    cluster.at(0.25)
    assert cluster.told(End) == {"server-0": End("")}  # until it is confirmed
    cluster.receive("server-0", Finish(1))
    assert cluster.stop.error is None


def test_a_scheduler_whose_end_is_not_confirmed_stops_after_lingering(cluster):
    for node, incarnation in (("worker-0", 2), ("worker-1", 3)):
        cluster.receive(node, Finish(incarnation))
    cluster.at(2.0)
    assert cluster.stop.error is None
