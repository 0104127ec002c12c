"""The connections between simulated nodes: made, being made, half-open, broken."""

from __future__ import annotations

from collections.abc import Callable

from shoal.protocol.machine import Machine
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.views import NodeId

Pair = frozenset[NodeId]
HANGS_S = 2.0  # until an attempt to connect that is not answered is abandoned


class Connections:
    """Connections as on a real network: a node needs the other's address or an open connection."""

    def __init__(self) -> None:
        self._made: set[Pair] = set()
        self._ready: dict[Pair, float] = {}  # when connections that are being made are ready
        self._hopeless: dict[Pair, float] = {}  # attempts that hang, and when they end
        # (survivor, the dead peer that it writes to)
        self._half_open: set[tuple[NodeId, NodeId]] = set()
        self._broken: dict[Pair, int] = {}
        self._hangs: dict[NodeId, float] = {}  # nodes where no attempt is answered, and until when

    def hang(self, node: NodeId, until: float) -> None:
        """Leave attempts to connect with a node unanswered until a time."""
        self._hangs[node] = until

    def reach(
        self,
        source: NodeId,
        machine: Machine,
        target: NodeId,
        now: float,
        connects_s: Callable[[], float],
    ) -> float | None:
        """Connect two nodes if necessary; return when a message can leave, or None if it cannot.

        connects_s:  returns the time that a new connection takes
        """
        pair = frozenset((source, target))
        if pair in self._made:
            return max(now, self._ready[pair]) if pair in self._ready else now
        if target != SCHEDULER and not machine.address_of(target):
            return None
        if self._hopeless.get(pair, 0.0) > now:
            return None
        if max(self._hangs.get(source, 0.0), self._hangs.get(target, 0.0)) > now:
            self._hopeless[pair] = now + HANGS_S
            return None
        self._made.add(pair)
        self._ready[pair] = ready = now + connects_s()
        return ready

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Return whether there is a connection, or one is being made."""
        return frozenset((one, other)) in self._made

    def hangs(self, one: NodeId, other: NodeId, now: float) -> bool:
        """Return whether an attempt to connect is under way that will not be answered."""
        return self._hopeless.get(frozenset((one, other)), 0.0) > now

    def half_open(self, source: NodeId, target: NodeId) -> bool:
        """Return whether a node sends on a half-open connection, which then ends by a reset."""
        if (source, target) not in self._half_open:
            return False
        self._half_open.discard((source, target))
        return True

    def broke(self, one: NodeId, other: NodeId) -> None:
        """Break a connection: the messages in flight are lost."""
        pair = frozenset((one, other))
        self._made.discard(pair)
        self._ready.pop(pair, None)
        self._broken[pair] = self._broken.get(pair, 0) + 1

    def died(self, node: NodeId, told: bool = True) -> None:
        """Remove a dead node's connections; its messages in flight may still arrive.

        told:  whether the node's peers hear of it; otherwise their connections are half-open
        """
        gone = {pair for pair in self._made if node in pair}
        self._made -= gone
        if not told:
            self._half_open |= {(other, node) for pair in gone for other in pair - {node}}

    def breaks(self, one: NodeId, other: NodeId) -> int:
        """Return how often the connection of two nodes broke."""
        return self._broken.get(frozenset((one, other)), 0) if self._broken else 0
