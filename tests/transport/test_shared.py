"""Shared memory: what goes through it, and peers that lie about it."""

import errno
import fcntl
import mmap
import os
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

from shoal.errors import BadLength, BadSharedMemory, HandshakeFailed, WireError
from shoal.protocol.machine import CopyOnWriteGuard, Sink
from shoal.protocol.messages import Nudge
from shoal.testing.connections import CALLER, LISTENER, End, connected
from shoal.transport import sockets
from shoal.transport.base import transport_for
from shoal.transport.handshake import challenge, hello, judge
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


def test_a_small_payload_stays_on_the_socket(pair):
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


def test_a_sender_that_waits_for_the_ring_does_not_poll_the_socket(pair):
    pair.caller.send(HEADER, memoryview(bytes(2 * RING_BYTES)))
    assert pair.caller.connection.backlog == RING_BYTES
    assert not pair.caller.connection.wants_write


def test_guarded_rows_are_not_copied_unless_they_are_recalled(pair):
    rows, guard = bytearray(2 * RING_BYTES), CopyOnWriteGuard()
    pair.caller.send(HEADER, memoryview(rows), guard=guard)
    rows[-4:] = b"late"  # they were not to change; it shows that no copy was made
    pair.pump(lambda: bool(pair.callee.delivered))
    assert bytes(pair.callee.delivered[0][1].views[0][-4:]) == b"late"


def test_payloads_of_any_size_follow_each_other_through_the_ring(pair):
    """Each begins on a line's edge in the ring: what is skipped is counted on both sides."""
    sizes = [SHARED_BYTES + extra for extra in (1, 63, 64, 65, 0, 7)] * 40
    for size in sizes:
        pair.caller.send(HEADER, memoryview(bytes([size % 251]) * size))
    pair.pump(lambda: len(pair.callee.delivered) == len(sizes))
    for size, (_, sink) in zip(sizes, pair.callee.delivered, strict=True):
        assert sink.views[0] == bytes([size % 251]) * size
    assert pair.caller.connection._outbox.outlet._at % 64 == 0


def test_views_at_unaligned_offsets_are_filled(pair):
    into = memoryview(bytearray(RING_BYTES))
    cuts = [0, 13, 77, 1000, CHUNK_BYTES + 1, RING_BYTES]
    views = [into[a:b] for a, b in pairwise(cuts)]
    pair.callee.sinks = lambda nbytes: Sink(views)
    data = random.Random(0).randbytes(RING_BYTES)
    pair.caller.send(HEADER, memoryview(data))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert into == data


def test_rings_are_not_visible_in_the_file_system(pair):
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
def test_impossible_ring_signals_raise_typed_errors(liar, frames):
    with pytest.raises(WireError):
        liar.says(*frames)
    assert not liar.end.delivered


def test_a_shared_payload_from_a_peer_without_a_ring_is_refused():
    ours, theirs = socket.socketpair()
    connection = StreamConnection(ours, LISTENER, peer=CALLER.node)
    theirs.sendall(encode(HEADER, 100, SHARED))
    with pytest.raises(BadSharedMemory):
        End(connection).receive()
    connection.close()
    theirs.close()


def test_a_malformed_messages_payload_is_drained_from_the_ring(liar):
    liar.theirs.put(memoryview(bytes(100)), 100)
    liar.says(encode(Nudge(7), 100, SHARED), signal(PUT, 100), encode(Nudge("after")))
    assert len(liar.end.malformed) == 1
    assert liar.end.messages == [Nudge("after")]


def test_taking_more_than_was_put_is_refused():
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
def test_memory_that_could_shrink_is_refused(make):
    fd = make()
    with pytest.raises(BadSharedMemory):
        Inlet(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)  # and not kept open


def test_a_ring_cannot_be_resized_or_written_by_its_reader():
    outlet = Outlet()
    fd = os.dup(outlet.fd)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    inlet = Inlet(fd)
    with pytest.raises(TypeError):
        inlet._map[0] = 1
    inlet.close()
    outlet.close()


@pytest.mark.parametrize("lends", [False, True])
def test_an_interrupted_delivery_loses_no_view(liar, lends):
    """Ctrl-C, or a machine that fails, while the third of eight views is delivered."""
    size = 16 << 10
    data = b"".join(bytes([number]) * size for number in range(8))
    view, seen = memoryview(bytearray(size)), []
    liar.end.sinks = lambda nbytes: Sink([view] * 8, None, by_view=True, lends=lends)

    def interrupted(sink):
        seen.append(sink.views[sink.landed - 1][0])
        assert (sink.views[sink.landed - 1] is not view) == lends
        if len(seen) == 3:
            raise KeyboardInterrupt

    liar.end.on_deliver = interrupted
    liar.theirs.put(memoryview(data), len(data))
    with pytest.raises(KeyboardInterrupt):
        liar.says(encode(HEADER, len(data), SHARED), signal(PUT, len(data)))
    liar.says(encode(Nudge("after")))
    assert seen == list(range(8))
    assert liar.end.messages[-1] == Nudge("after")


# ---------------------------------------------------------------------------- greetings


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def send_each_with(sock, data, passed):
    """Send the first bytes of a greeting with a descriptor each: the kernel drops a second one."""
    for number, descriptor in enumerate(passed):
        socket.send_fds(sock, [data[number : number + 1]], [descriptor])
    sock.sendall(data[len(passed) :])


class Door:
    """A listener and a caller without manners."""

    def __init__(self, folder):
        self.address = f"unix://{folder}/s"
        self.listener = transport_for(self.address).listen(self.address, LISTENER)

    def knock(self):
        """The caller's socket, the listener's end, and the challenge."""
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(self.address.removeprefix("unix://"))
        there = End(self.listener.accept())
        return caller, there, message_of(caller.recv(1000))

    def greet_with(self, *passed):
        """Say hello with descriptors; whatever the listener raises."""
        caller, there, asked = self.knock()
        send_each_with(caller, encode(hello(CALLER, asked)), passed)
        try:
            for _ in range(len(passed) + 1):
                there.receive()
        finally:
            there.connection.close()
            caller.close()


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path)
    yield door
    door.listener.close()


@pytest.mark.parametrize("what", ["unsealed memory", "a file", "two rings"])
def test_a_caller_that_passes_anything_but_one_ring_is_refused(door, what):
    outlet, null = Outlet(), os.open(os.devnull, os.O_RDONLY)
    bad = memory(seals=0)
    passed = {"unsealed memory": [bad], "a file": [null], "two rings": [outlet.fd, outlet.fd]}
    before = descriptors()
    for _ in range(20):
        with pytest.raises((BadSharedMemory, HandshakeFailed)):
            door.greet_with(*passed[what])
    assert descriptors() == before
    outlet.close()
    os.close(bad)
    os.close(null)


def test_a_caller_that_dies_in_the_handshake_fails_it(door):
    caller, there, asked = door.knock()
    outlet = Outlet()
    send_with(caller, encode(hello(CALLER, asked)), outlet)
    caller.close()
    with pytest.raises(HandshakeFailed, match="welcomed"):
        there.receive()
    there.connection.close()
    outlet.close()


def test_without_a_ring_both_ends_use_the_socket(tmp_path, monkeypatch):
    """The listener had no descriptor left for it: both go on over the socket."""
    without = lambda sock, data, outlet: send_with(sock, data, None)  # noqa: E731
    monkeypatch.setattr(sockets, "send_with", without)
    before = descriptors()
    address = f"unix://{tmp_path}/s"
    with connected(lambda: (transport_for(address), address)) as pair:
        for end in (pair.caller, pair.callee):
            assert end.connection._outbox.outlet is None
            end.send(HEADER, memoryview(bytes(RING_BYTES)))
        pair.pump(lambda: bool(pair.callee.delivered and pair.caller.delivered))
    assert descriptors() == before


@pytest.mark.parametrize("rings", ["one that was announced", "two"])
def test_a_caller_refuses_a_listener_that_passes_other_than_one_ring(rings):
    """The first is what it sees that has no descriptor left."""
    outlet = Outlet()
    passed = {"one that was announced": [], "two": [outlet.fd, outlet.fd]}[rings]
    ours, theirs = socket.socketpair()
    asked = challenge(LISTENER)

    def listen():
        theirs.sendall(encode(asked))
        data, descriptors = receive_with(theirs, 1000)
        os.close(descriptors[0])
        verdict = judge(LISTENER, asked, message_of(data), rings=True)
        send_each_with(theirs, encode(verdict), passed)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(listen)
        with pytest.raises(HandshakeFailed, match="descriptor"):
            sockets.shake(ours, CALLER, monotonic() + 10)
    assert ours.fileno() == -1
    theirs.close()
    outlet.close()


def test_a_caller_without_a_descriptor_left_gets_a_typed_error(tmp_path, monkeypatch):
    def none_left(name, flags):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    before = descriptors()
    address = f"unix://{tmp_path}/s"
    with (
        pytest.raises(HandshakeFailed, match="Too many open files"),
        connected(lambda: (transport_for(address), address)),
    ):
        pass
    assert descriptors() == before


# ---------------------------------------------------------------------------- races


def test_a_reader_may_read_while_the_writer_writes():
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
