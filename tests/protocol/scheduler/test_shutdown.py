"""The end of a run: servers show that they have the rows, and everybody is told of the end."""

import pytest

from shoal.errors import RangeLost
from shoal.protocol.machine import Stop, Ticked
from shoal.protocol.messages.admin import DeathReport
from shoal.protocol.messages.membership import (
    ConfirmRows,
    Declare,
    End,
    Finish,
    Finished,
    Heartbeat,
    Join,
    NotJoined,
    RowsConfirmed,
)
from shoal.tables.spec import TableSpec

VIEW = (9, 9)  # that servers are in, and no older than any


@pytest.fixture
def cluster(rigs):
    """Of a server and two workers, in its first view."""
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    return rig


def finish(rig, *incarnations):
    for incarnation in incarnations:
        rig.finish(f"worker-{incarnation - 2}")


def test_the_run_ends_when_all_workers_have_finished(cluster):
    finish(cluster, 2)
    assert cluster.sent() == [Finished()]
    finish(cluster, 3)
    cluster.confirm()
    assert cluster.told(End) == {"server-0": End("")}
    cluster.at(0.25)
    assert cluster.told(End) == {"server-0": End("")}  # until it is confirmed
    cluster.receive("server-0", Finish(1))
    assert cluster.stop.error is None


def test_a_scheduler_whose_end_is_not_confirmed_stops_after_lingering(cluster):
    finish(cluster, 2, 3)
    cluster.confirm()
    cluster.at(2.0)
    assert cluster.stop.error is None


def test_a_run_without_servers_ends_at_once(rigs):
    rig = rigs.SchedulerRig(servers=0)
    rig.join("worker-0", "worker-1")
    rig.finish("worker-0")
    rig.finish("worker-1")
    assert rig.machine.ended


def test_the_run_ends_well_only_when_each_server_has_answered_since(cluster):
    finish(cluster, 2, 3)
    assert cluster.told(ConfirmRows) == {"server-0": ConfirmRows(1, (1, 1))}
    cluster.receive("server-0", Heartbeat(1, cluster.view.id))  # it may have waited to be read
    cluster.receive("server-0", RowsConfirmed(1, 0, VIEW))  # of an earlier scheduler's question
    assert not cluster.machine.ended
    cluster.at(0.25)
    assert cluster.told(ConfirmRows) == {"server-0": ConfirmRows(1, (1, 1))}
    cluster.receive("server-0", RowsConfirmed(1, 1, (1, 0)))  # in the view before
    assert not cluster.machine.ended
    cluster.receive("server-0", RowsConfirmed(1, 1, (1, 1)))
    assert cluster.told(End) == {"server-0": End("")}


@pytest.mark.parametrize("how", ["silent", "exited"])
def test_rows_that_are_lost_after_the_last_worker_has_finished_end_the_run_with_an_error(rigs, how):
    """Seed 40626: it said "all workers have finished", and half of a table was gone."""
    rig = rigs.SchedulerRig(servers=2)
    for number, name in enumerate(("server-0", "server-1", "worker-0", "worker-1"), 10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    spec = TableSpec("w", 8, fragment_rows=4)
    rig.receive("worker-0", Declare(rig.incarnation("worker-0"), spec))
    rig.promise()
    finish(rig, 2, 3)
    rig.receive("server-0", RowsConfirmed(1, 1, VIEW))
    assert not rig.machine.ended
    if how == "exited":
        rig.receive("engine", DeathReport("11"))
    else:
        for second in range(1, 30):
            rig.at(second)
            if rig.machine.ended:
                break
            rig.receive("server-0", Heartbeat(1, rig.view.id))
    assert rig.machine.ended
    assert rig.told(End)["server-0"].kind == "lost"
    assert "w[4:8)" in rig.told(End)["server-0"].error


def test_a_scheduler_that_restarts_asks_the_servers_anew(cluster):
    finish(cluster, 2, 3)
    again = cluster.restart()
    again.at(0.0)
    assert again.told(ConfirmRows) == {"server-0": ConfirmRows(2, (1, 1))}
    again.receive("server-0", RowsConfirmed(1, 1, VIEW))  # the answer to the one before
    assert not again.machine.ended
    again.receive("server-0", RowsConfirmed(1, 2, VIEW))
    assert again.machine.ended


def test_nobody_joins_a_run_whose_workers_have_finished(rigs):
    rig = rigs.SchedulerRig(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    finish(rig, 2, 3)
    rig.receive("worker-2", Join("worker-2", "worker", "", "here"))
    assert rig.told(NotJoined) == {"worker-2": NotJoined("the run has ended")}


def test_a_server_that_does_not_confirm_the_end_has_taken_the_last_rows_with_it(rigs):
    """It died before it had saved them: silence is no consent."""
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    rig.receive("worker-0", Declare(2, TableSpec("w", 8)))
    rig.promise()
    finish(rig, 2, 3)
    rig.confirm()
    rig.at(2.0 + 14.9)
    assert rig.told(End) == {"server-0": End()}
    rig.at(2.0 + 15.5)
    assert isinstance(rig.stop.error, RangeLost)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_server_that_has_ended_with_status_0_needs_no_farewell(rigs, orderly):
    """Its own confirmation was lost: its rows are written all the same."""
    rig = rigs.SchedulerRig(servers=1, sole_replica_timeout_s=5.0)
    for number, name in enumerate(("server-0", "worker-0", "worker-1"), 10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    rig.receive("worker-0", Declare(rig.incarnation("worker-0"), TableSpec("w", 8)))
    rig.promise()
    finish(rig, 2, 3)
    rig.receive("server-0", RowsConfirmed(1, 1, VIEW))
    assert rig.machine.ended
    rig.receive("engine", DeathReport("10", orderly))
    stops = []
    while not stops:
        rig.now += 0.1
        assert rig.now < 20.0
        rig.handle(Ticked())
        stops += [each for each in rig.effects if isinstance(each, Stop)]
    assert isinstance(stops[0].error, RangeLost) != orderly
