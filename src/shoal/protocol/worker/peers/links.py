"""Link: the values to and from one neighbour of a worker, a version at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from mmap import mmap

from shoal.protocol.limits import LISTED_MAX
from shoal.protocol.machine import Arrival, Discard, Effects, Send, Sink
from shoal.protocol.messages.collective import NeighbourAck, NeighbourPiece, NeighbourProbe
from shoal.protocol.views import NodeId
from shoal.protocol.worker.peers.sums import LINE_BYTES, PROBE_MAX_S, PROBE_S, Edges, cut

Version = tuple[int, int]  # phase and round
NO_VERSION: Version = (0, 0)


@dataclass(frozen=True)
class Layout:
    """The places of a version's buffers in its memory, and the pieces in which it is sent."""

    spans: tuple[tuple[int, int], ...]
    nbytes: int
    edges: Edges

    @classmethod
    def of(cls, sizes: tuple[int, ...], piece_bytes: int) -> Layout:
        """Return the layout of buffers of these sizes, each at the start of a cache line."""
        spans, end = [], 0
        for size in sizes:
            start = -(-end // LINE_BYTES) * LINE_BYTES
            end = start + size
            spans.append((start, end))
        return cls(tuple(spans), end, cut(end, 1, piece_bytes))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.spans)

    def memory(self) -> memoryview:
        """Return new memory for a version."""
        return memoryview(mmap(-1, max(1, self.nbytes)))[: self.nbytes]

    def buffers(self, memory: memoryview) -> tuple[memoryview, ...]:
        return tuple(memory[start:stop] for start, stop in self.spans)

    def piece(self, memory: memoryview, number: int) -> memoryview:
        _, start, stop = self.edges[number]
        return memory[start:stop]


@dataclass(eq=False)
class Values:
    """A version of a worker's values.

    Attributes:
        missing: the pieces that have not arrived; none of this worker's own values.
        sinks: the sinks of arriving pieces, by piece.
        again: whether pieces were sent again, so that copies may still be under way.
    """

    version: Version
    memory: memoryview
    clocks: Mapping[int, int]
    missing: dict[int, None] = field(default_factory=dict)
    sinks: dict[int, Sink] = field(default_factory=dict)
    again: bool = False


class Link:
    """The exchange with one neighbour.

    One version is under way at a time; the next one is sent when the neighbour has acknowledged it.
    Until then the neighbour is probed, ever more rarely, for missing pieces. So a slow link is not
    filled with versions that are outdated when they arrive.

    Args:
        node: the neighbour.
        rank: the rank of the neighbour.
        layout: the layout of all versions.
        name: the name of the exchange.

    Attributes:
        met: whether the neighbour has answered since the last connection to it was lost.
        late: whether this worker goes on without it until it has caught up.
        taken: the version that this worker has taken last, if any.
        whole: the versions that have arrived since, oldest first.
    """

    def __init__(self, node: NodeId, rank: int, layout: Layout, name: str) -> None:
        self.node = node
        self.rank = rank
        self.met = self.late = False
        self.taken: Values | None = None
        self.whole: deque[Values] = deque(maxlen=2)
        self.bytes_sent = self.bytes_received = 0
        self._layout = layout
        self._name = name
        self._probe_at, self._wait_s = 0.0, PROBE_S
        self._probes = 0  # the number of probes that were sent
        self._stale = 0  # the number of probes before pieces were sent the last time
        self._sending: Values | None = None
        self._begun = False  # whether pieces of it were sent
        self._next: deque[Values] = deque(maxlen=2)  # for a late neighbour older ones are dropped
        self._arriving: Values | None = None
        self._free: list[memoryview] = []

    # ------------------------------------------------------------------ to the neighbour

    def offer(self, values: Values, ordered: bool, now: float, out: Effects) -> None:
        """Send this worker's newest version, after (`ordered`) or in place of waiting versions."""
        if not ordered:
            self._next.clear()
        self._next.append(values)
        self._pump(now, out)

    def _pump(self, now: float, out: Effects) -> None:
        if self._sending is None and self._next:
            self._sending, self._begun = self._next.popleft(), False
        if self._sending is not None and self.met and not self._begun:
            self._begun = True
            self._send(self._sending, range(len(self._layout.edges)), out)
            self._wait(now, PROBE_S)

    def keeps(self, values: Values) -> bool:
        """Return whether this worker's own `values` are still needed for this neighbour."""
        return values is self._sending or values in self._next

    def _send(self, values: Values, pieces: range | tuple[int, ...], out: Effects) -> None:
        self._stale = self._probes
        for piece in pieces:
            if piece < len(self._layout.edges):
                view = self._layout.piece(values.memory, piece)
                told = self._layout.nbytes, dict(values.clocks)
                message = NeighbourPiece(self._name, *values.version, piece, *told)
                out.append(Send(self.node, message, (view,)))
                self.bytes_sent += view.nbytes

    def acknowledged(self, message: NeighbourAck, now: float, out: Effects) -> None:
        """Send the pieces that the neighbour lacks of a version; the next version if it has all."""
        values = self._sending
        if values is None or (message.phase, message.round) != values.version:
            return
        if not message.missing:
            self._sending = None
            self._pump(now, out)
        elif message.number > self._stale:  # of several answers only the first counts
            self._begun = values.again = True
            self._send(values, message.missing, out)

    # ------------------------------------------------------------------ from the neighbour

    def probed(self, message: NeighbourProbe, out: Effects) -> None:
        """Answer a probe with the missing pieces of a version."""
        version = message.phase, message.round
        missing: tuple[int, ...] = ()
        if version > self._newest():
            arriving = self._arriving
            if arriving is not None and arriving.version == version:
                missing = tuple(arriving.missing)[:LISTED_MAX]
            else:
                missing = tuple(range(len(self._layout.edges)))[:LISTED_MAX]
        out.append(Send(self.node, NeighbourAck(self._name, *version, message.number, missing)))

    def _newest(self) -> Version:
        """Return the newest version that has arrived."""
        newest = self.whole[-1] if self.whole else self.taken
        return NO_VERSION if newest is None else newest.version

    def arriving(self, message: NeighbourPiece, nbytes: int) -> Arrival:
        version = message.phase, message.round
        if version <= self._newest():
            return Discard("it is here already")
        if message.total != self._layout.nbytes or message.piece >= len(self._layout.edges):
            return Discard("of another size")
        values = self._arriving
        if values is None or version > values.version:
            self._abandon()
            pieces = dict.fromkeys(range(len(self._layout.edges)))
            memory = self._free.pop() if self._free else self._layout.memory()
            values = self._arriving = Values(version, memory, message.clocks, pieces)
        if version < values.version or message.piece not in values.missing:
            return Discard("it is here already, or a newer one comes")
        view = self._layout.piece(values.memory, message.piece)
        if nbytes != view.nbytes:
            return Discard(f"{nbytes} bytes for a piece of {view.nbytes}")
        if message.piece in values.sinks:  # two copies must not be written to one place
            values.sinks.pop(message.piece).revoke()
        return values.sinks.setdefault(message.piece, Sink([view], values))

    def landed(self, message: NeighbourPiece, payload: Sink | None, out: Effects) -> bool:
        """Record a piece that has arrived; return whether its version is whole now."""
        values = self._arriving
        here = payload is not None and not payload.revoked and payload.context is values
        if not here or values is None:
            if (message.phase, message.round) <= self._newest():  # the acknowledgement was lost
                self._acknowledge((message.phase, message.round), out)
            return False
        values.missing.pop(message.piece, None)
        self.bytes_received += self._layout.piece(values.memory, message.piece).nbytes
        if values.missing:
            return False
        self._arriving = None
        self.whole.append(values)
        self._acknowledge(values.version, out)
        return True

    def _acknowledge(self, version: Version, out: Effects) -> None:
        out.append(Send(self.node, NeighbourAck(self._name, *version)))

    def take(self, due: Version, ordered: bool) -> Values | None:
        """Take and return the version of `due`, or the first after it.

        If not `ordered`, the newest one, which is taken only once. Versions of earlier phases do
        not count. None if there is no version.
        """
        before = self.taken
        while self.whole and (not ordered or self.taken is None or self.taken.version < due):
            if self.taken is not None:
                self._free.append(self.taken.memory)
            self.taken = self.whole.popleft()
        if self.taken is None or self.taken.version[0] < due[0]:
            return None
        return self.taken if ordered or self.taken is not before else None

    def has(self, due: Version) -> bool:
        """Return whether the version of `due` is here, or a later one."""
        return self._newest() >= due

    def wait_again(self) -> None:
        """Wait for the neighbour, although it was late."""
        self.late = False

    def skip_if_late(self, due: Version) -> None:
        """Go on without the neighbour unless the version of `due` is here."""
        self.late = not self.has(due)

    def catch_up(self, due: Version) -> None:
        """Wait for the neighbour again if the version of `due` is here."""
        self.late = self.late and not self.has(due)

    def news(self, phase: int) -> bool:
        """Return whether a version of this phase or a later one has arrived that is not taken."""
        return bool(self.whole) and self.whole[-1].version[0] >= phase

    # ------------------------------------------------------------------ the connection

    def heard(self, now: float, out: Effects) -> None:
        """Note that the neighbour is there; probe it, and send the version that waits for it."""
        if not self.met:
            self.met = True
            self._probe(out)
            self._wait(now, PROBE_S)
            self._pump(now, out)

    def probe_at(self) -> float:
        """Return the time when the neighbour is probed, or greeted."""
        return inf if self.met and self._sending is None else self._probe_at

    def lost(self, now: float) -> None:
        """Note that the connection to the neighbour is lost."""
        self.met = False
        self._wait(now, PROBE_S)

    def tick(self, now: float, out: Effects) -> None:
        """Probe or greet the neighbour, if it is due."""
        if now >= self.probe_at():
            self._probe(out)
            self._wait(now, min(2 * self._wait_s, PROBE_MAX_S))

    def _probe(self, out: Effects) -> None:
        begun = self._sending is not None and self._begun
        version = self._sending.version if self._sending is not None and begun else NO_VERSION
        self._probes += 1
        out.append(Send(self.node, NeighbourProbe(self._name, *version, self._probes)))

    def _wait(self, now: float, seconds: float) -> None:
        self._wait_s, self._probe_at = seconds, now + seconds

    def close(self) -> None:
        """Revoke the sinks of pieces that are under way from the neighbour."""
        self._abandon()

    def _abandon(self) -> None:
        if self._arriving is not None:
            for sink in self._arriving.sinks.values():
                sink.revoke()
            self._free.append(self._arriving.memory)
            self._arriving = None
