"""A node and its peers."""

import pytest

from shoal.errors import HandshakeRefused
from shoal.node.node import Node
from shoal.protocol.machine import Send
from shoal.protocol.messages import SCHEDULER, Freeze, Nudge
from shoal.transport import Identity, transport_for

ADDRESS = "inproc://a-place-for-servers"


class Caller:
    """A machine that only knows where others are."""

    def address_of(self, node):
        return ADDRESS

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
    assert node.counters["unreachable"] == 0


def test_a_message_to_a_node_whose_address_another_has_is_unreachable(node, listener):
    node.perform([Send("server-a", Nudge("there"))])
    assert node.counters["unreachable"] == 1
    assert not node.stopped


def test_a_node_that_is_no_scheduler_is_refused_as_one(node, listener):
    node.perform([Send(SCHEDULER, Freeze((1, 1)))])
    assert isinstance(node.error, HandshakeRefused)
    assert "is server-b, not scheduler" in node.error.message
