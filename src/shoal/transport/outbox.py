"""Outbox: the backlog of one socket, in order, with the buffers that it borrows."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

import msgspec

from shoal.errors import BadLength
from shoal.protocol.machine import CopyOnWriteGuard
from shoal.transport.arena import WINDOW_BYTES, Extent, PeerArena, arena
from shoal.transport.shared import Outlet, chunk_of
from shoal.transport.wire import FREE, LINE_BYTES, PUT, READ, TAKEN, lend, signal

BUFFERS_A_CALL = 512  # below IOV_MAX


class _Piece(msgspec.Struct, eq=False):
    """Unsent bytes.

    chunk:    the bytes per chunk through the ring of shared memory; 0 for the socket
    guarded:  whether the bytes are copied when the guard recalls them
    lent:     whether the peer reads the bytes where they are, in this process's arena
    """

    view: memoryview
    chunk: int
    guarded: bool
    lent: bool = False


class Outbox:
    """The pieces of frames that wait to be sent, frame after frame.

    Invariant: `_next` is for the socket alone, and ends between two frames or before the bytes that
    go through the ring, so that a signal (PUT, TAKEN) may follow it.
    """

    def __init__(self) -> None:
        self.outlet: Outlet | None = None
        self.backlog = 0  # unsent bytes
        self.wants_write = False  # whether the next bytes wait for the socket, not for the ring
        self.owed = 0  # bytes taken from the peer's ring, of which the peer was not told
        self.theirs: PeerArena | None = None  # the peer's arena
        self.lends = False  # whether the peer has mapped this process's arena
        self._announced: deque[tuple[Extent, int]] = deque()  # bytes that the peer may use
        self._used = 0  # their number
        self._window = WINDOW_BYTES  # bytes that may be announced before the peer has read more
        self._next: deque[_Piece] = deque()
        self._later: deque[_Piece] = deque()

    def keep(
        self, pieces: Sequence[bytes | memoryview], sent: int, guard: CopyOnWriteGuard | None
    ) -> None:
        """Queue pieces for the socket, without their first `sent` bytes."""
        for piece in pieces:
            view = memoryview(piece)
            if sent >= view.nbytes:
                sent -= view.nbytes
                continue
            self._keep(view[sent:], 0, guard)
            sent = 0

    def keep_shared(
        self,
        head: bytes,
        buffers: Sequence[memoryview],
        nbytes: int,
        guard: CopyOnWriteGuard | None,
    ) -> None:
        """Queue a frame whose payload of `nbytes` is lent, or goes through the ring."""
        self._keep(memoryview(head), 0, None)
        chunk = chunk_of(nbytes)
        held = [buffer for buffer in buffers if buffer.nbytes]
        lent = self.lends and guard is None and all(map(arena.find, held))
        for buffer in held:
            self._keep(buffer, chunk, guard, lent)

    def _keep(
        self, view: memoryview, chunk: int, guard: CopyOnWriteGuard | None, lent: bool = False
    ) -> None:
        self._later.append(_Piece(view, chunk, guard is not None, lent))
        self.backlog += view.nbytes
        if guard is not None:
            guard.keep(self._recalled)

    def flush(self, sock: socket.socket) -> None:
        """Send what the socket and the ring have room for.

        Raises:
            OSError: the socket is broken.
        """
        while True:
            self._prepare()
            self.wants_write = not self._send(sock)
            if self.wants_write or not self._fits():
                return

    def _prepare(self) -> None:
        """Move the next pieces to `_next`; put or lend some bytes; add signals that are owed."""
        later = self._later
        while later and (not later[0].chunk or (later[0].lent and self._window)):
            if later[0].lent:
                self._lend()
            else:
                self._next.append(later.popleft())
        if self._fits():
            self._fill()
        if self.owed:
            self._signal(TAKEN, self.owed)
            self.owed = 0
        if self.theirs is not None and self.theirs.owes and (told := self.told()):
            self._queue(told)

    def told(self) -> bytes:
        """Return the signals that are owed for the peer's arena."""
        assert self.theirs is not None
        read, free = self.theirs.told()
        return (signal(READ, read) if read else b"") + (signal(FREE, free) if free else b"")

    def _fits(self) -> bool:
        """Return whether bytes for the ring or from the arena come next, and there is room."""
        if not self._later:
            return False
        if self._later[0].lent:
            return self._window > 0
        return self.outlet is not None and self.outlet.lines > 0

    def _lend(self) -> None:
        """Tell the peer where the next bytes lie."""
        first = self._later[0]
        count = min(first.view.nbytes, self._window)
        found = arena.find(first.view)
        if found is None:  # it was withdrawn, for the sake of another connection
            first.lent = False
            return
        extent, offset = found
        before = self._announced.pop()[1] if self._joins(extent) else 0
        self._announced.append((extent, before + count))
        self._used += count
        self._window -= count
        self.backlog -= count
        if count == first.view.nbytes:
            self._later.popleft()
        else:
            first.view = first.view[count:]
        self._queue(lend(offset, count))

    def _joins(self, extent: Extent) -> bool:
        return bool(self._announced) and self._announced[-1][0] is extent

    def was_read(self, count: int) -> None:
        """Note that the peer has read `count` lent bytes, or borrows them.

        Raises:
            BadLength: so many were not lent.
        """
        if count > WINDOW_BYTES - self._window:
            raise BadLength(f"{count} bytes read where {WINDOW_BYTES - self._window} were lent")
        self._window += count

    def was_freed(self, count: int) -> None:
        """Note that the peer uses the first `count` lent bytes no more.

        Raises:
            BadLength: so many were not lent.
        """
        if count > self._used:
            raise BadLength(f"{count} bytes free where {self._used} were lent")
        self._used -= count
        while count:
            extent, held = self._announced.popleft()
            if held > count:
                self._announced.appendleft((extent, held - count))
            count -= min(held, count)

    def _fill(self) -> None:
        """Put the next chunk into the ring, and add its PUT."""
        later, count = self._later, 0
        assert self.outlet is not None
        left = min(later[0].chunk, self.outlet.lines * LINE_BYTES)
        while left and later and later[0].chunk and not later[0].lent:
            first = later[0]
            put = self.outlet.put(first.view, left)
            count += put
            left -= put
            if put == first.view.nbytes:
                later.popleft()
            else:
                first.view = first.view[put:]
        self.outlet.end_chunk()
        self.backlog -= count
        self._signal(PUT, count)

    def _signal(self, kind: int, count: int) -> None:
        self._queue(signal(kind, count))

    def _queue(self, frame: bytes) -> None:
        view = memoryview(frame)
        self._next.append(_Piece(view, 0, False))
        self.backlog += view.nbytes

    def _send(self, sock: socket.socket) -> bool:
        """Send `_next`; return False if the socket is full."""
        pieces = self._next
        while pieces:
            batch = [pieces[i].view for i in range(min(len(pieces), BUFFERS_A_CALL))]
            try:
                sent = sock.sendmsg(batch)
            except BlockingIOError:
                return False
            self.backlog -= sent
            while sent:
                first = pieces[0]
                if sent < first.view.nbytes:
                    first.view = first.view[sent:]
                    break
                sent -= first.view.nbytes
                pieces.popleft()
        return True

    def taken(self, count: int) -> None:
        """Note that the peer has copied `count` bytes out of this side's ring."""
        assert self.outlet is not None
        self.outlet.taken(count)

    def detach(self) -> None:
        """Copy all unsent bytes, so that no buffer is borrowed any more.

        What the peer may use in the arena stays there, and is lent no more.
        """
        for piece in (*self._next, *self._later):
            _copy(piece)
        for extent, _ in self._announced:
            arena.withdraw(extent)

    def _recalled(self) -> None:
        for piece in (*self._next, *self._later):
            if piece.guarded:
                _copy(piece)

    def clear(self) -> None:
        self._next.clear()
        self._later.clear()
        self.backlog = 0
        self.wants_write = False

    def close(self) -> None:
        """Drop the backlog; leave to the peer what it may still use in the arena."""
        self.clear()
        for extent, _ in self._announced:
            arena.withdraw(extent)
            arena.keep(extent)
        self._announced.clear()
        self._used = 0
        self.theirs = None
        if self.outlet is not None:
            self.outlet.close()
            self.outlet = None


def _copy(piece: _Piece) -> None:
    piece.view = memoryview(bytes(piece.view))
    piece.guarded = piece.lent = False
