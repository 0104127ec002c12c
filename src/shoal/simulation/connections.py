"""The connections between simulated nodes, and how often each broke."""

from __future__ import annotations

from shoal.protocol.machine import Machine
from shoal.protocol.messages import SCHEDULER
from shoal.protocol.views import NodeId

Pair = frozenset[NodeId]


class Connections:
    """Connections as on a real network: a node needs the other's address or an open connection."""

    def __init__(self) -> None:
        self._made: set[Pair] = set()
        self._broken: dict[Pair, int] = {}

    def reach(self, source: NodeId, machine: Machine, target: NodeId) -> bool:
        """Return whether there is a connection, or this node can make one."""
        pair = frozenset((source, target))
        if pair not in self._made:
            if target != SCHEDULER and not machine.address_of(target):
                return False
            self._made.add(pair)
        return True

    def broke(self, one: NodeId, other: NodeId) -> None:
        """Break a connection: the messages in flight are lost."""
        pair = frozenset((one, other))
        self._made.discard(pair)
        self._broken[pair] = self._broken.get(pair, 0) + 1

    def died(self, node: NodeId) -> None:
        """Remove a dead node's connections; its messages in flight may still arrive."""
        self._made = {pair for pair in self._made if node not in pair}

    def breaks(self, one: NodeId, other: NodeId) -> int:
        """Return how often their connection broke."""
        return self._broken.get(frozenset((one, other)), 0) if self._broken else 0
