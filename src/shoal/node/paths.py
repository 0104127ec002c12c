"""Paths: connections between hosts that this node has made, and that may be cut in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.protocol.views import NodeId
from shoal.transport import Connection


class Paths:
    """The peers of other hosts to which this node has connected.

    Attributes:
        called: the peers.
    """

    def __init__(self) -> None:
        self.called: set[NodeId] = set()

    def add(self, connection: Connection) -> None:
        """Record a connection that this node has made, if it may be cut."""
        if not connection.within_host:
            self.called.add(connection.peer)

    def stalled(self, peers: Mapping[NodeId, Connection]) -> Iterator[Connection]:
        """Yield the connections on which peers acknowledge nothing: another path may be open."""
        self.called &= peers.keys()
        for to in self.called:
            if peers[to].stalled:
                yield peers[to]
