"""Handshakes: which neighbours have not answered in this view, and when to greet them again."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from shoal.protocol.views import NodeId


class Handshakes:
    """The neighbours that this server connects to, until they answer.

    A greeting is repeated after `least_s`, then after twice as long each time, up to `most_s`: a
    slow server has to answer each greeting in its queue.

    silent:  the (time of the next greeting, interval after it) of each neighbour without an answer
    """

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self.silent: dict[NodeId, tuple[float, float]] = {}

    def begin(self, nodes: Iterable[NodeId], now: float) -> None:
        """Greet these neighbours, and no others."""
        self.silent = dict.fromkeys(nodes, (now, self._least_s))

    def lost(self, node: NodeId, again_at: float) -> None:
        """Greet a neighbour whose connection broke."""
        self.silent[node] = again_at, self._least_s

    def answered(self, node: NodeId) -> None:
        """Greet a neighbour no more."""
        self.silent.pop(node, None)

    def wakes_at(self) -> float:
        return min(at for at, _ in self.silent.values()) if self.silent else inf

    def take(self, now: float) -> list[NodeId]:
        """Return the neighbours to greet now, and set when to greet them again."""
        nodes = [node for node, (at, _) in self.silent.items() if now >= at]
        for node in nodes:
            after = self.silent[node][1]
            self.silent[node] = now + after, min(2 * after, self._most_s)
        return nodes
