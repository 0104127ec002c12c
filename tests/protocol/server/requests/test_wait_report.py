"""What a server says of those who wait at it."""

import msgspec
import pytest

from shoal.protocol.machine import Ticked
from shoal.protocol.messages.admin import StatusReply, StatusRequest, Waits
from shoal.protocol.messages.base import SCHEDULER, Part
from shoal.protocol.messages.membership import Freeze, WaitTimes
from shoal.tables.consistency import bsp, ssp

ALL = (Part(0, 0, 4),)


@pytest.fixture
def server(rigs):
    return rigs.ServerRig(rigs.table(bsp()), workers=3)


def step(server, worker, seq, after_s, pulls=ALL):
    """A worker finishes a clock, so long after what came before."""
    server.now += after_s
    return server.ask(worker, seq, clock=seq, advance=seq + 1, pulls=pulls)


def view_of(server, number):
    return msgspec.structs.replace(server.view, number=number)


def told(server):
    """What the scheduler has been told so far: seconds by worker, of incarnations 11, 12, 13."""
    server.now += 0.25
    server.handle(Ticked())
    return [dict(message.seconds) for message in server.sent(WaitTimes)]


def test_the_last_one_is_waited_for_while_most_wait(server):
    step(server, 0, 0, 0.0)
    step(server, 1, 0, 1.0)  # two of three were missing until now: nobody is to blame
    step(server, 2, 0, 0.5)
    assert told(server) == [{13: 0.5}]
    step(server, 2, 1, 1.0)
    step(server, 0, 1, 1.0)
    step(server, 1, 1, 0.125)
    assert told(server) == [{13: 0.5, 12: 0.125}]


def test_it_goes_on_while_nothing_happens(server):
    step(server, 0, 0, 0.0)
    step(server, 1, 0, 0.0)
    assert [told(server) for _ in range(3)] == [[{13: 0.25}], [{13: 0.5}], [{13: 0.75}]]


def test_where_nobody_waits_nobody_is_late(rigs):
    server = rigs.ServerRig(rigs.table(ssp(4)), workers=3)
    step(server, 0, 0, 1.0)
    step(server, 1, 0, 1.0)
    assert told(server) == []


def test_while_a_view_is_made_nobody_is_waited_for(server):
    step(server, 0, 0, 0.0)
    step(server, 1, 0, 0.0)
    server.receive(SCHEDULER, Freeze((1, 2)))
    server.now += 3
    server.adopt(view_of(server, 2))
    assert told(server) == [{13: 0.25}]


def test_it_explains_what_waits(server):
    step(server, 0, 0, 0.0)
    server.now += 2
    server.receive("a person", StatusRequest())
    reason = "waits for clock 1 of worker-1 (at 0), worker-2 (at 0)"
    name = server.machine.session.view.tables[0].name
    waiting = Waits(f"pull {name}[0:4) at clock 1", reason, 1, (("worker-0", 2.0),))
    assert server.sent(StatusReply) == [StatusReply("server-0", (waiting,))]
