"""Shared memory: what goes through it, and peers that lie about it."""

import fcntl
import mmap
import os
import random
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.errors import BadLength, BadSharedMemory, WireError
from shoal.protocol.machine import Loan, Sink
from shoal.protocol.messages import Nudge
from shoal.testing.connections import CALLER, LISTENER, End, connected
from shoal.transport.base import transport_for
from shoal.transport.handshake import hello
from shoal.transport.shared import (
    CHUNK_BYTES,
    RING_BYTES,
    SHARED_BYTES,
    Inlet,
    Outlet,
    receive_with,
    send_with,
)
from shoal.transport.stream import StreamConnection
from shoal.transport.wire import PUT, SHARED, TAKEN, encode, message_of, signal

HEADER = Nudge("x")


@pytest.fixture
def pair(tmp_path):
    with connected(lambda: (transport_for(f"unix://{tmp_path}/s"), f"unix://{tmp_path}/s")) as pair:
        yield pair


class Watched:
    """A socket that counts what it is given."""

    def __init__(self, sock):
        self.sock, self.sent = sock, 0

    def send(self, data):
        sent = self.sock.send(data)
        self.sent += sent
        return sent

    def sendmsg(self, pieces):
        sent = self.sock.sendmsg(pieces)
        self.sent += sent
        return sent

    def __getattr__(self, name):
        return getattr(self.sock, name)


# ---------------------------------------------------------------------------- what goes through


@pytest.mark.parametrize("size", [SHARED_BYTES, CHUNK_BYTES + 1, RING_BYTES, 3 * RING_BYTES + 7])
def test_a_large_payload_does_not_touch_the_socket(pair, size):
    watched = pair.caller.connection._sock = Watched(pair.caller.connection._sock)
    data = random.Random(size).randbytes(size)
    pair.caller.send(HEADER, memoryview(data))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert pair.callee.delivered[0][1].views[0] == data
    assert watched.sent < 100 + 20 * (size // CHUNK_BYTES + 2)


def test_a_small_one_stays_on_the_socket(pair):
    watched = pair.caller.connection._sock = Watched(pair.caller.connection._sock)
    pair.caller.send(HEADER, memoryview(bytes(SHARED_BYTES - 1)))
    assert watched.sent >= SHARED_BYTES - 1


def test_both_ends_may_fill_their_rings_at_once(pair):
    """Neither has room, and what each has taken has to be told all the same."""
    data = random.Random(0).randbytes(5 * RING_BYTES)
    for end in (pair.caller, pair.callee):
        for number in range(2):
            end.send(Nudge(str(number)), memoryview(data))
    pair.pump(lambda: len(pair.caller.delivered) == len(pair.callee.delivered) == 2)
    for end in (pair.caller, pair.callee):
        assert all(sink.views[0] == data for _, sink in end.delivered)


def test_who_waits_for_room_in_the_ring_does_not_wait_for_the_socket(pair):
    pair.caller.send(HEADER, memoryview(bytes(2 * RING_BYTES)))
    assert pair.caller.connection.backlog == RING_BYTES
    assert not pair.caller.connection.wants_write


def test_nothing_is_copied_for_a_loan_that_is_not_recalled(pair):
    rows, loan = bytearray(2 * RING_BYTES), Loan()
    pair.caller.send(HEADER, memoryview(rows), loan=loan)
    rows[-4:] = b"late"  # they were not to change; it shows that no copy was made
    pair.pump(lambda: bool(pair.callee.delivered))
    assert bytes(pair.callee.delivered[0][1].views[0][-4:]) == b"late"


def test_payloads_of_any_size_follow_each_other(pair):
    """Each begins on a line's edge in the ring: what is skipped is counted on both sides."""
    sizes = [SHARED_BYTES + extra for extra in (1, 63, 64, 65, 0, 7)] * 40
    for size in sizes:
        pair.caller.send(HEADER, memoryview(bytes([size % 251]) * size))
    pair.pump(lambda: len(pair.callee.delivered) == len(sizes))
    for size, (_, sink) in zip(sizes, pair.callee.delivered, strict=True):
        assert sink.views[0] == bytes([size % 251]) * size
    assert pair.caller.connection._outbox.outlet._at % 64 == 0


def test_views_that_begin_within_a_line_are_filled(pair):
    into = memoryview(bytearray(RING_BYTES))
    cuts = [0, 13, 77, 1000, CHUNK_BYTES + 1, RING_BYTES]
    views = [into[a:b] for a, b in pairwise(cuts)]
    pair.callee.sinks = lambda nbytes: Sink(views)
    data = random.Random(0).randbytes(RING_BYTES)
    pair.caller.send(HEADER, memoryview(data))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert into == data


def test_nobody_sees_the_rings_in_the_file_system(pair):
    pair.caller.send(HEADER, memoryview(bytes(RING_BYTES)))
    assert not [path for path in Path("/dev/shm").iterdir() if "shoal" in path.name]


# ---------------------------------------------------------------------------- lies


class Liar:
    """The bare end of a connection that has rings."""

    def __init__(self):
        self.sock, ours = socket.socketpair()
        self.connection = StreamConnection(ours, LISTENER, peer=CALLER.node)
        self.theirs = Outlet()  # what they put in, we read
        self.connection.share(Outlet(), Inlet(os.dup(self.theirs.fd)))
        self.end = End(self.connection)

    def says(self, *frames):
        self.sock.sendall(b"".join(frames))
        self.end.receive()

    def close(self):
        self.connection.close()
        self.theirs.close()
        self.sock.close()


@pytest.fixture
def liar():
    liar = Liar()
    yield liar
    liar.close()


@pytest.mark.parametrize(
    "frames",
    [
        [signal(PUT, 1)],
        [encode(HEADER, 0, SHARED)],
        [encode(HEADER, 100, SHARED), signal(PUT, 101)],
        [encode(HEADER, 100, SHARED), signal(PUT, 0)],
        [encode(HEADER, 100, SHARED), encode(HEADER)],
        [encode(HEADER, 100, SHARED), encode(HEADER, 100, SHARED)],
        [encode(HEADER, 3 * RING_BYTES, SHARED), signal(PUT, RING_BYTES + 1)],
        [signal(TAKEN, 1)],
        [signal(TAKEN, 0)],
    ],
)
def test_signals_that_make_no_sense_are_typed_errors(liar, frames):
    with pytest.raises(WireError):
        liar.says(*frames)
    assert not liar.end.delivered


def test_nothing_is_taken_from_a_peer_without_a_ring():
    ours, theirs = socket.socketpair()
    connection = StreamConnection(ours, LISTENER, peer=CALLER.node)
    theirs.sendall(encode(HEADER, 100, SHARED))
    with pytest.raises(BadSharedMemory):
        End(connection).receive()
    connection.close()
    theirs.close()


def test_a_message_that_makes_no_sense_is_drained_from_the_ring_as_well(liar):
    liar.theirs.put(memoryview(bytes(100)), 100)
    liar.says(encode(Nudge(7), 100, SHARED), signal(PUT, 100), encode(Nudge("after")))
    assert len(liar.end.malformed) == 1
    assert liar.end.messages == [Nudge("after")]


def test_more_taken_than_was_put_is_refused():
    outlet = Outlet()
    outlet.put(memoryview(bytes(100)), 100)
    with pytest.raises(BadLength):
        outlet.taken(101)
    outlet.close()


def memory(size=RING_BYTES, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    "make",
    [
        lambda: memory(seals=fcntl.F_SEAL_GROW),
        lambda: memory(size=RING_BYTES // 2),
        lambda: memory(size=2 * RING_BYTES),
        lambda: os.open(os.devnull, os.O_RDONLY),
        lambda: os.eventfd(0),
    ],
)
def test_memory_that_could_vanish_is_refused(make):
    fd = make()
    with pytest.raises(BadSharedMemory):
        Inlet(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)  # and not kept open


def test_a_ring_cannot_be_cut_or_written_to_by_its_reader():
    outlet = Outlet()
    fd = os.dup(outlet.fd)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    inlet = Inlet(fd)
    with pytest.raises(TypeError):
        inlet._map[0] = 1
    inlet.close()
    outlet.close()


def test_a_caller_with_bad_memory_is_sent_away(tmp_path):
    address = f"unix://{tmp_path}/s"
    listener = transport_for(address).listen(address, LISTENER)
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(str(tmp_path / "s"))
    there = End(listener.accept())

    class Unsealed:
        fd = memory(seals=0)

        def passed(self):
            os.close(self.fd)

    asked = message_of(caller.recv(1000))
    send_with(caller, encode(hello(CALLER, asked)), Unsealed())
    with pytest.raises(BadSharedMemory):
        there.receive()
    assert not there.connection.peer
    there.connection.close()
    listener.close()
    assert receive_with(caller, 100)[0] == b""
    caller.close()


def test_a_reader_may_look_while_the_writer_writes():
    """What is read is what somebody wrote; nothing crashes."""
    outlet = Outlet()
    inlet = Inlet(os.dup(outlet.fd))
    into = memoryview(bytearray(RING_BYTES))
    inlet.take(into)
    outlet.put(memoryview(b"\x01" * RING_BYTES), RING_BYTES)
    inlet.take(into)
    assert into == b"\x01" * RING_BYTES
    assert inlet._map.size() == mmap.mmap(outlet.fd, 0).size() == RING_BYTES
    inlet.close()
    outlet.close()
