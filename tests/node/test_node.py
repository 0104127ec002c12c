"""A node and its peers."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.errors import HandshakeRefused, InvalidValue
from shoal.node import slow_readers
from shoal.node.node import Node
from shoal.node.slow_readers import ROOM_BYTES
from shoal.node.strangers import DENIED_S, MOST
from shoal.protocol.machine import (
    AwaitRoom,
    CopyOnWriteGuard,
    Detach,
    HangUp,
    HasRoom,
    Offload,
    Offloaded,
    PeerLost,
    Received,
    Send,
    Sink,
)
from shoal.protocol.messages import SCHEDULER, Freeze, Nudge
from shoal.transport import Identity, transport_for
from tests.transport.rigs import drop_packets_to

ADDRESS = "inproc://a-place-for-servers"
TOKEN = "a token of sixteen characters"


class Caller:
    """A machine that only knows where others are."""

    def address_of(self, node):
        return ADDRESS

    def role_of(self, node):
        return None

    def deadline(self):
        return None


@pytest.fixture
def node():
    node = Node(Caller(), Identity("worker-a", "worker"), scheduler=ADDRESS)
    yield node
    node.close()


@pytest.fixture
def listener():
    listener = transport_for(ADDRESS).listen(ADDRESS, Identity("server-b", "server"))
    yield listener
    listener.close()


def until(true, *nodes, limit_s=10.0):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        for node in nodes:
            node.poll(0.01)


def test_a_message_reaches_the_node_that_it_names(node, listener):
    node.perform([Send("server-b", Nudge("here"))])
    until(lambda: "server-b" in node._peers, node)
    assert node.counters["unreachable"] == 0


def test_a_message_to_a_node_whose_address_another_has_is_unreachable(node, listener):
    node.perform([Send("server-a", Nudge("there"))])
    until(lambda: node.counters["unreachable"] == 1, node)
    assert not node.stopped


def test_a_node_that_is_no_scheduler_is_refused_as_one(node, listener):
    node.perform([Send(SCHEDULER, Freeze((1, 1)))])
    until(lambda: node.stopped, node)
    assert isinstance(node.error, HandshakeRefused)
    assert "is server-b, not scheduler" in node.error.message


class Peer:
    """A machine that knows addresses and keeps what it receives."""

    def __init__(self, **addresses):
        self.addresses = addresses
        self.received = []
        self.lost = []

    def address_of(self, node):
        return self.addresses.get(node.replace("-", "_"))

    def role_of(self, node):
        return None

    def deadline(self):
        return None

    def arriving(self, sender, message, nbytes):
        return Sink([memoryview(bytearray(nbytes))])

    def handle(self, event, now):
        if isinstance(event, Received):
            data = b"" if event.payload is None else bytes(event.payload.views[0])
            self.received.append((event.message, data))
        elif isinstance(event, PeerLost):
            self.lost.append(event)
        return []


@pytest.fixture
def pair():
    """A node that can reach another by a scheme, and that node."""
    nodes = []

    def pair(address):
        there = Node(Peer(), Identity("server-b", "server", token=TOKEN))
        caller = Peer(server_b=there.listen(address))
        here = Node(caller, Identity("worker-a", "worker", token=TOKEN))
        nodes.extend((here, there))
        return here, there

    yield pair
    for node in nodes:
        node.close()


def test_peers_that_do_not_answer_hold_nobody_up(tmp_path, pair):
    """Six of them accept a connection and say nothing, as stopped processes do."""
    tmp_path.chmod(0o700)
    here, there = pair(f"unix://{tmp_path}/there")
    stopped = []
    for number in range(6):
        stopped.append(socket.socket(socket.AF_UNIX))
        stopped[-1].bind(f"{tmp_path}/{number}")
        stopped[-1].listen()
        here.machine.addresses[f"stopped_{number}"] = f"unix://{tmp_path}/{number}"
    began = time.monotonic()
    here.perform([Send(f"stopped-{number}", Nudge("lost")) for number in range(6)])
    here.perform([Send("server-b", Nudge("here"))])
    until(lambda: there.machine.received, here, there)
    assert time.monotonic() - began < 1.0  # one of these peers takes CONNECT_TIMEOUT_S
    until(lambda: here.counters["unreachable"] == 6, here)
    for each in stopped:
        each.close()


def test_messages_wait_in_order_for_a_peer_that_is_being_reached(tmp_path, pair):
    tmp_path.chmod(0o700)
    here, there = pair(f"unix://{tmp_path}/there")
    lent, live, guard = bytearray(b"lent"), bytearray(b"live"), CopyOnWriteGuard()
    here.perform([Send("server-b", Nudge("1"), (memoryview(lent),))])
    here.perform([Send("server-b", Nudge("2"), (memoryview(live),), guard)])
    guard.recall()
    live[:] = b"late"  # the rows have changed since
    here.perform([Detach("server-b")])
    lent[:] = b"gone"  # and the caller has its buffer again
    until(lambda: len(there.machine.received) == 2, here, there)
    assert there.machine.received == [(Nudge("1"), b"lent"), (Nudge("2"), b"live")]


@pytest.mark.real
def test_a_connection_that_is_cut_in_silence_is_replaced(pair):
    """Its packets vanish, as in a firewall that has forgotten it; new ones are let through."""
    here, there = pair("tcp://127.0.0.1:0")
    here.perform([Send("server-b", Nudge("before"))])
    until(lambda: there.machine.received, here, there)
    drop_packets_to(there._peers["worker-a"]._sock)
    here.perform([Send("server-b", Nudge("lost"))])
    until(lambda: here.machine.lost and there.machine.lost, here, there, limit_s=3.0)
    assert [each.node for each in here.machine.lost] == ["server-b"]
    assert there.machine.lost == [PeerLost("worker-a", closed=False)]
    here.perform([Send("server-b", Nudge("again"))])
    until(lambda: (Nudge("again"), b"") in there.machine.received, here, there)


class Opener(Peer):
    """A machine that has work done, and keeps what comes of it."""

    def __init__(self):
        super().__init__()
        self.done = []

    def handle(self, event, now):
        if isinstance(event, Offloaded):
            self.done.append((event.ticket, event.value, event.error, threading.current_thread()))
            return []
        return super().handle(event, now)


@pytest.fixture
def opener():
    node = Node(Opener(), Identity("server-a", "server"))
    yield node
    node.close()


def test_offloaded_work_is_done_outside_of_the_loop_and_its_result_comes_into_it(opener):
    go, refused = threading.Event(), InvalidValue("no memory")

    def fails():
        raise refused

    def slow():
        go.wait(10.0)
        return threading.current_thread()

    opener.perform([Offload(1, slow), Offload(2, fails)])
    until(lambda: opener.machine.done, opener)  # the loop turns while the first one waits
    here = threading.current_thread()
    assert opener.machine.done == [(2, None, refused, here)]
    go.set()
    until(lambda: len(opener.machine.done) == 2, opener)
    ticket, there, error, told_in = opener.machine.done[1]
    assert (ticket, error, told_in) == (1, None, here)
    assert there is not here


def test_an_error_of_offloaded_work_that_nobody_expects_stops_the_node(opener):
    opener.perform([Offload(1, lambda: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        until(lambda: opener.machine.done, opener)


# ---------------------------------------------------------------------------- strangers, faults


@pytest.fixture
def listening(tmp_path):
    """A node that listens, and its address."""
    tmp_path.chmod(0o700)
    node = Node(Peer(), Identity("server-b", "server", token=TOKEN))
    yield node, node.listen(f"unix://{tmp_path}/node")
    node.close()


def call(address, me, node):
    """Connect to a node as `me`, while it polls; the connection, or why not."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(transport_for(address).connect, address, me, 10.0)
        until(calling.done, node)
        return calling.exception() or calling.result()


FRIEND = Identity("worker-a", "worker", token=TOKEN)


def test_strangers_are_few_and_the_oldest_goes_first(listening, tmp_path):
    node, address = listening
    callers = []
    for _ in range(MOST + 40):
        callers.append(socket.socket(socket.AF_UNIX))
        callers[-1].connect(f"{tmp_path}/node")
        node.poll(0)
    until(lambda: node.counters["HandshakeFailed"] == 40, node)
    open_ones = len(node._connections)
    assert open_ones == MOST
    friend = call(address, FRIEND, node)  # who knows the token comes in all the same
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
        until(lambda: node.counters["HandshakeFailed"] == 1, node)
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


class Faulty(Peer):
    def arriving(self, sender, message, nbytes):
        if nbytes == 3:
            raise MemoryError("no room for the payload")
        return super().arriving(sender, message, nbytes)


def test_a_message_that_cannot_be_handled_costs_its_sender_the_connection(tmp_path, caplog):
    tmp_path.chmod(0o700)
    node = Node(Faulty(), Identity("server-b", "server", token=TOKEN))
    address = node.listen(f"unix://{tmp_path}/node")
    good, bad = FRIEND, Identity("worker-x", "worker", token=TOKEN)
    try:
        friend, peer = call(address, good, node), call(address, bad, node)
        for _ in range(3):
            peer.send(Nudge("x"), (memoryview(b"abc"),))
            until(lambda: "worker-x" not in node._peers, node)
            peer.close()
            peer = call(address, bad, node)
        friend.send(Nudge("y"), (memoryview(b"abcd"),))
        until(lambda: node.machine.received, node)
        assert node.counters["PeerFault"] == 3
        told = [each for each in caplog.records if "PeerFault" in each.getMessage()]
        assert len(told) == 1  # a second
        assert "Nudge with 3 bytes: MemoryError" in told[0].getMessage()
        assert told[0].exc_info is not None
        friend.close()
        peer.close()
    finally:
        node.close()


class Sender(Peer):
    """A machine that is told when there is room."""

    def __init__(self):
        super().__init__()
        self.room = []

    def handle(self, event, now):
        if isinstance(event, HasRoom):
            self.room.append(event.node)
        return super().handle(event, now)


@pytest.fixture
def reader(tmp_path):
    """A node with a peer that has yet to read what it is sent."""
    tmp_path.chmod(0o700)
    node = Node(Sender(), Identity("server-b", "server", token=TOKEN))
    peer = call(node.listen(f"unix://{tmp_path}/node"), FRIEND, node)
    yield node, peer
    peer.close()
    node.close()


LARGE = memoryview(bytearray(ROOM_BYTES + (8 << 20)))


def read_all(peer, node):
    """Read until nothing more comes."""
    arrived = []
    take = Sink([memoryview(bytearray(LARGE.nbytes))])
    until(
        lambda: peer.receive(lambda *_: take, lambda *_: arrived.append(1), print) and arrived,
        node,
    )


def test_there_is_room_once_a_peer_has_read(reader):
    node, peer = reader
    node.perform([Send("worker-a", Nudge("x"), (LARGE,)), AwaitRoom("worker-a")])
    node.poll(0.01)
    assert node.machine.room == []
    read_all(peer, node)
    until(lambda: node.machine.room == ["worker-a"], node)
    node.perform([AwaitRoom("worker-a"), AwaitRoom("nobody")])
    node.poll(5.0)  # at once
    assert node.machine.room == ["worker-a", "worker-a", "nobody"]


def test_a_peer_that_reads_nothing_is_disconnected(reader, monkeypatch):
    monkeypatch.setattr(slow_readers, "STUCK_S", 0.5)
    node, _ = reader
    node.perform([Send("worker-a", Nudge("x"), (LARGE,)), AwaitRoom("worker-a")])
    until(lambda: node.machine.room == ["worker-a"], node)
    assert node.counters["slow reader"] == 1
    assert node.machine.lost == [PeerLost("worker-a", closed=False)]  # no proof of its death


def test_a_peer_that_reads_slowly_stays(reader, monkeypatch):
    monkeypatch.setattr(slow_readers, "STUCK_S", 0.5)
    node, peer = reader
    node.perform([Send("worker-a", Nudge("x"), (LARGE,)), AwaitRoom("worker-a")])
    since = time.monotonic()
    while time.monotonic() < since + 1.5:
        peer.receive(lambda *_: Sink([memoryview(bytearray(LARGE.nbytes))]), lambda *_: None, print)
        node.poll(0.05)
    assert node.counters["slow reader"] == 0


def test_what_a_member_that_left_has_not_read_is_dropped(reader):
    node, _ = reader
    node.perform([HangUp("worker-a")])  # it has read everything: nothing is to be freed
    assert "worker-a" in node._peers
    node.perform([Send("worker-a", Nudge("x"), (LARGE,)), HangUp("worker-a"), HangUp("nobody")])
    assert "worker-a" not in node._peers
