"""Socket pairs of one process: descriptors, threads and turns."""

import os
import select
import threading

import pytest

from shoal.errors import AddressInUse, HandshakeFailed
from shoal.protocol.machine import Discard
from shoal.protocol.messages.requests import Nudge
from shoal.testing.connections import CALLER, LISTENER, TIMEOUT_S, End, connected, meet, readable
from shoal.transport.inproc import InprocTransport
from shoal.transport.stream import INBOX_BYTES

ADDRESS = "inproc://here"


@pytest.fixture
def transport():
    return InprocTransport()


@pytest.fixture
def pair(transport):
    with connected(lambda: (transport, ADDRESS)) as pair:
        yield pair


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_each_end_closes_its_own_descriptor(pair):
    mine, theirs = pair.caller.connection.fileno(), pair.callee.connection.fileno()
    pair.caller.connection.close()
    assert not is_open(mine)
    assert is_open(theirs)
    pair.callee.connection.close()
    assert not is_open(theirs)


def test_a_closed_descriptor_is_never_signalled(pair):
    """Its number has a new owner by then."""
    pair.callee.connection.close()
    fresh = os.eventfd(0, os.EFD_NONBLOCK)
    pair.caller.send(Nudge("x"))
    pair.caller.connection.close()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fresh)
    os.close(fresh)


def test_a_listener_closes_what_it_has_not_accepted(transport):
    listener = transport.listen(ADDRESS, LISTENER)
    signal = listener.fileno()
    caller = transport.connect(ADDRESS, CALLER, 1.0)
    waiting = listener.arrivals[0].fileno()
    listener.close()
    listener.close()
    assert not is_open(signal)
    assert not is_open(waiting)
    assert listener.accept() is None
    end = End(caller)
    end.receive()
    assert end.ended
    caller.close()


def test_the_signal_counts_arrivals(transport):
    listener = transport.listen(ADDRESS, LISTENER)
    assert listener.accept() is None
    callers = [transport.connect(ADDRESS, CALLER, 1.0) for _ in range(3)]
    accepted = []
    while readable(listener.fileno(), 0):
        accepted.append(listener.accept())
    assert len(accepted) == 3
    for connection in (*callers, *accepted):
        connection.close()
    listener.close()


def test_nothing_is_left_where_more_than_one_inbox_waits(pair):
    count = INBOX_BYTES // 16
    for number in range(count):
        pair.caller.send(Nudge(str(number)))
    while readable(pair.callee.connection.fileno(), 0):
        pair.callee.receive()
        pair.caller.connection.flush()
    assert pair.callee.messages == [Nudge(str(number)) for number in range(count)]
    pair.callee.receive()
    assert not pair.callee.ended


@pytest.mark.parametrize("count", [0, 1, 64, 65])
def test_the_end_of_a_connection_is_signalled(pair, count):
    for number in range(count):
        pair.caller.send(Nudge(str(number)))
    pair.caller.connection.close()
    while not pair.callee.ended:
        assert readable(pair.callee.connection.fileno(), 0)
        pair.callee.receive()
    assert len(pair.callee.delivered) == count


def test_the_end_is_signalled_until_the_connection_is_closed(pair):
    pair.caller.connection.close()
    pair.callee.receive()
    assert pair.callee.ended
    pair.callee.receive()
    assert pair.callee.ended


def test_an_inproc_name_that_is_taken_or_unknown_is_refused(transport):
    listener = transport.listen(ADDRESS, LISTENER)
    with pytest.raises(AddressInUse, match="inproc://here is taken"):
        transport.listen(ADDRESS, LISTENER)
    transport.listen("inproc://there", LISTENER).close()
    listener.close()
    with pytest.raises(HandshakeFailed, match="no node answers at inproc://here"):
        transport.connect(ADDRESS, CALLER, 1.0)


def test_threads_on_both_ends_exchange_all_messages(transport):
    """Nothing is lost or left where each end has its own thread, and one closes at some time."""
    for _ in range(20):
        listener = transport.listen(ADDRESS, LISTENER)
        caller, end = meet(transport, listener, CALLER)
        listener.close()
        sent = 500

        def talk(caller=caller, sent=sent):
            for number in range(sent):
                caller.send(Nudge(str(number)), [memoryview(b"payload")])
                caller.receive(lambda *_: Discard(""), lambda *_: None, lambda *_: None)
            while caller.backlog:
                select.select([], [caller], [], TIMEOUT_S)
                caller.flush()
            caller.close()

        thread = threading.Thread(target=talk)
        thread.start()
        while not end.ended:
            if select.select([end.connection], [], [], TIMEOUT_S)[0]:
                end.receive()
                end.send(Nudge("echo"))
        thread.join()
        end.connection.close()
        assert end.messages == [Nudge(str(number)) for number in range(sent)]
