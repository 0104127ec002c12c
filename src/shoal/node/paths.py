"""Paths: connections over TCP that this node has made, and that may be cut in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.protocol.views import NodeId
from shoal.transport import Connection


class Paths:
    """The peers to whom this node has connected over TCP.

    Args:
        look_s: seconds between looks at their connections.

    Attributes:
        called: the peers.
    """

    def __init__(self, look_s: float) -> None:
        self._look_s = look_s
        self._look_at = 0.0
        self.called: set[NodeId] = set()

    def add(self, to: NodeId, address: str) -> None:
        """Note that a peer at an address was connected to."""
        if address.startswith("tcp://"):
            self.called.add(to)

    def stalled(self, peers: Mapping[NodeId, Connection], now: float) -> Iterator[Connection]:
        """The connections on which peers acknowledge nothing: another path may be open."""
        if now < self._look_at:
            return
        self._look_at = now + self._look_s
        self.called &= peers.keys()
        for to in self.called:
            if peers[to].stalled:
                yield peers[to]
