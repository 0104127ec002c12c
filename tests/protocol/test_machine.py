"""What all machines have: sinks for payloads, and a trace of their events."""

from shoal.errors import InvariantBroken
from shoal.protocol.machine import EventTrace, Sink
from shoal.protocol.messages.requests import Probe


def test_a_revoked_sink_has_no_views():
    buffer = bytearray(8)
    sink = Sink([memoryview(buffer)])
    sink.revoke()
    assert (sink.revoked, sink.views, sink.nbytes) == (True, [], 8)


def test_an_event_trace_keeps_the_latest_events_for_errors():
    trace = EventTrace(length=2)
    for number in range(3):
        trace.add((0.5 * number, "worker-0", Probe((1, 1), 11, number)))
    error = trace.broken("it went wrong")
    assert isinstance(error, InvariantBroken)
    assert str(error).splitlines() == [
        "it went wrong",
        "  the last events:",
        "    0.500000 worker-0: Probe #1",
        "    1.000000 worker-0: Probe #2",
    ]
