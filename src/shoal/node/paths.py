"""Paths: connections over TCP that this node has made, and that may be cut in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.protocol.views import NodeId
from shoal.transport import Connection


class Paths:
    """The peers to which this node has connected over TCP.

    Attributes:
        called: the peers.
    """

    def __init__(self) -> None:
        self.called: set[NodeId] = set()

    def add(self, to: NodeId, address: str) -> None:
        """Record that this node has connected to a peer at an address, if that is one of TCP."""
        if address.startswith("tcp://"):
            self.called.add(to)

    def stalled(self, peers: Mapping[NodeId, Connection]) -> Iterator[Connection]:
        """Yield the connections on which peers acknowledge nothing: another path may be open."""
        self.called &= peers.keys()
        for to in self.called:
            if peers[to].stalled:
                yield peers[to]
