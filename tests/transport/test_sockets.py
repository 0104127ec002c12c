"""Greetings over sockets, with the descriptor of a ring: callers and listeners without manners."""

import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from shoal.errors import BadSharedMemory, BadVersion, HandshakeFailed, HandshakeRefused
from shoal.protocol.messages.base import PROTOCOL_VERSION
from shoal.protocol.messages.requests import Nudge
from shoal.testing.connections import CALLER, LISTENER, End, connected
from shoal.transport import sockets
from shoal.transport.arena import arena
from shoal.transport.base import transport_for
from shoal.transport.handshake import challenge, hello, judge
from shoal.transport.shared import RING_BYTES, Outlet, receive_with, send_with
from shoal.transport.wire import encode, message_of
from tests.transport.rigs import Raw, prefix, ring_like


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def send_each_with(sock, data, start_clock):
    """Send the first bytes of a greeting with a descriptor each: the kernel drops a second one."""
    for number, descriptor in enumerate(start_clock):
        socket.send_fds(sock, [data[number : number + 1]], [descriptor])
    sock.sendall(data[len(start_clock) :])


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

    def greet_with(self, *start_clock):
        """Say hello with descriptors; whatever the listener raises."""
        caller, there, asked = self.knock()
        send_each_with(caller, encode(hello(CALLER, asked)), start_clock)
        try:
            for _ in range(len(start_clock) + 1):
                there.receive()
        finally:
            there.connection.close()
            caller.close()


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path)
    yield door
    door.listener.close()


@pytest.mark.parametrize("what", ["unsealed memory", "a file", "two rings", "three descriptors"])
def test_a_caller_that_passes_anything_but_a_ring_and_an_arena_is_refused(door, what):
    outlet, null = Outlet(), os.open(os.devnull, os.O_RDONLY)
    bad = ring_like(seals=0)
    start_clock = {
        "unsealed memory": [bad],
        "a file": [null],
        "two rings": [outlet.fd, outlet.fd],
        "three descriptors": [outlet.fd, arena.fd, arena.fd],
    }
    before = descriptors()
    for _ in range(20):
        with pytest.raises((BadSharedMemory, HandshakeFailed)):
            door.greet_with(*start_clock[what])
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
    without = lambda sock, data, outlet, more: send_with(sock, data, None)  # noqa: E731
    monkeypatch.setattr(sockets, "send_with", without)
    before = descriptors()
    address = f"unix://{tmp_path}/s"
    with connected(lambda: (transport_for(address), address)) as pair:
        for end in (pair.caller, pair.callee):
            assert end.connection._outbox.outlet is None
            end.send(Nudge("x"), memoryview(bytes(RING_BYTES)))
        pair.pump(lambda: bool(pair.callee.delivered and pair.caller.delivered))
    assert descriptors() == before


@pytest.mark.parametrize("rings", ["one that was announced", "two"])
def test_a_caller_refuses_a_listener_that_passes_other_than_one_ring(rings):
    """The first is what it sees that has no descriptor left."""
    outlet = Outlet()
    start_clock = {"one that was announced": [], "two": [outlet.fd, outlet.fd]}[rings]
    ours, theirs = socket.socketpair()
    asked = challenge(LISTENER)

    def listen():
        theirs.sendall(encode(asked))
        data, descriptors = receive_with(theirs, 1000)
        for each in descriptors:
            os.close(each)
        verdict = judge(LISTENER, asked, message_of(data), rings=True)
        send_each_with(theirs, encode(verdict), start_clock)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(listen)
        with pytest.raises(HandshakeFailed, match="descriptor"):
            sockets.shake(ours, CALLER, monotonic() + 10)
    assert ours.fileno() == -1
    theirs.close()
    outlet.close()


def test_both_sides_name_the_other_version(tmp_path):
    """A caller that has read of another version says its own before it hangs up."""
    ours, theirs = socket.socketpair()
    newer = PROTOCOL_VERSION + 1
    theirs.sendall(prefix(version=1, header=40))
    with pytest.raises(HandshakeRefused, match="the peer speaks protocol version 1, and this node"):
        sockets.shake(ours, CALLER, monotonic() + 10)
    assert message_of(theirs.recv(1000)).version == PROTOCOL_VERSION
    theirs.close()
    with Raw(peer="", asked=challenge(LISTENER)) as stranger:
        stranger.read_message()
        with pytest.raises(BadVersion, match=f"speaks protocol version {newer}, and this node"):
            stranger.feed(prefix(version=newer, header=40))


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
