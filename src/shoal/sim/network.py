"""The seeded network of the simulator: delay, loss, duplication, reordering, clogs, partitions.

Links are bounded: what does not fit is dropped and counted, so that a seed can find back-pressure
that the credits should have prevented.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

from shoal.protocol.messages import NodeId


class NetworkOptions(msgspec.Struct, frozen=True):
    """
    delay_s, jitter_s:  a message takes delay + U(0, jitter)
    loss, duplicate:    probabilities, each message
    reorder:            probability that a message does not wait for the one before it
    bandwidth:          bytes a second of every link
    link_bytes:         what a link holds before it drops
    """

    delay_s: float = 0.0005
    jitter_s: float = 0.001
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    bandwidth: float = 1e9
    link_bytes: int = 1 << 22


class Network:
    """When each copy of a message arrives. All randomness comes from the generator given."""

    def __init__(self, options: NetworkOptions, random: Random) -> None:
        self.options = options
        self.random = random
        self.hits: Counter[str] = Counter()
        self._last: dict[tuple[NodeId, NodeId], float] = {}
        self._queued: dict[tuple[NodeId, NodeId], list[tuple[float, int]]] = {}
        self._clogged: dict[tuple[NodeId, NodeId], float] = {}
        self._cut: list[tuple[frozenset[NodeId], float]] = []

    def clog(self, source: NodeId, target: NodeId, until: float) -> None:
        """Hold everything on one link back until then."""
        self._clogged[source, target] = until

    def partition(self, island: frozenset[NodeId], until: float) -> None:
        """Lose everything between `island` and the rest until then."""
        self._cut.append((island, until))

    def heal(self) -> None:
        """No faults from here on."""
        self.options = msgspec.structs.replace(self.options, loss=0.0, duplicate=0.0, reorder=0.0)
        self._clogged.clear()
        self._cut.clear()

    def send(self, now: float, source: NodeId, target: NodeId, nbytes: int) -> list[float]:
        """The arrival times of a message sent now: none where it is lost, two where doubled."""
        options, random = self.options, self.random
        if any(
            until > now and (source in island) != (target in island) for island, until in self._cut
        ):
            self.hits["partition"] += 1
            return []
        if random.random() < options.loss:
            self.hits["loss"] += 1
            return []
        link = (source, target)
        queue = [(at, size) for at, size in self._queued.get(link, ()) if at > now]
        if sum(size for _, size in queue) + nbytes > options.link_bytes:
            self.hits["overflow"] += 1
            return []
        at = now + options.delay_s + random.random() * options.jitter_s + nbytes / options.bandwidth
        clogged = self._clogged.get(link, 0.0)
        if clogged > now:
            self.hits["clog"] += 1
            at += clogged - now
        if random.random() < options.reorder:
            self.hits["reorder"] += 1
        else:
            at = max(at, self._last.get(link, 0.0) + 1e-9)
            self._last[link] = at
        arrivals = [at]
        if random.random() < options.duplicate:
            self.hits["duplicate"] += 1
            arrivals.append(at + options.delay_s + random.random() * 20 * options.jitter_s)
        self._queued[link] = [*queue, *((each, nbytes) for each in arrivals)]
        return arrivals
