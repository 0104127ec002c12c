"""The seeded network of the simulator: delay, loss, duplication, reordering, clogs, partitions.

Links are bounded: a message that does not fit is dropped and counted. So a seed can find overflow
that credits should have prevented.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

from shoal.protocol.machine import Buffers
from shoal.protocol.views import NodeId


class NetworkOptions(msgspec.Struct, frozen=True):
    """Options of the simulated network.

    delay_s, jitter_s:  a message takes delay + U(0, jitter)
    loss, duplicate:    probabilities, each message
    reorder:            probability that a message does not wait for the one before it
    stall:              probability that a payload stops half-way, for U(0, stall_s)
    payload_s:          the second half of a payload takes U(0, payload_s) otherwise
    bandwidth:          bytes a second of every link
    link_bytes:         bytes that a link holds before it drops messages
    """

    delay_s: float = 0.0005
    jitter_s: float = 0.001
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    stall: float = 0.0
    stall_s: float = 1.0
    payload_s: float = 0.0005
    bandwidth: float = 1e9
    link_bytes: int = 1 << 22


class Network:
    """Decides when each copy of a message arrives, by the given random generator."""

    def __init__(self, options: NetworkOptions, random: Random) -> None:
        self.options = options
        self.random = random
        self.hits: Counter[str] = Counter()
        self._last: dict[tuple[NodeId, NodeId], float] = {}
        self._queued: dict[tuple[NodeId, NodeId], list[tuple[float, int]]] = {}
        self._clogged: dict[tuple[NodeId, NodeId], float] = {}
        self._cut: list[tuple[frozenset[NodeId], float]] = []

    def clog(self, source: NodeId, target: NodeId, until: float) -> None:
        """Delay all messages of one link until `until`."""
        self._clogged[source, target] = until

    def partition(self, island: frozenset[NodeId], until: float) -> None:
        """Lose all messages between `island` and the other nodes until `until`."""
        self._cut.append((island, until))

    def heal(self) -> None:
        """End all faults."""
        calm = {"loss": 0.0, "duplicate": 0.0, "reorder": 0.0, "stall": 0.0}
        self.options = msgspec.structs.replace(self.options, **calm)
        self._clogged.clear()
        self._cut.clear()

    def send(
        self, now: float, source: NodeId, target: NodeId, nbytes: int
    ) -> tuple[list[float], list[str]]:
        """Return the arrival times of a message sent now (none, one or two), and its faults."""
        options, random = self.options, self.random
        if self._cut and any(
            until > now and (source in island) != (target in island) for island, until in self._cut
        ):
            return self._fate([], ["partition"])
        if random.random() < options.loss:
            return self._fate([], ["loss"])
        link = (source, target)
        queue = [each for each in self._queued.get(link, ()) if each[0] > now]
        if sum([size for _, size in queue]) + nbytes > options.link_bytes:
            return self._fate([], ["overflow"])
        faults = []
        at = now + options.delay_s + random.random() * options.jitter_s + nbytes / options.bandwidth
        clogged = self._clogged.get(link, 0.0)
        if clogged > now:
            faults.append("clog")
            at += clogged - now
        if random.random() < options.reorder:
            faults.append("reorder")
        else:
            at = max(at, self._last.get(link, 0.0) + 1e-9)
            self._last[link] = at
        arrivals = [at]
        if random.random() < options.duplicate:
            faults.append("duplicate")
            arrivals.append(at + options.delay_s + random.random() * 20 * options.jitter_s)
        queue += [(each, nbytes) for each in arrivals]
        self._queued[link] = queue
        return self._fate(arrivals, faults)

    def second_part(self) -> tuple[float, list[str]]:
        """Return the delay of the second part of a payload, and its faults."""
        if self.random.random() < self.options.stall:
            return self.random.random() * self.options.stall_s, self._fate([], ["stall"])[1]
        return self.random.random() * self.options.payload_s, []

    def _fate(self, arrivals: list[float], faults: list[str]) -> tuple[list[float], list[str]]:
        self.hits.update(faults)
        return arrivals, faults


class Envelope(msgspec.Struct, eq=False):
    """A message in flight.

    Guarded buffers are read as late as possible: on arrival, or when the guard recalls them.

    breaks:  how often the connection had broken when the message was sent
    """

    source: NodeId
    target: NodeId
    frame: bytes
    buffers: Buffers
    nbytes: int
    breaks: int

    def detach(self) -> None:
        self.buffers = (memoryview(self.payload()),)

    def payload(self) -> bytes:
        return b"".join(self.buffers)
