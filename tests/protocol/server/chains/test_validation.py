"""Messages that a server refuses from its predecessor in a chain, and from a node with its name."""

import pytest
from msgspec.structs import replace

from shoal.errors import InvariantBroken
from shoal.protocol.limits import EARLY_MAX
from shoal.protocol.machine import Received
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.replication import EncodedReplicate, Replicate, ReplicateAck
from shoal.tables.consistency import bsp

NEXT = 1  # after the head has said its clock
PUSH = Replicate((1, 1), NEXT, (0,), 0, "push", (Part(0, 0, 4),), (1,), (None,))
KEYED = replace(PUSH, parts=(Part(0, 0, 4, 2),))


@pytest.fixture
def tail(rigs):
    machine = rigs.Chain(bsp()).servers[1]
    assert machine.chains.expected("server-0") == NEXT
    return machine


def problem(machine, message, sender="server-0", payload=None):
    return machine.problem_of(Received(sender, message, payload))


def test_a_lawful_push_is_taken(tail):
    assert problem(tail, PUSH) == ""
    assert problem(tail, ReplicateAck((1, 1), 0, ())) == ""


@pytest.mark.parametrize("sender", ["worker-0", "nobody", "scheduler"])
@pytest.mark.parametrize("message", [PUSH, replace(PUSH, parts=(), versions=(), rates=())])
def test_operations_come_from_servers(tail, sender, message):
    assert "no server of this view" in problem(tail, message, sender)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"parts": (Part(0, 0, 5),)}, "not the server before"),
        ({"parts": (Part(0, 3, 2),)}, "rows [3:2)"),
        ({"parts": (Part(1, 0, 4),)}, "not the server before"),
        ({"parts": (Part(0, 0, 4, 5),)}, "5 keys"),
        ({"parts": (Part(0, 0, 4, -2),)}, "-2 keys"),
        ({"versions": ()}, "do not agree"),
        ({"rates": (None, None)}, "do not agree"),
        ({"parts": (Part(0, 0, 2), Part(0, 2, 4)), "versions": (1, 1), "rates": (None,) * 2},
         "version 1"),
        ({"what": "call"}, "is dense"),
        ({"what": "accept", "round": 0}, "of 0 requests"),
        ({"what": "round"}, "of no round"),
        ({"what": "check", "parts": (Part(0, 0, 4, 2),)}, "a check of 2 keys"),
        ({"number": NEXT + EARLY_MAX + 1}, "is the next"),
        ({"group": "nobody's"}, "no worker group"),
        ({"what": "write", "parts": (Part(0, 0, 4, -1, 1),)}, "1 slots"),
    ],
)  # fmt: skip
def test_operations_that_no_server_sends(tail, changed, says):
    assert says in problem(tail, replace(PUSH, **changed))


ENCODED = EncodedReplicate((1, 1), NEXT, (0,), 0, "push", (Part(0, 0, 4),), (1,), (None,))
ROUND = {"what": "round", "round": 0, "merges": (((1.0, None),) * 2,)}


def test_lawful_encoded_operations_are_taken(tail):
    assert problem(tail, replace(ENCODED, sizes=((9,),))) == ""
    assert problem(tail, replace(ENCODED, sizes=((9, 7),), **ROUND)) == ""
    assert problem(tail, replace(ENCODED, sizes=((),))) == ""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"sizes": ((9,), (9,))}, "do not agree"),
        ({"sizes": ((9,),), "merges": ((), ())}, "do not agree"),
        ({"sizes": ((33,),)}, "33 bytes, whose rows have 32"),
        ({"sizes": ((0,),)}, "of 0 bytes"),
        ({"sizes": ((9, 9),)}, "2 encoded fragments"),
        ({"sizes": ((9,),), "what": "write"}, "a write that is encoded"),
        ({"sizes": ((9,),), "what": "round", "round": 0}, "of 0 pushes"),
        ({"sizes": ((9,),), "merges": (((1.0, None),),)}, "a push that is encoded, of 1 pushes"),
        ({**ROUND, "sizes": ((9, 7, 5),)}, "2 pushes of 3 encoded fragments"),
        ({**ROUND, "sizes": ((9, 33),)}, "33 bytes, whose rows have 32"),
        ({**ROUND, "sizes": ((),)}, "0 encoded fragments"),
        ({"sizes": ((9,),), "parts": (Part(0, 0, 4, 2),)}, "or of keys"),
    ],
)
def test_encoded_operations_that_no_server_sends(tail, changed, says):
    assert says in problem(tail, replace(ENCODED, **changed))


def test_keys_are_looked_at_before_they_are_applied(tail):
    sink = tail.arriving("server-0", KEYED, 2 * 8 + 2 * 8)
    sink.views[0].cast("q")[:] = memoryview(bytes(16)).cast("q")  # the key 0, twice
    assert "strictly increasing" in problem(tail, KEYED, payload=sink)


@pytest.mark.parametrize("number", [NEXT, NEXT + 1])
def test_a_server_that_has_diverged_from_the_one_before_it_stops(tail, number):
    """It is started again and gets all rows anew; refused for ever, both would wait."""
    skips = replace(PUSH, number=number, versions=(7,))
    if number > NEXT:  # it comes early
        take(tail, skips)
    with pytest.raises(InvariantBroken, match="version 7"):
        take(tail, skips if number == NEXT else PUSH)


def take(machine, message):
    sink = machine.arriving("server-0", message, 32)
    assert problem(machine, message, payload=sink) == ""
    machine.handle(Received("server-0", message, sink), 0.0)
