"""Messages that a node does not send, as if the network had lost them."""

import logging

import pytest

from shoal.errors import InvalidValue
from shoal.node.dropping import Drops, drops_of
from shoal.node.node import Node
from shoal.protocol.machine import Send
from shoal.protocol.messages.membership import Heartbeat
from shoal.transport import Identity
from tests.node.rigs import Peer, until


def draws(drops, count=10_000):
    return [drops.next() for _ in range(count)]


def test_a_seed_and_a_name_draw_the_same_again_and_another_does_not():
    one = draws(drops_of("10:3", "server-1"))
    assert one == draws(drops_of("10:3", "server-1"))
    assert one != draws(drops_of("10:4", "server-1"))
    assert one != draws(drops_of("10:3", "server-0"))
    assert draws(drops_of("10", "server-1")) == draws(drops_of("10:0", "server-1"))


@pytest.mark.parametrize("percent", [0.5, 10, 50, 99])
def test_as_many_are_dropped_as_the_percentage_says(percent):
    drops = drops_of(str(percent))
    assert abs(sum(draws(drops)) / 10_000 - percent / 100) < 0.02


@pytest.mark.parametrize("text", ["", "0", "0:7"])
def test_nothing_is_dropped_where_nothing_is_asked_for(text):
    assert drops_of(text) is None


@pytest.mark.parametrize("text", ["100", "-1", "ten", "10%", "10:", ":3", "1e1", "10:-3", "٣"])
def test_what_is_no_percentage_is_refused(text):
    with pytest.raises(InvalidValue, match="percentage below 100"):
        drops_of(text)


class EveryOther(Drops):
    """Drops the first message, the third one, and so on."""

    def __init__(self):
        super().__init__(0.5)
        self.asked = 0

    def next(self):
        self.asked += 1
        return self.asked % 2 == 1


@pytest.fixture
def pair(tmp_path):
    """A node that drops every other message, and its peer."""
    (tmp_path / "private").mkdir(0o700)
    address = f"unix://{tmp_path}/private/peer.sock"
    peer = Node(Peer(), Identity("peer", "server"))
    peer.listen(address)
    node = Node(Peer(peer=address), Identity("node", "worker"), drops=EveryOther())
    yield node, peer
    node.close()
    peer.close()


def test_dropped_messages_are_not_sent_and_the_others_come_in_order(pair):
    node, peer = pair
    node.perform([Send("peer", Heartbeat(number, (1, 1))) for number in range(6)])
    until(lambda: len(peer.machine.received) == 3, node, peer)
    assert [message.incarnation for message, _ in peer.machine.received] == [1, 3, 5]
    assert (node._drops.asked, node.counters["dropped"]) == (6, 3)


def test_messages_and_connections_are_told_where_that_is_asked_for(tmp_path, caplog):
    (tmp_path / "private").mkdir(0o700)
    address = f"unix://{tmp_path}/private/peer.sock"
    with (
        caplog.at_level(logging.DEBUG, "shoal.messages"),
        caplog.at_level(logging.DEBUG, "shoal.connections"),
    ):
        peer = Node(Peer(), Identity("peer", "server"))
        peer.listen(address)
        node = Node(Peer(peer=address), Identity("node", "worker"))
        node.perform([Send("peer", Heartbeat(5, (1, 1)))])
        until(lambda: peer.machine.received, node, peer)
        node.close()
        until(lambda: peer.machine.lost, peer)
        peer.close()
    told = [record.getMessage() for record in caplog.records]
    for what in ("to peer: Heartbeat", "from node: Heartbeat", "connected to node at "):
        assert any(each.startswith(what) for each in told), told
    assert "the connection to node has ended" in told
