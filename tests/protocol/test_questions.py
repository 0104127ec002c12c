"""A peer that leaves several questions unanswered is dialled anew, once for as many."""

import pytest
from msgspec.structs import replace

from shoal.protocol.machine import Redial, Ticked
from shoal.protocol.messages.base import SCHEDULER, Part
from shoal.protocol.messages.membership import Freeze, HeartbeatSeen, NewView
from shoal.protocol.messages.replication import Replicate, ReplicateAck
from shoal.protocol.messages.requests import Probe
from shoal.protocol.questions import REDIAL_AFTER
from shoal.protocol.requests import Exchange


def listening(rig):
    """The rig in a view whose servers listen somewhere."""
    servers = tuple(replace(each, address=f"tcp://{each.id}:1") for each in rig.view.servers)
    rig.view = replace(rig.view, number=2, servers=servers)
    rig.receive(SCHEDULER, NewView(rig.view))
    return rig


def after(rig, seconds):
    """(questions of a rig, what it dials anew) in that time."""
    questions, redials, until = [], [], rig.now + seconds
    while rig.now < until:
        rig.now += 0.1
        rig.handle(Ticked())
        questions += rig.sent(Probe) + rig.sent(Replicate)
        redials += [each for each in rig.effects if isinstance(each, Redial)]
    return questions, [each for each in redials if each.to != SCHEDULER]


def test_a_server_that_answers_no_probe(worker, pull):
    listening(worker).ask(1, Exchange(pulls=pull))
    probes, redials = after(worker, 12.0)
    assert len(probes) // REDIAL_AFTER == len(redials) > 0
    assert redials[0] == Redial("server-0", "tcp://server-0:1")


def test_a_server_that_answers_is_left_alone(worker, pull):
    listening(worker).ask(1, Exchange(pulls=pull))
    probed = 0
    for _ in range(150):
        probes, redials = after(worker, 0.1)
        assert redials == []
        if probes:
            worker.answer(0, 0, "waiting")
            probed += 1
    assert probed > REDIAL_AFTER


def test_a_scheduler_that_answers_no_heartbeat(worker):
    found = []
    for second in range(1, 8):
        worker.now = float(second)
        worker.handle(Ticked())
        found += [each for each in worker.effects if isinstance(each, Redial)]
        if second == 2:
            worker.receive(SCHEDULER, HeartbeatSeen())
    assert found == [Redial(SCHEDULER, "")]  # the first two of seven were answered


@pytest.fixture
def head(rigs):
    """Server 0, before server 1 in the chain of its rows."""
    return listening(rigs.ServerRig(rigs.table(), servers=2, replicas=2))


def test_a_server_that_acknowledges_nothing(head, rigs):
    rows = head.view.placements[0][0].rows
    head.ask(0, 0, rigs.as_bytes(1, 2), pushes=(Part(0, rows.start, rows.stop),))
    resent, redials = after(head, 4.5)
    assert len(resent) == 2 * REDIAL_AFTER  # a clock and the push
    assert redials == [Redial("server-1", "tcp://server-1:1")]
    head.receive("server-1", ReplicateAck(head.view.id, 1, ((0, 0, 1),)))
    assert head.machine.session.unanswered.counts.get("server-1") is None


def in_views(rig, views, seconds):
    """What a rig dials anew while views follow each other, each after so many seconds."""
    found = []
    for _ in range(views):
        rig.view = replace(rig.view, number=rig.view.number + 1)
        rig.receive(SCHEDULER, NewView(rig.view))
        found += after(rig, seconds)[1]
    return found


def test_a_silent_server_is_dialled_anew_although_views_follow_each_other(head, rigs):
    """Each view begins the questions again, sooner than there are several of them."""
    rows = head.view.placements[0][0].rows
    head.ask(0, 0, rigs.as_bytes(1, 2), pushes=(Part(0, rows.start, rows.stop),))
    assert in_views(head, 6, 0.6)[:1] == [Redial("server-1", "tcp://server-1:1")]


def test_a_server_that_answers_no_greeting(head):
    assert after(head, 4.5)[1] == [Redial("server-1", "tcp://server-1:1")]


def test_a_server_that_answers_greetings_is_left_alone_in_any_number_of_views(head):
    found = []
    for _ in range(6):
        found += in_views(head, 1, 0.6)
        head.receive("server-1", ReplicateAck(head.view.id, 0, ()))
    assert found == []


def test_a_server_that_refuses_no_view(rigs):
    """Its answer is needed so that the others go on while their scheduler is away."""
    server = listening(rigs.ServerRig(rigs.table(), servers=2, replicas=1))
    server.receive(SCHEDULER, Freeze((1, 9), server.view.id))
    assert after(server, 12.0)[1][:1] == [Redial("server-1", "tcp://server-1:1")]


def test_a_server_that_has_left_is_forgotten(worker, pull):
    listening(worker).ask(1, Exchange(pulls=pull))
    after(worker, 1.0)
    unanswered = worker.machine.session.unanswered
    assert "server-0" in unanswered.counts
    unanswered.keep({SCHEDULER})
    assert "server-0" not in unanswered.counts
