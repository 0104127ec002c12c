"""The laws of transports: functions of `make`, which returns a transport and an address.

    @pytest.mark.parametrize("law", TRANSPORT_LAWS, ids=lambda law: law.__name__)
    def test_law(law):
        law(lambda: (TcpTransport(), "tcp://127.0.0.1:0"))

No listener may be at the address that `make()` returns. Connections are polled as a node polls them
(`testing.connections`): level-triggered, and read only when they are readable, so that a transport
that keeps messages to itself times out and fails.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from shoal.errors import AddressInUse, AddressInvalid, HandshakeFailed
from shoal.protocol.machine import Discard, Sink
from shoal.protocol.messages.base import Message
from shoal.protocol.views import NodeId
from shoal.testing.connections import (
    CALLER,
    LISTENER,
    TIMEOUT_S,
    TOKEN,
    End,
    Make,
    Pair,
    connected,
    laws_in,
    listening,
    meet,
    raises,
    readable,
)
from shoal.testing.exchanges import MESSAGE_LAWS, MIB, noise, nudge
from shoal.transport.base import Identity, transport_for

# ---------------------------------------------------------------------------- handshake


def both_sides_learn_who_is_there(make: Make) -> None:
    with connected(make) as pair:
        assert pair.caller.connection.peer == LISTENER.node
        assert pair.callee.connection.peer == CALLER.node
        assert pair.callee.connection.role == CALLER.role


def a_wrong_token_is_refused(make: Make) -> None:
    """Check that both sides refuse; the listener then accepts a caller who knows the token."""
    with listening(make) as (transport, listener):
        for token in ("a token that is wrong", "", TOKEN + " "):
            with raises(HandshakeFailed) as caught:
                meet(transport, listener, Identity("worker-x", "worker", "job-1", token))
            assert "token" in str(caught[0]), f"does not say why: {caught[0]}"
            assert TOKEN not in repr(caught[0])
        friend, there = meet(transport, listener, CALLER)
        friend.close()
        there.connection.close()


def a_listener_has_to_know_the_token_too(make: Make) -> None:
    another = Identity(LISTENER.node, LISTENER.role, LISTENER.job, TOKEN[::-1])
    with listening(make, another) as (transport, listener), raises(HandshakeFailed):
        meet(transport, listener, CALLER)


def another_job_is_refused(make: Make) -> None:
    with listening(make) as (transport, listener):
        with raises(HandshakeFailed) as caught:
            meet(transport, listener, Identity("worker-b", "worker", "job-2", TOKEN))
        assert "job-1" in str(caught[0]), f"does not name the job: {caught[0]}"


def a_token_is_never_shown(make: Make) -> None:
    with connected(make) as pair:
        ends = (pair.caller.connection, pair.callee.connection)
        assert TOKEN not in "".join(map(repr, ends))
    with listening(make, Identity("server-a", "server", "", TOKEN)) as (transport, listener):
        assert TOKEN not in repr(listener) + repr(transport)


def silence_is_not_waited_for(make: Make) -> None:
    """Check that `connect` does not wait beyond its time-out for a listener that never answers."""
    with listening(make) as (transport, listener), ThreadPoolExecutor(1) as pool:
        calling = pool.submit(transport.connect, listener.address, CALLER, 0.1)
        try:
            calling.result(TIMEOUT_S / 2).close()  # it may need no help of the listener's loop
        except HandshakeFailed:
            pass
        except TimeoutError:
            raise AssertionError("connect waits on and on") from None
        finally:
            listener.close()


# ---------------------------------------------------------------------------- the end


def the_end_comes_after_what_was_sent(make: Make) -> None:
    with connected(make) as pair:
        for number in range(200):
            pair.caller.send(nudge(number), memoryview(b"x" * number))
        pair.caller.connection.close()
        pair.pump(lambda: pair.callee.ended)
        assert pair.callee.messages == [nudge(number) for number in range(200)]
        pair.callee.receive()
        assert pair.callee.ended, "the end was reported once only"


def half_a_payload_is_never_delivered(make: Make) -> None:
    """Close the sender while its payload is under way: it is delivered whole, or never."""
    with connected(make) as pair:
        into = bytearray(40 * MIB)
        pair.callee.sinks = lambda nbytes: Sink([memoryview(into)])
        pair.caller.send(nudge(1), memoryview(noise(len(into))))
        pair.pump(lambda: bool(pair.callee.announced))
        pair.caller.connection.close()
        assert pair.caller.connection.backlog == 0
        pair.pump(lambda: pair.callee.ended)
        assert not pair.callee.delivered or into == noise(len(into)), "half a payload"


def closing_takes_the_sink_back(make: Make) -> None:
    """Check that a sink that is being filled when its connection closes is revoked."""
    with connected(make) as pair:
        sink = Sink([memoryview(bytearray(40 * MIB))])
        pair.callee.sinks = lambda nbytes: sink
        pair.caller.send(nudge(1), memoryview(bytes(40 * MIB)))
        pair.pump(lambda: bool(pair.callee.announced))
        pair.callee.connection.close()
        assert sink.revoked or pair.callee.delivered


def sending_to_a_peer_that_has_gone_is_harmless(make: Make) -> None:
    """Check that nothing raises, nothing waits for ever, and the next `receive` reports the end."""
    with connected(make) as pair:
        pair.callee.connection.close()
        for number in range(20):
            pair.caller.send(nudge(number), memoryview(bytes(MIB)))
            pair.caller.connection.flush()
        pair.pump(lambda: pair.caller.ended)
        pair.caller.send(nudge(21))
        pair.caller.connection.flush()
        assert pair.caller.connection.backlog == 0, "something waits for a peer that has gone"


def a_closed_connection_stays_closed(make: Make) -> None:
    with connected(make) as pair:
        pair.caller.send(nudge(1))
        pair.pump(lambda: bool(pair.callee.delivered))
        pair.callee.connection.close()
        pair.callee.connection.close()
        pair.callee.send(nudge(2), memoryview(b"abc"))
        pair.callee.connection.flush()
        assert pair.callee.connection.backlog == 0
        assert pair.callee.connection.fileno() == -1
        pair.callee.receive()
        assert pair.callee.ended


def a_connection_may_be_closed_by_whom_it_delivers_to(make: Make) -> None:
    with connected(make) as pair:
        got: list[Message] = []

        def deliver(sender: NodeId, message: Message, sink: Sink | None) -> None:
            got.append(message)
            pair.callee.connection.close()

        for number in range(10):
            pair.caller.send(nudge(number))
        assert readable(pair.callee.connection.fileno(), TIMEOUT_S)
        receive = pair.callee.connection.receive
        alive = receive(lambda *_: Discard(""), deliver, lambda *_: None)
        assert not alive or not receive(lambda *_: Discard(""), deliver, lambda *_: None)
        assert got == [nudge(0)], "messages were delivered after the connection was closed"


# ---------------------------------------------------------------------------- addresses


def an_address_is_given_once(make: Make) -> None:
    """Check that a second listener is refused, until the first has closed."""
    with listening(make) as (transport, listener):
        with raises(AddressInUse) as caught:
            transport.listen(listener.address, LISTENER)
        assert listener.address in str(caught[0]), f"does not name the address: {caught[0]}"
        caller, callee = meet(transport, listener, CALLER)  # the first is unharmed
        address = listener.address
    caller.close()
    callee.connection.close()
    with listening(lambda: (transport, address)) as (_, again):
        caller, callee = meet(transport, again, CALLER)
        caller.close()
        callee.connection.close()


def bad_addresses_are_refused(make: Make) -> None:
    """Check that the errors name the forms that are valid."""
    transport, address = make()
    scheme = address.partition("://")[0]
    for bad in ("", "nonsense", "http://x", f"{scheme}://", f"{scheme}:x"):
        with raises(AddressInvalid) as caught:
            transport_for(bad)
        assert "://" in str(caught[0]), f"does not say how: {caught[0]}"
        with raises(AddressInvalid):
            transport.listen(bad, LISTENER)
        with raises(AddressInvalid):
            transport.connect(bad, CALLER, 1.0)
    with raises(AddressInvalid):
        transport.listen(address + "\0", LISTENER)


def nobody_there_is_said_at_once(make: Make) -> None:
    transport, address = make()
    began = monotonic()
    with raises(HandshakeFailed) as caught:
        transport.connect(address, CALLER, TIMEOUT_S)
    assert address in str(caught[0]), f"does not name the address: {caught[0]}"
    with listening(make) as (transport, listener):
        address = listener.address
    with raises(HandshakeFailed):
        transport.connect(address, CALLER, TIMEOUT_S)
    assert monotonic() - began < TIMEOUT_S / 2


def closing_a_listener_hangs_up_on_whoever_waits(make: Make) -> None:
    """Check that a caller that was never accepted learns it; a listener may be closed twice."""
    with listening(make) as (transport, listener), ThreadPoolExecutor(1) as pool:
        calling = pool.submit(transport.connect, listener.address, CALLER, TIMEOUT_S)
        assert readable(listener.fileno(), TIMEOUT_S)
        listener.close()
        listener.close()
        try:
            end = End(calling.result())
        except HandshakeFailed:
            return
        Pair(end, end).pump(lambda: end.ended)
        end.connection.close()


def nothing_stays_open(make: Make) -> None:
    """Check that closing both ends and the listener gives every descriptor back."""
    with connected(make):
        pass  # whatever is opened once and kept
    before = _open_descriptors()
    for _ in range(3):
        with connected(make) as pair:
            pair.caller.send(nudge(1), memoryview(bytes(MIB)))
        with listening(make, Identity("server-a", "server", "", TOKEN)) as (transport, listener):
            with raises(HandshakeFailed):
                meet(transport, listener, Identity("worker-b", "worker"))
            with raises(AddressInUse):
                transport.listen(listener.address, LISTENER)
        with raises(AddressInvalid):
            transport.connect("nonsense", CALLER, 1.0)
    after = _open_descriptors()
    assert after == before, f"{after - before} descriptors leaked"


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


TRANSPORT_LAWS = (*laws_in(__name__), *MESSAGE_LAWS)
