"""Callers that have not proved the token yet, and callers that were denied."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.errors import HandshakeRefused
from shoal.node.node import Node
from shoal.node.strangers import DENIED_S, MOST, WORK_MAX_S, Strangers
from shoal.transport import Identity, transport_for
from tests.node.rigs import FRIEND, TOKEN, Peer, call, until


@pytest.fixture
def listening(tmp_path):
    """A node that listens, and its address."""
    tmp_path.chmod(0o700)
    node = Node(Peer(), Identity("server-b", "server", token=TOKEN))
    yield node, node.listen(f"unix://{tmp_path}/node")
    node.close()


def test_strangers_are_few_and_the_oldest_goes_first(listening, tmp_path):
    node, address = listening
    callers = []
    for _ in range(MOST + 40):
        callers.append(socket.socket(socket.AF_UNIX))
        callers[-1].connect(f"{tmp_path}/node")
        node.poll(0)
    until(lambda: node.counters["HandshakeFailed (too many)"] == 40, node)
    open_ones = len(node._connections)
    assert open_ones == MOST
    friend = call(address, FRIEND, node)  # a caller with the token is admitted meanwhile
    assert friend.peer == "server-b"
    assert node._peers.keys() == {"worker-a"}
    friend.close()
    for each in callers:
        each.close()


def test_a_wrong_token_is_answered_late_and_a_right_one_at_once(listening):
    node, address = listening
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        connect, wrong = transport_for(address).connect, "a token that is wrong"
        guess = pool.submit(connect, address, Identity("worker-x", "worker", token=wrong), 10.0)
        until(lambda: node.counters["HandshakeFailed (wrong token)"] == 1, node)
        friend = call(address, FRIEND, node)
        assert time.monotonic() - began < DENIED_S
        assert not guess.done()
        until(guess.done, node)
        assert time.monotonic() - began >= DENIED_S
        assert isinstance(guess.exception(), HandshakeRefused)
    friend.close()


def test_the_log_says_where_a_stranger_is_and_nothing_that_it_sent(listening, caplog, tmp_path):
    node, _ = listening
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(f"{tmp_path}/node")
        caller.sendall(b"x\n2026-01-01 shoal.node: all is well\x1b[2J")
        until(lambda: node.counters["BadMagic"], node)
    assert f"a stranger at process {os.getpid()} of user {os.getuid()}" in caplog.text
    assert "\x1b" not in caplog.text
    assert "all is well" not in caplog.text


def test_a_member_cannot_call_in_another_role(listening):
    node, address = listening
    node.machine.role_of = {"worker-a": "server"}.get
    call(address, FRIEND, node).close()
    assert node.counters["HandshakeFailed"] == 1
    assert not node._peers


class Caller:
    heavy = True

    def __init__(self, fileno):
        self._fileno = fileno

    def fileno(self):
        return self._fileno


def test_handshakes_have_a_share_of_the_time():
    strangers, caller, now = Strangers(), Caller(7), 100.0
    assert not strangers.is_later(caller, now)
    strangers.worked(WORK_MAX_S)
    strangers.admit(caller, now)
    assert strangers.is_later(caller, now)
    assert [*strangers.resumed(now)] == []
    strangers.worked(0.1)
    assert [*strangers.resumed(now + 0.3)] == []
    assert [*strangers.resumed(now + 0.5)] == [caller], "a quarter of the time is for them"
    strangers.worked(0.1)
    assert strangers.is_later(caller, now + 0.6)
    strangers.forget(7)
    assert [*strangers.resumed(now + 9)] == [], "it is gone"


def test_callers_with_a_cheap_handshake_never_wait():
    strangers, caller = Strangers(), Caller(7)
    strangers.is_later(caller, 100.0)
    strangers.worked(9.0)
    caller.heavy = False
    assert not strangers.is_later(caller, 100.0)


def test_callers_that_wait_are_dropped_before_those_that_have_begun():
    strangers, now = Strangers(most=3), 100.0
    strangers.is_later(Caller(9), now)
    strangers.worked(9.0)
    begun, *waiting = [Caller(fileno) for fileno in range(3)]
    strangers.admit(begun, now)
    for each in waiting:
        assert strangers.admit(each, now) is None
        strangers.is_later(each, now)
    assert strangers.admit(Caller(3), now) is waiting[0]
    strangers.forget(1)
    strangers.forget(2)
    strangers.admit(Caller(4), now)
    assert strangers.admit(Caller(5), now) is begun


def test_a_greeting_in_two_parts_that_is_too_long_ends_no_node(listening, tmp_path):
    node, address = listening
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(f"{tmp_path}/node")
        caller.sendall(b"SHOL\x11")
        node.poll(0.01)
        node.poll(0.01)
        caller.sendall(bytes(5000))
        until(lambda: node.counters, node)
    call(address, FRIEND, node).close()


def test_an_unexpected_error_over_a_greeting_costs_the_caller_its_connection(
    listening, monkeypatch, tmp_path
):
    node, address = listening

    def fails(self, *how):
        raise ValueError("planted")

    with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as caller:
        patch.setattr("shoal.transport.stream.StreamConnection.receive", fails)
        caller.connect(f"{tmp_path}/node")
        caller.sendall(b"x")
        until(lambda: node.counters["PeerFault"] == 1, node)
    call(address, FRIEND, node).close()
