"""An allreduce or an allgather around a ring: its pieces, and which have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shoal.protocol.machine import Sink
from shoal.protocol.requests import Gather, Reduce

LINE_BYTES = 64  # a copy to the middle of a cache line can be four times slower
PROBE_S, PROBE_MAX_S = 0.2, 4.0  # seconds without progress until a neighbour is probed; doubles


Edges = tuple[tuple[int, int, int], ...]  # of each piece: (segment, start, stop)


def cut(nbytes: int, workers: int, most: int) -> Edges:
    """Return the pieces of a tensor of `nbytes` bytes, of at most `most` bytes, for all workers.

    Cut evenly, at the edges of cache lines and so of items, whose size divides a line's.

    >>> cut(100 * 4, 2, 128)
    ((0, 0, 128), (0, 128, 192), (1, 192, 320), (1, 320, 400))
    """
    lines = -(-nbytes // LINE_BYTES)
    ends = [min(nbytes, LINE_BYTES * (lines * s // workers)) for s in range(workers)] + [nbytes]
    return tuple(
        (segment, first, min(first + most, stop))
        for segment, (start, stop) in enumerate(pairwise(ends))
        for first in range(start, stop, most)
    )


def cut_gathered(nbytes: int, workers: int, most: int) -> Edges:
    """Return the pieces of the values of all workers, of `nbytes` bytes each, by rank in memory.

    The values of worker w are segment w + 1, which is whole there.

    >>> cut_gathered(100, 2, 64)
    ((0, 100, 164), (0, 164, 200), (1, 0, 64), (1, 64, 100))
    """
    places = [(segment, nbytes * ((segment - 1) % workers)) for segment in range(workers)]
    return tuple(
        (segment, first, min(first + most, start + nbytes))
        for segment, start in places
        for first in range(start, start + nbytes, most)
    )


@dataclass(eq=False)
class Sum:
    """The allreduce of one tensor, or the allgather of the bytes of all workers.

    Attributes:
        begun_at: the time when the allreduce was requested.
        wait_s, again_at: the pause before the next probe of the next worker, and its time.
        partial: the pieces whose partial sum has not arrived.
        whole: the pieces whose total sum has not arrived.
        added: the bytes of a piece's partial sum that are added to this worker's values.
        gathered: whether all workers' values are gathered, by rank; those of an allreduce are added
            up locally.
        probes, stale: the numbers of probes in all, and before the last pieces that were sent.
        sent: whether pieces were sent to the next worker.
        told: whether completion was noticed.
        taken: whether the next worker has everything.
    """

    request_id: int
    ask: Reduce | Gather
    values: memoryview
    edges: Edges
    workers: int
    index: int
    begun_at: float

    def __post_init__(self) -> None:
        self.heard(self.begun_at)
        self.probes = self.stale = 0
        self.sent = False
        self.gathered = self.values is not self.ask.values
        last = (self.index + 1) % self.workers
        self.partial: dict[int, None] = {}
        if not self.gathered:
            self.partial = {p: None for p, (s, _, _) in enumerate(self.edges) if s != self.index}
        self.whole = {p: None for p, (s, _, _) in enumerate(self.edges) if s != last}
        self.added: dict[int, int] = {}
        self.sinks: dict[int, Sink] = {}  # the sinks of whole sums, by piece
        self.told = self.taken = False

    @classmethod
    def begun(
        cls,
        request_id: int,
        ask: Reduce | Gather,
        workers: int,
        index: int,
        now: float,
        piece_bytes: int,
        gathered_bytes: int,
    ) -> Sum:
        """Return a new allgather or allreduce; this is gathered up to `gathered_bytes` in all."""
        nbytes = ask.values.nbytes
        if isinstance(ask, Reduce) and nbytes * workers > gathered_bytes:
            edges = cut(nbytes, workers, piece_bytes)
            return cls(request_id, ask, ask.values, edges, workers, index, now)
        values = memoryview(bytearray(nbytes * workers))
        values[nbytes * index : nbytes * (index + 1)] = ask.values
        edges = cut_gathered(nbytes, workers, piece_bytes)
        return cls(request_id, ask, values, edges, workers, index, now)

    @property
    def total(self) -> int:
        """The bytes of the tensor, or of what all workers gather."""
        return self.ask.values.nbytes if isinstance(self.ask, Reduce) else self.values.nbytes

    def heard(self, now: float) -> None:
        """Postpone the probe of the next worker, because something has arrived."""
        self.wait_s, self.again_at = PROBE_S, now + PROBE_S

    def due(self, now: float) -> bool:
        """Return whether to probe the next worker now; if so, double the pause."""
        if now < self.again_at:
            return False
        self.wait_s = min(2 * self.wait_s, PROBE_MAX_S)
        self.again_at = now + self.wait_s
        return True

    def take(self) -> None:
        """Note that the next worker has everything."""
        self.taken = True

    def probe(self) -> int:
        """Return the number of another probe of the next worker."""
        self.probes += 1
        return self.probes

    def send(self) -> None:
        """Note that pieces are sent: the answers to earlier probes are stale."""
        self.sent, self.stale = True, self.probes

    def tell(self) -> bool:
        """Note that the allreduce is complete; return whether this was not known yet."""
        told, self.told = self.told, True
        return not told

    def resolve(self) -> int:
        """Return the request to resolve; 0 if it is resolved."""
        request_id, self.request_id = self.request_id, 0
        return request_id

    @property
    def complete(self) -> bool:
        """Whether all pieces have arrived."""
        return not self.partial and not self.whole

    def view(self, piece: int) -> memoryview:
        _, start, stop = self.edges[piece]
        return self.values[start:stop]

    def ends_here(self, piece: int) -> bool:
        """Return whether this worker is the last to add to a piece."""
        return self.edges[piece][0] == (self.index + 1) % self.workers

    def comes_home(self, piece: int) -> bool:
        """Return whether the next worker has computed the total sum of a piece."""
        return self.edges[piece][0] == (self.index + 2) % self.workers

    def has(self, piece: int, whole: bool) -> bool:
        """Return whether a piece is here and has to be sent to the next worker."""
        if whole:
            have = piece not in self.partial if self.ends_here(piece) else piece not in self.whole
            return have and not self.comes_home(piece)
        return not (self.gathered or piece in self.partial or self.ends_here(piece))

    def ready(self) -> list[tuple[int, bool]]:
        """Return (piece, whole) of all pieces that can be sent."""
        pieces = range(len(self.edges))
        return [(p, whole) for whole in (False, True) for p in pieces if self.has(p, whole)]

    def sink(self, piece: int, context: object) -> Sink:
        """Return the sink of a piece's whole sum; revoke a former sink of the same memory."""
        if piece in self.sinks:
            self.sinks.pop(piece).revoke()
        return self.sinks.setdefault(piece, Sink([self.view(piece)], context))

    def add(self, piece: int, start: int, landed: memoryview) -> bool:
        """Add a part of a piece's partial sum to this worker's values, unless it has come before.

        Return whether it was added.
        """
        if piece not in self.partial or self.added.get(piece, 0) != start:
            return False
        self.added[piece] = start + landed.nbytes
        mine = self.view(piece)[start : start + landed.nbytes]
        assert isinstance(self.ask, Reduce)
        self.ask.add(mine, landed)
        if self.ends_here(piece):
            self.ask.finish(mine, self.workers)
        return True

    def added_up(self, piece: int) -> bool:
        """Return whether all of a piece's partial sum is added; if so, note that it is here."""
        if self.added.get(piece) != self.view(piece).nbytes:
            return False
        del self.partial[piece], self.added[piece]
        return True

    def has_landed(self, piece: int) -> bool:
        """Note that the whole sum of a piece is here; return whether it had not been."""
        return self.whole.pop(piece, "") is None

    def result(self) -> Any:
        """Return the result of what was gathered: all of it; an allreduce adds it up by worker."""
        if isinstance(self.ask, Gather):
            return self.values.toreadonly()  # the next worker may still miss some
        into = self.ask.values
        nbytes = into.nbytes
        into[:] = self.values[:nbytes]
        for start in range(nbytes, self.values.nbytes, nbytes):
            self.ask.add(into, self.values[start : start + nbytes])
        self.ask.finish(into, self.workers)
        return None
