"""The Unix socket beside a TCP listener: who takes it, and who stays with TCP."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.engines.fork_server import move_to
from shoal.errors import HandshakeFailed
from shoal.testing.connections import CALLER, LISTENER, connected, meet
from shoal.transport import shortcut
from shoal.transport.base import Identity
from shoal.transport.shortcut import open_shortcut, take_shortcut, without_shortcut
from shoal.transport.tcp import TcpTransport

ADDRESS = "tcp://127.0.0.1:0"
OTHER_USER = 65533


@pytest.fixture
def listener():
    listening = TcpTransport().listen(ADDRESS, LISTENER)
    yield listening
    listening.close()


@contextmanager
def met(listener):
    caller, there = meet(TcpTransport(), listener, CALLER)
    try:
        yield caller, there.connection
    finally:
        caller.close()
        there.connection.close()


def test_a_caller_of_this_host_takes_the_shortcut(listener):
    with met(listener) as ends:
        assert all(each.within_host for each in ends)
        assert listener.address.startswith("tcp://127.0.0.1:")


def test_a_caller_that_does_not_take_it_stays_with_tcp(listener):
    with without_shortcut(), met(listener) as ends:
        assert not any(each.within_host for each in ends)


def test_large_payloads_go_through_shared_memory_there():
    with connected(lambda: (TcpTransport(), ADDRESS)) as pair:
        assert pair.caller.connection._outbox.outlet is not None
    with without_shortcut(), connected(lambda: (TcpTransport(), ADDRESS)) as pair:
        assert pair.caller.connection._outbox.outlet is None


def test_a_name_that_nobody_has_here_leaves_the_caller_on_tcp(listener, monkeypatch):
    """As with a listener of another host, or of another network namespace of this one."""
    listener._shortcut = "shoal-of-another-host"
    with met(listener) as ends:
        assert not any(each.within_host for each in ends)


def test_a_system_without_abstract_sockets_has_tcp(monkeypatch):
    monkeypatch.setattr(shortcut, "_address", lambda name: "/nowhere/at/all")
    assert open_shortcut() is None
    with connected(lambda: (TcpTransport(), ADDRESS)) as pair:
        assert not pair.caller.connection.within_host


def test_the_token_is_proved_there_too(listener):
    stranger = Identity("worker-x", "worker", "job-1", "a token that is wrong")
    with pytest.raises(HandshakeFailed, match="token"):
        meet(TcpTransport(), listener, stranger)


def test_a_listener_of_another_user_is_not_trusted(monkeypatch):
    sock, name = open_shortcut()
    with sock:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
        assert take_shortcut(name, 1.0) is None


DIALS = """
import os, socket, sys
os.setuid({user})
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(chr(0) + sys.argv[1])
    sock.settimeout(5.0)
    print(sock.recv(1))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_caller_of_another_user_is_hung_up_on(listener):
    command = [sys.executable, "-c", DIALS.format(user=OTHER_USER), listener._shortcut]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        while other.poll() is None:
            assert listener.accept() is None
        assert other.stdout.read() == "b''\n"
    with met(listener) as ends:  # and others are served
        assert all(each.within_host for each in ends)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
def test_another_network_namespace_of_this_host_has_no_such_socket(listener):
    name = f"shoal-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        child = os.fork()
        if child == 0:
            move_to(f"/run/netns/{name}")
            os._exit(take_shortcut(listener._shortcut, 1.0) is not None)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    sock = take_shortcut(listener._shortcut, 1.0)
    assert sock is not None
    sock.close()


def descriptors():
    return len([*Path("/proc/self/fd").iterdir()])


def test_a_closed_listener_leaves_nothing(listener):
    before = descriptors()
    extra = TcpTransport().listen(ADDRESS, LISTENER)
    name = extra._shortcut
    extra.close()
    assert descriptors() == before
    assert take_shortcut(name, 1.0) is None


def test_a_listener_without_descriptors_sends_callers_away(listener):
    """The reserve serves both sockets; else a caller would keep the loop busy."""
    held = []
    callers = [socket.socket(socket.AF_UNIX), socket.socket()]
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    try:
        callers[0].connect(f"\0{listener._shortcut}")
        host, port = listener.address.removeprefix("tcp://").split(":")
        callers[1].connect((host, int(port)))
        assert listener.accept() is None
        assert listener.accept() is None
    finally:
        for each in held:
            os.close(each)
    for each in callers:
        each.settimeout(5.0)
        assert each.recv(1) == b""
        each.close()
