"""A ledger of leases for each worker group, which its barriers go with."""

import pytest

from shoal.protocol.machine import Append, Persist, Send
from shoal.protocol.messages.membership import (
    BarrierArrival,
    BarrierReleased,
    Lease,
    Leased,
)


@pytest.mark.parametrize("elastic", [False, True])
def test_a_dead_groups_leases_go_to_the_next_of_its_name_in_an_elastic_run_only(rigs, elastic):
    rig = rigs.SchedulerRig(elastic=elastic)
    rig.join("server-0", "worker-0", "worker-1")
    rig.guest("guest-0", size=2)
    rig.guest("guest-1", size=2)
    rig.promise()
    one, other = rig.incarnation("guest-0"), rig.incarnation("guest-1")
    rig.receive("guest-0", Lease(one, 0, 1, 4))
    rig.receive("guest-0", BarrierArrival(one, "go", 0, ("workers",)))
    for node in ("guest-0", "guest-1"):
        rig.machine._lost([node], "killed", rig.now, [])
    rig.promise(clocks=((one, 0), (other, 0)))
    rig.guest("guest-2", size=2)
    rig.guest("guest-3", size=2)
    rig.promise()
    anew = rig.incarnation("guest-2")
    rig.receive("guest-2", BarrierArrival(anew, "go", 0, ("workers",)))
    assert not rig.sent(BarrierReleased)
    rig.receive("guest-2", Lease(anew, 0, 1, 4 if elastic else 8))
    assert rig.told(Leased)["guest-2"].count == (1 if elastic else 2)


def test_barriers_of_one_name_are_separate_in_each_group(attached):
    attached.receive(
        "guest-0", BarrierArrival(attached.incarnation("guest-0"), "epoch", 0, ("workers",))
    )
    assert attached.told(BarrierReleased) == {"guest-0": BarrierReleased("epoch", 0)}
    attached.receive("worker-0", BarrierArrival(2, "epoch", 0, ("workers",)))
    assert not attached.sent(BarrierReleased)
    attached.receive("worker-1", BarrierArrival(3, "epoch", 0, ("workers",)))
    assert set(attached.told(BarrierReleased)) == {"worker-0", "worker-1"}


def test_a_group_of_a_finished_groups_name_begins_with_new_barriers_and_leases(attached):
    def life(node):
        inc = attached.incarnation(node)
        attached.receive(node, BarrierArrival(inc, "epoch", 0, ("workers",)))
        assert attached.told(BarrierReleased) == {node: BarrierReleased("epoch", 0)}
        attached.receive(node, Lease(inc, 0, 1, 4))
        assert attached.told(Leased)[node] == Leased(0, 0, 0, 2, False)
        attached.finish(node)
        attached.promise()

    life("guest-0")
    attached.guest("guest-1")
    attached.promise()
    attached.receive("worker-0", Lease(2, 0, 1, 4))
    assert attached.told(Leased)["worker-0"].first == 0  # of its own
    life("guest-1")


def test_a_restarted_scheduler_keeps_the_groups_barriers_and_leases(attached, rigs):
    inc = attached.incarnation("guest-0")
    attached.receive("guest-0", Lease(inc, 0, 1, 4))
    attached.receive("guest-0", BarrierArrival(inc, "epoch", 0, ("workers",)))
    again = rigs.SchedulerRig(attached.journal)
    again.at(0.0)
    again.promise()
    assert again.view.group("eval")[0].group_size == 1
    again.receive("guest-0", BarrierArrival(inc, "epoch", 0, ("workers",)))
    assert again.told(BarrierReleased) == {"guest-0": BarrierReleased("epoch", 0)}
    again.receive("guest-0", Lease(inc, 2, 1, 4))
    assert again.told(Leased)["guest-0"] == Leased(2, 0, 2, 1, False)


def test_a_lease_is_logged_before_it_is_journalled_and_told(rigs):
    """A scheduler that dies in between has granted nothing: its log begins anew with a lease that
    nobody has."""
    rig = rigs.SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    effects = rig.receive("worker-0", Lease(rig.incarnation("worker-0"), 0, 1, 4))
    told = [
        each for each in effects if not isinstance(each, Send) or isinstance(each.message, Leased)
    ]
    kinds = [type(each) for each in told if isinstance(each, Append | Persist | Send)]
    assert kinds[-2:] == [Persist, Send]
    assert set(kinds[:-2]) == {Append}


def test_the_lease_log_says_after_how_many_clocks_a_dead_workers_leases_ended(rigs):
    """Before the view without it is offered: a checkpoint may be written as soon as it is."""
    rig = rigs.SchedulerRig(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    dead = rig.incarnation("worker-0")
    rig.receive("worker-0", Lease(dead, 0, 1, 4))
    rig.machine._lost(["worker-0"], "killed", rig.now, [])
    rig.promise(clocks=((dead, 3),))
    entries = [each.entry for each in rig.effects if isinstance(each, Append)]
    assert any(b"WorkerGone" in each and b"3" in each for each in entries), entries
