"""Machines without a protocol, for nodes to run, and callers of nodes."""

import time
from concurrent.futures import ThreadPoolExecutor

from shoal.protocol.machine import PeerLost, Received, Sink
from shoal.transport import Identity, transport_for

TOKEN = "a token of sixteen characters"
FRIEND = Identity("worker-a", "worker", token=TOKEN)


def until(true, *nodes, limit_s=10.0):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        for node in nodes:
            node.poll(0.01)


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

    def problem_of(self, received):
        return ""

    def handle(self, event, now):
        if isinstance(event, Received):
            data = b"" if event.payload is None else bytes(event.payload.views[0])
            self.received.append((event.message, data))
        elif isinstance(event, PeerLost):
            self.lost.append(event)
        return []


def call(address, me, node):
    """Connect to a node as `me`, while it polls; the connection, or why not."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(transport_for(address).connect, address, me, 10.0)
        until(calling.done, node)
        return calling.exception() or calling.result()
