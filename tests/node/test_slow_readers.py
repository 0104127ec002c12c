"""Peers that do not read what they are sent."""

import time

import pytest

from shoal.node import node as node_module
from shoal.node import slow_readers
from shoal.node.node import Node
from shoal.node.slow_readers import ROOM_BYTES
from shoal.protocol.machine import (
    AwaitRoom,
    HangUp,
    HasRoom,
    PeerLost,
    Send,
    Sink,
)
from shoal.protocol.messages.requests import Nudge
from shoal.transport import Identity
from tests.node.rigs import FRIEND, TOKEN, Peer, call, until


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


def test_room_is_seen_in_the_turn_in_which_there_is_some(reader, monkeypatch):
    """And not when other connections are looked at, which is rarer."""
    monkeypatch.setattr(node_module, "LOOK_S", 3600.0)
    node, peer = reader
    node.perform([Send("worker-a", Nudge("x"), (LARGE,)), AwaitRoom("worker-a")])
    node.poll(0.01)  # looks at all
    read_all(peer, node)
    node.poll(0.01)
    assert node.machine.room == ["worker-a"]


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
