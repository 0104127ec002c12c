"""Outbox: what waits to be sent on one socket, in order, and whose memory it borrows."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

import msgspec

from shoal.protocol.machine import Loan
from shoal.transport.shared import CHUNK_BYTES, Outlet
from shoal.transport.wire import PUT, TAKEN, signal

BUFFERS_A_CALL = 512  # below IOV_MAX


class _Piece(msgspec.Struct, eq=False):
    """Bytes that wait. `shared`: to go through the ring; `lent`: to be copied on recall."""

    view: memoryview
    shared: bool
    lent: bool


class Outbox:
    """Pieces of frames, whole frames one after the other.

    Invariant: where the first piece is a shared one, the socket is between two frames, so that a
    signal (PUT, TAKEN) may go before it.
    """

    def __init__(self) -> None:
        self.outlet: Outlet | None = None
        self.backlog = 0  # bytes that wait
        self.wants_write = False  # ... for the socket, not for room in the ring
        self._pieces: deque[_Piece] = deque()
        self._taken = 0  # bytes of the peer's ring that it does not know to be free

    def keep(
        self,
        pieces: Sequence[bytes | memoryview],
        sent: int,
        loan: Loan | None,
        shared: bool = False,
    ) -> None:
        """Have pieces wait, but for their first `sent` bytes."""
        for piece in pieces:
            view = memoryview(piece)
            if sent >= view.nbytes:
                sent -= view.nbytes
                continue
            rest = view[sent:]
            sent = 0
            self._pieces.append(_Piece(rest, shared, loan is not None))
            self.backlog += rest.nbytes
        if loan is not None and self._pieces:
            loan.keep(self._recalled)

    def tell_taken(self, count: int) -> None:
        self._taken += count

    @property
    def owed(self) -> int:
        """Bytes of the peer's ring that it may use again once it is told."""
        return self._taken

    def flush(self, sock: socket.socket) -> None:
        """Send what socket and ring have room for. Raises OSError where the socket is broken."""
        while True:
            self.wants_write = not self._flush_socket(sock)
            if self.wants_write:
                return
            if self._taken:
                self._signal(TAKEN, self._taken)
                self._taken = 0
            elif not self._fill():
                return

    def _flush_socket(self, sock: socket.socket) -> bool:
        """Send up to the first shared piece; False where the socket is full."""
        pieces = self._pieces
        while pieces and not pieces[0].shared:
            batch: list[memoryview] = []
            for piece in pieces:
                if piece.shared or len(batch) == BUFFERS_A_CALL:
                    break
                batch.append(piece.view)
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

    def _fill(self) -> bool:
        """Put the next shared bytes into the ring; False where there are none, or no room."""
        pieces, outlet, count = self._pieces, self.outlet, 0
        while pieces and pieces[0].shared and count < CHUNK_BYTES:
            assert outlet is not None
            first = pieces[0]
            put = outlet.put(first.view, CHUNK_BYTES - count)
            if not put:
                break
            count += put
            if put == first.view.nbytes:
                pieces.popleft()
            else:
                first.view = first.view[put:]
        if count:
            self.backlog -= count
            self._signal(PUT, count)
        return count > 0

    def _signal(self, kind: int, count: int) -> None:
        view = memoryview(signal(kind, count))
        self._pieces.appendleft(_Piece(view, False, False))
        self.backlog += view.nbytes

    def detach(self) -> None:
        """Borrow nothing any more."""
        for piece in self._pieces:
            piece.view = memoryview(bytes(piece.view))
            piece.lent = False

    def _recalled(self) -> None:
        for piece in self._pieces:
            if piece.lent:
                piece.view = memoryview(bytes(piece.view))
                piece.lent = False

    def taken(self, count: int) -> None:
        """The peer has copied so many bytes out of our ring."""
        assert self.outlet is not None
        self.outlet.taken(count)

    def close(self) -> None:
        self.clear()
        if self.outlet is not None:
            self.outlet.close()
            self.outlet = None

    def clear(self) -> None:
        self._pieces.clear()
        self.backlog = 0
        self.wants_write = False

    def __bool__(self) -> bool:
        return bool(self._pieces)
