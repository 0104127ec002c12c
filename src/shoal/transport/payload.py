"""Payload: the payload that a connection is receiving, and where its next bytes go."""

from __future__ import annotations

from shoal.protocol.machine import Sink
from shoal.protocol.messages.base import Message
from shoal.protocol.views import NodeId
from shoal.transport.arena import PeerArena
from shoal.transport.base import Deliver
from shoal.transport.outbox import Outbox
from shoal.transport.shared import Inlet
from shoal.transport.wire import LINE_BYTES

SCRATCH_BYTES = 64 << 10
STRAIGHT_BYTES = 4 << 10  # smaller pieces of a payload are received through the inbox

_scratch = memoryview(bytearray(SCRATCH_BYTES))


class Payload:
    """The payload under way, at most one.

    Attributes:
        left: the bytes that have not arrived; 0 if no payload is under way.
        shared: whether the payload comes through shared memory.
        inlet: the peer's ring.
        put: the bytes in the ring that have not been taken.
        arena: the peer's arena.
        lent: the bytes in the arena that the peer has announced, and that have not been read.
        borrows: whether the payload may stay where it lies in the arena.
    """

    def __init__(self, outbox: Outbox) -> None:
        """Create a payload; `outbox` tells the peer how much of its memory was read."""
        self.left = 0
        self.shared = False
        self.inlet: Inlet | None = None
        self.put = 0
        self.arena: PeerArena | None = None
        self.lent = 0
        self.borrows = False
        self._outbox = outbox
        self._peer = ""
        self._message: Message | None = None  # None where it could not be understood
        self._sink: Sink | None = None  # None where it is discarded
        self._view = self._edge = self._read = 0  # the view to fill, where it begins; bytes so far

    def begin(
        self,
        peer: NodeId,
        message: Message | None,
        sink: Sink | None,
        nbytes: int,
        shared: bool = False,
    ) -> None:
        self._peer = peer
        self._message, self._sink, self.shared = message, sink, shared
        self.left = nbytes
        self.borrows = shared and sink is not None and sink.borrows
        self._view = self._edge = self._read = 0

    def target(self) -> memoryview:
        """Return the memory for the next bytes: scratch if the payload is discarded or revoked."""
        sink = self._sink
        if sink is None or sink.revoked:
            return _scratch[: self.left]
        while True:
            view = sink.views[self._view]
            filled = self._read - self._edge
            if filled < view.nbytes:
                return view[filled:] if filled else view
            self._edge += view.nbytes
            self._view += 1

    def up_to_line(self, target: memoryview) -> memoryview:
        """Return `target`, cut at the next cache line if it is large and begins within a line."""
        past = (self._read - self._edge) % LINE_BYTES
        return target[: LINE_BYTES - past] if past and target.nbytes >= STRAIGHT_BYTES else target

    def wrote(self, count: int, deliver: Deliver) -> None:
        """Note that `count` more bytes are in place; deliver a complete view or payload."""
        self._read += count
        self.left -= count
        message, sink = self._message, self._sink
        if not self.left:
            self._message = self._sink = None
            self.shared = False
            if sink is not None and sink.by_view:
                sink.landed += 1
            if message is not None:
                deliver(self._peer, message, sink)
        elif sink is not None and sink.by_view and not sink.revoked:
            size = sink.views[self._view].nbytes
            if self._read == self._edge + size:
                self._edge += size
                self._view += 1
                sink.landed += 1
                assert message is not None
                deliver(self._peer, message, sink)

    # ------------------------------------------------------------------ through shared memory

    def told_put(self, nbytes: int, deliver: Deliver) -> None:
        """Note that the peer has put `nbytes` more bytes into its ring, and take what is there.

        Bytes of its arena may come before them, where it has taken back what it did not announce.
        """
        while self.lent:
            self._copy(deliver)
        self.put += nbytes
        self.take(deliver)

    def told_lent(self, offset: int, nbytes: int, deliver: Deliver) -> None:
        """Note that the next `nbytes` bytes lie in the peer's arena, and take what is there."""
        self._arena().announce(offset, nbytes, self.borrows)
        self.lent += nbytes
        self.take(deliver)

    def take(self, deliver: Deliver) -> None:
        """Take the bytes that are in shared memory; a later call resumes after an exception.

        A view that can be lent or borrowed waits until all of it is there.
        """
        while there := self.put or self.lent:
            sink = self._borrower() if self.borrows and self.lent else self._lender()
            if sink is None:
                self._copy(deliver)
            elif sink.views[self._view].nbytes > there:
                return
            elif self.borrows:
                self._borrow(sink, deliver)
            else:
                self._lend(sink, deliver)

    def _copy(self, deliver: Deliver) -> None:
        """Copy bytes out of shared memory, up to the end of a view."""
        if self.put:
            assert self.inlet is not None
            target = self.up_to_line(self.target()[: self.put])
            count = target.nbytes
            self.inlet.take(target)
            self.put -= count
            self._give_back(count, self.inlet)
        else:
            source = self._arena()
            if self._sink is None or self._sink.revoked:
                count = self.lent
                source.skip(count)
            else:
                target = self.target()[: self.lent]
                count = target.nbytes
                source.take(target)
            self.lent -= count
            source.done(count, self.borrows)
        self.wrote(count, deliver)

    def _borrower(self) -> Sink | None:
        """Return the sink if its next view may be borrowed, and will lie there in one piece."""
        sink = self._sink
        if sink is None or sink.revoked or not self._on_edge(sink):
            return None
        return sink if sink.views[self._view].nbytes <= self._arena().in_one_piece else None

    def _on_edge(self, sink: Sink) -> bool:
        """Return whether the next byte begins a view."""
        while self._read > self._edge and self._read - self._edge == sink.views[self._view].nbytes:
            self._edge = self._read
            self._view += 1
        return self._read == self._edge

    def _borrow(self, sink: Sink, deliver: Deliver) -> None:
        """Replace a view by the peer's memory, for as long as the sink's loan."""
        count = sink.views[self._view].nbytes
        sink.borrow(self._view, self._arena().look(count), self._arena().borrow(count))
        self.lent -= count
        self.wrote(count, deliver)

    def _lender(self) -> Sink | None:
        """Return the sink if its next view may be lent, and will lie there in one piece."""
        sink, number = self._sink, self._view
        if sink is None or number >= sink.lends or sink.revoked or self._read != self._edge:
            return None
        source = self._source()
        most = min(source.in_one_piece, source.most)
        return sink if sink.views[number].nbytes <= most else None

    def _lend(self, sink: Sink, deliver: Deliver) -> None:
        """Deliver a view from the peer's memory without a copy."""
        number = self._view
        own = sink.views[number]
        source = self._source()
        sink.views[number] = source.look(own.nbytes)
        if self.put:
            self.put -= own.nbytes
        else:
            self.lent -= own.nbytes
        try:
            self.wrote(own.nbytes, deliver)
        finally:
            if not sink.revoked:
                sink.views[number] = own
            self._give_back(own.nbytes, source)

    def _arena(self) -> PeerArena:
        assert self.arena is not None
        return self.arena

    def _source(self) -> Inlet | PeerArena:
        """Return where the next bytes are."""
        source = self.inlet if self.put else self.arena
        assert source is not None
        return source

    def _give_back(self, count: int, source: Inlet | PeerArena) -> None:
        """Give back `count` bytes of the peer's memory: from now on it may write there."""
        if source is self.arena:
            source.done(count, self.borrows)
        elif source is self.inlet:
            self._outbox.owed += count
            if not self.put:  # the end of a chunk: within a line at a payload's end alone
                self._outbox.owed += self.inlet.end_chunk()

    def close(self) -> None:
        if self._sink is not None:
            self._sink.revoke()
        self._message = self._sink = None
        self.left = self.put = self.lent = 0
        if self.inlet is not None:
            self.inlet.close()
            self.inlet = None
        self.arena = None  # it is unmapped when no view of it is in use
