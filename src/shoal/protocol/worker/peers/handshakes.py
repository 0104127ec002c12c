"""Handshakes: which neighbours have the same ring as a worker.

The worker of lower rank opens the connection between two neighbours. Both repeat a greeting until
the other one has answered, also after a connection was lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.collective import MissingPieces
from shoal.protocol.views import NodeId
from shoal.protocol.worker.peers.sums import PROBE_S


class Handshakes:
    """The neighbours of a ring that have been heard of.

    Args:
        ring: the identifier of the ring's members.

    Attributes:
        at: the time when neighbours that have not answered are greeted again.
    """

    def __init__(self, ring: int) -> None:
        self._greeting = MissingPieces(ring, 0)
        self._answer = MissingPieces(ring, 1)  # as empty, and never answered
        self._met: dict[NodeId, None] = {}
        self.at = inf

    def __contains__(self, neighbour: NodeId) -> bool:
        return neighbour in self._met

    def greet(self, neighbours: Iterable[NodeId], out: Effects) -> None:
        """Greet the neighbours that have not answered."""
        out.extend(Send(each, self._greeting) for each in neighbours if each not in self._met)

    def heard(self, neighbour: NodeId, message: Message, out: Effects) -> bool:
        """Record a message of a neighbour; return whether it is the first one."""
        if neighbour in self._met:
            if message == self._greeting:  # the neighbour lacks the answer to its first greeting
                out.append(Send(neighbour, self._answer))
            return False
        self._met[neighbour] = None
        out.append(Send(neighbour, self._greeting))
        return True

    def lost(self, neighbour: NodeId, now: float) -> None:
        """Note that the connection to a neighbour is lost."""
        if self._met.pop(neighbour, "") is None:
            self.at = now + PROBE_S

    def tick(self, neighbours: list[NodeId], now: float, out: Effects) -> None:
        """Repeat the greeting of neighbours that have not answered, if it is due."""
        if now >= self.at:
            self.greet(neighbours, out)
            self.at = now + PROBE_S if any(each not in self._met for each in neighbours) else inf
