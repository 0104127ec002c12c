"""A scheduler that dies at any of its records goes on, and ends, as if it had not.

What follows from one record and is written in a later one has to follow again after a restart.
"""

import pytest

from shoal.protocol.machine import Persist, Received, Send
from shoal.protocol.messages.admin import DeathReport, DeathReportSeen
from shoal.protocol.messages.membership import Abort, End, Finish, Finished, Heartbeat, Join

MEMBERS = ("server-0", "server-1", "worker-0", "worker-1")


def make(rigs, workers, **more):
    """A cluster in its first view; its processes have the launches from "10" on."""
    rig = rigs.SchedulerRig(servers=2, workers=workers, replicas=2, **more)
    for number, name in enumerate(MEMBERS[: 2 + workers], 10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    return rig


def last_worker_finishes(rigs):
    rig = make(rigs, 2)
    rig.finish("worker-0")
    return rig, "worker-1", Finish(4, rig.view.id), Finished


def last_worker_dies(rigs):
    rig = make(rigs, 2)
    rig.finish("worker-0")
    return rig, "engine", DeathReport("13"), DeathReportSeen


def all_workers_die(rigs):
    return make(rigs, 1), "engine", DeathReport("12"), DeathReportSeen


def a_worker_aborts(rigs):
    return make(rigs, 2), "worker-0", Abort("it broke"), End


def both_servers_die(rigs):
    rig = make(rigs, 2)
    rig.receive("engine", DeathReport("10"))
    return rig, "engine", DeathReport("11"), DeathReportSeen


CASES = [last_worker_finishes, last_worker_dies, all_workers_die, a_worker_aborts, both_servers_die]


def cuts(rig, sender, message):
    """The records that a scheduler may die with in a handler, and what it has sent before."""
    before = rig.journal
    effects = rig.machine.handle(Received(sender, message), rig.now)
    found = [(before, [])]
    for number, effect in enumerate(effects):
        if isinstance(effect, Persist):
            found.append((effect.record, effects[:number]))
    assert len(found) > 1, "nothing is written"
    return found


def go_on(rig, dead):
    """Living members answer whatever the scheduler asks, for a minute."""
    for second in range(60):
        rig.at(second)
        if rig.machine.ended:
            return
        rig.confirm()
        for node, member in list(rig.machine.members.by_id.items()):
            if node not in dead and node not in rig.machine.members.finished:
                view = rig.view.id if rig.view else (0, 0)
                rig.receive(node, Heartbeat(member.incarnation, view))


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.__name__)
def test_the_run_ends_whichever_record_is_the_last(rigs, case):
    rig, sender, message, answer = case(rigs)
    dead = {MEMBERS[int(message.launch) - 10]} if isinstance(message, DeathReport) else set()
    options = rig.machine.options
    for record, sent in cuts(rig, sender, message):
        again = rigs.SchedulerRig(
            record, servers=2, workers=options.workers, replicas=2, failure_timeout_s=10
        )
        again.at(0.0)
        told = [each for each in sent if isinstance(each, Send) and each.to == sender]
        if not any(isinstance(each.message, answer) for each in told):
            again.receive(sender, message)  # it repeats what was not answered
        go_on(again, dead)
        assert again.machine.ended, f"it goes on after {len(sent)} effects"


def test_a_group_ends_as_a_whole_whichever_record_is_the_last(rigs):
    """Its members were told one by one: a crash between left the others at work."""
    rig = make(rigs, 2)
    for name in ("guest-0", "guest-1", "guest-2"):
        rig.guest(name, size=3)
    rig.promise()
    options = {"servers": 2, "workers": 2, "replicas": 2, "failure_timeout_s": 10}
    for record, sent in cuts(rig, "guest-0", Abort("it broke")):
        again = rigs.SchedulerRig(record, **options)
        again.at(0.0)
        if not any(each.to == "guest-0" for each in sent if isinstance(each, Send)):
            again.receive("guest-0", Abort("it broke"))
        assert again.machine.members.at_work("eval") == []
        again.receive("guest-2", Heartbeat(7, again.view.id))
        assert again.told(End)["guest-2"].error
