"""A node and its peers."""

import socket
import threading
import time
from contextlib import suppress

import pytest

from shoal.errors import HandshakeRefused, InvalidValue
from shoal.node.node import Node
from shoal.protocol.machine import (
    CopyOnWriteGuard,
    Detach,
    Offload,
    Offloaded,
    PeerLost,
    Received,
    Redial,
    Send,
    Ticked,
)
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Freeze
from shoal.protocol.messages.requests import Nudge
from shoal.transport import Identity, transport_for
from shoal.transport.shortcut import without_shortcut
from shoal.transport.tcp import endpoint_of, tcp_address
from tests.node.rigs import FRIEND, TOKEN, Peer, call, until
from tests.transport.rigs import drop_packets_to

ADDRESS = "inproc://a-place-for-servers"


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


@pytest.fixture
def pair():
    """A node that can reach another by a scheme, and that node; TCP is TCP."""
    nodes = []

    def pair(address):
        there = Node(Peer(), Identity("server-b", "server", token=TOKEN))
        caller = Peer(server_b=there.listen(address))
        here = Node(caller, Identity("worker-a", "worker", token=TOKEN))
        nodes.extend((here, there))
        return here, there

    with without_shortcut():
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


@pytest.mark.parametrize("ends", [False, True])
def test_of_cumulative_messages_to_a_node_the_last_one_of_a_turn_is_sent(tmp_path, pair, ends):
    """In the next turn, or before the node ends; others overtake it."""
    tmp_path.chmod(0o700)
    here, there = pair(f"unix://{tmp_path}/there")
    here.perform([Send("server-b", Nudge("first"))])
    until(lambda: there.machine.received, here, there)
    for number in range(3):
        here.perform([Send("server-b", Nudge(str(number)), cumulative=True)])
    here.perform([Send("server-b", Nudge("other"))])
    until(lambda: len(there.machine.received) == 2, there)
    if ends:
        here.linger()
        until(lambda: len(there.machine.received) == 3, there)
    until(lambda: len(there.machine.received) == 3, here, there)
    here.poll(0.0)
    there.poll(0.0)
    assert [message.reason for message, _ in there.machine.received] == ["first", "other", "2"]


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


class Choosy(Peer):
    """Takes no nudge that says no, and has a bug that a nudge shows."""

    def problem_of(self, received):
        if received.message.reason == "bug":
            raise KeyError("missing")
        return "it says no" if received.message.reason == "no" else ""


@pytest.mark.parametrize(("reason", "counted"), [("no", "BadContent"), ("bug", "PeerFault")])
def test_a_message_is_looked_at_before_it_is_handled(tmp_path, reason, counted):
    tmp_path.chmod(0o700)
    node = Node(Choosy(), Identity("server-b", "server", token=TOKEN))
    address = node.listen(f"unix://{tmp_path}/node")
    try:
        peer = call(address, FRIEND, node)
        peer.send(Nudge("yes"), ())
        until(lambda: node.machine.received, node)
        peer.send(Nudge(reason), ())
        until(lambda: "worker-a" not in node._peers, node)
        assert node.counters[counted] == 1
        assert len(node.machine.received) == 1
        peer.close()
    finally:
        node.close()


class Broken(Peer):
    def handle(self, event, now):
        if isinstance(event, Received):
            raise KeyError("in the middle of a change")
        return []


def test_an_error_while_a_message_is_handled_stops_the_node(tmp_path):
    tmp_path.chmod(0o700)
    node = Node(Broken(), Identity("server-b", "server", token=TOKEN))
    address = node.listen(f"unix://{tmp_path}/node")
    try:
        peer = call(address, FRIEND, node)
        peer.send(Nudge("x"), ())
        with pytest.raises(KeyError):
            until(lambda: False, node, limit_s=5.0)
        peer.close()
    finally:
        node.close()


class Busy(Peer):
    """A machine to which every message is a second's work, and that has a timer."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.order = clock, []

    def deadline(self):
        return self.clock[0]

    def handle(self, event, now):
        if isinstance(event, Received):
            self.clock[0] += 1.0
            self.order.append(event.sender)
        elif isinstance(event, Ticked):
            self.order.append("tick")
        return []


def test_a_turn_ends_although_more_is_ready(tmp_path, monkeypatch):
    """Timers, and the proof that the loop lives, do not wait for all that peers have sent."""
    tmp_path.chmod(0o700)
    clock = [100.0]
    node = Node(Busy(clock), Identity("server-b", "server", token=TOKEN))
    address = node.listen(f"unix://{tmp_path}/node")
    names = [f"worker-{number}" for number in range(4)]
    callers = [call(address, Identity(name, "worker", token=TOKEN), node) for name in names]
    node.machine.order.clear()
    for module in ("node", "poller"):
        monkeypatch.setattr(f"shoal.node.{module}.monotonic", lambda: clock[0])
    for each in callers:
        each.send(Nudge("x"), ())
    for _ in callers:
        node.poll(0.0)
    assert sorted(node.machine.order[::2]) == names
    assert node.machine.order[1::2] == ["tick"] * 4
    for each in callers:
        each.close()
    node.close()


class MuteProxy:
    """Passes connections on; those that are muted take what comes and deliver nothing."""

    def __init__(self, address):
        self._to = endpoint_of(address)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = tcp_address(*self._listener.getsockname())
        self.flows = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                ends = caller, socket.create_connection(self._to)
                flow = {"muted": False, "ends": ends}
                self.flows.append(flow)
                for source, target in (ends, ends[::-1]):
                    told = (flow, source, target)
                    threading.Thread(target=self._pass, args=told, daemon=True).start()

    def _pass(self, flow, source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not flow["muted"]:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        self._listener.close()
        for each in [end for flow in self.flows for end in flow["ends"]]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.mark.real
@pytest.mark.parametrize("muted", [True, False])
def test_a_connection_that_delivers_nothing_is_replaced(pair, muted):
    """Its bytes are acknowledged, so that the path seems well; one that delivers stays."""
    here, there = pair("tcp://127.0.0.1:0")
    proxy = MuteProxy(here.machine.addresses["server_b"])
    here.machine.addresses["server_b"] = proxy.address
    here.perform([Send("server-b", Nudge("before"))])
    until(lambda: there.machine.received, here, there)
    there.perform([Send("worker-a", Nudge("answer"))])
    until(lambda: here.machine.received, here, there)
    proxy.flows[0]["muted"] = muted
    here.perform([Send("server-b", Nudge("lost"))])
    until(lambda: not here._peers["server-b"].outstanding, here)
    here.perform([Redial("server-b", proxy.address)])
    if not muted:
        there.perform([Send("worker-a", Nudge("late"))])  # it is heard of while it is dialled
        until(lambda: len(here.machine.received) == 2, here, there)
    until(lambda: not here._dialer._peers, here, there)
    assert [each.node for each in here.machine.lost] == ["server-b"] * muted
    here.perform([Send("server-b", Nudge("again"))])
    until(lambda: (Nudge("again"), b"") in there.machine.received, here, there)
    assert ((Nudge("lost"), b"") in there.machine.received) != muted
    proxy.close()
