"""Frames over a stream socket: what Unix and TCP connections share.

Headers and small payloads are read in gulps into one inbox; the rest of a large payload is
received straight into its sink. Sends leave from the lent buffers with `sendmsg`.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from shoal.errors import BadMessage, HandshakeFailed
from shoal.protocol.machine import Sink
from shoal.protocol.messages import Challenge, Denied, Hello, Message
from shoal.transport import handshake
from shoal.transport.base import (
    Arriving,
    Connection,
    Deliver,
    Identity,
    Malformed,
    sink_for,
)
from shoal.transport.wire import PREFIX, decode, encode, read_prefix

INBOX_BYTES = 64 << 10
SCRATCH_BYTES = 64 << 10
STRAIGHT_BYTES = 4 << 10  # pieces of a payload below this come by way of the inbox, many in a gulp
JOINED_BYTES = 4 << 10  # payloads up to this are copied behind their header
TURN_BYTES = 4 << 20  # then the other connections have theirs
BUFFERS_A_CALL = 512  # below IOV_MAX
HANDSHAKE_BYTES_MAX = 4 << 10

_scratch = memoryview(bytearray(SCRATCH_BYTES))
_NOWHERE = memoryview(b"")


class StreamConnection(Connection):
    """A connected, non-blocking socket. With `asked`, the peer still has to answer a challenge.

    Invariant, whenever `receive` returns: the inbox holds less than one frame's prefix and header,
    at its front, and nothing at all while a payload is underway. So no message waits in it while
    the socket, which a poll looks at, is empty.
    """

    def __init__(
        self, sock: socket.socket, me: Identity, peer: str = "", asked: Challenge | None = None
    ) -> None:
        sock.setblocking(False)
        self.peer = peer
        self._sock = sock
        self._me = me
        self._asked = asked
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._start = self._stop = 0  # of what is in the inbox and not taken yet
        # The payload underway: its message (None where that could not be understood), its sink
        # (None where it is discarded), its bytes read and in all, and the view to fill next with
        # the place in the payload where that begins.
        self._message: Message | None = None
        self._sink: Sink | None = None
        self._read = self._expected = 0
        self._view = self._edge = 0
        self._outbox: deque[memoryview] = deque()
        if asked is not None:
            self.send(asked, (), False)

    def fileno(self) -> int:
        return self._sock.fileno()

    # ------------------------------------------------------------------ sending

    def send(self, message: Message, buffers: Sequence[memoryview], volatile: bool) -> None:
        nbytes = 0
        for buffer in buffers:
            nbytes += buffer.nbytes
        head = encode(message, nbytes)
        pieces: Sequence[bytes | memoryview] = (head, *buffers)
        if 0 < nbytes <= JOINED_BYTES:
            pieces = (b"".join(pieces),)  # cheaper than to have the kernel gather them
        sent = 0
        if not self._outbox:
            try:
                if len(pieces) == 1:
                    sent = self._sock.send(pieces[0])
                else:
                    sent = self._sock.sendmsg(pieces[:BUFFERS_A_CALL])
            except BlockingIOError:
                pass
            except OSError:
                self._broken()
                return
            if sent == len(head) + nbytes:
                return
        self._keep(pieces, sent, volatile)

    def _keep(self, pieces: Sequence[bytes | memoryview], sent: int, volatile: bool) -> None:
        """What could not be sent at once waits for `flush`."""
        for piece in pieces:
            view = memoryview(piece)
            if sent >= view.nbytes:
                sent -= view.nbytes
                continue
            rest = view[sent:]
            sent = 0
            self._outbox.append(memoryview(bytes(rest)) if volatile else rest)
            self.backlog += rest.nbytes

    def detach(self) -> None:
        self._outbox = deque(memoryview(bytes(piece)) for piece in self._outbox)

    def flush(self) -> None:
        outbox = self._outbox
        while outbox:
            batch = [outbox[i] for i in range(min(len(outbox), BUFFERS_A_CALL))]
            try:
                sent = self._sock.sendmsg(batch)
            except BlockingIOError:
                return
            except OSError:
                self._broken()
                return
            self.backlog -= sent
            while sent:
                first = outbox[0]
                if sent < first.nbytes:
                    outbox[0] = first[sent:]
                    break
                sent -= first.nbytes
                outbox.popleft()

    def _broken(self) -> None:
        """A send failed, perhaps within a frame: nothing more may follow it.

        What has come can still be read; then `receive` reports the end.
        """
        self._outbox.clear()
        self.backlog = 0
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------------ receiving

    def receive(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> bool:
        turn = 0
        if self._stop:  # whole messages, where the last call was interrupted
            self._take(arriving, deliver, malformed)
        while turn < TURN_BYTES:
            target = self._target() if self._expected else _NOWHERE
            straight = target.nbytes >= STRAIGHT_BYTES
            into = target if straight else self._inbox[self._stop :] if self._stop else self._inbox
            try:
                count = self._sock.recv_into(into)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not count:
                return False
            if straight:
                self._read += count
            else:
                self._stop += count
            self._take(arriving, deliver, malformed)
            if count < into.nbytes:
                return True  # the socket was empty; what came since makes it readable again
            turn += count
        return True

    def _take(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> None:
        """Take everything whole out of the inbox."""
        needed = PREFIX.size
        try:
            needed = self._take_whole(arriving, deliver, malformed)
        finally:  # also where a machine failed, or Ctrl-C came
            self._make_room(needed)

    def _take_whole(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> int:
        """... and say how much room the next frame's beginning needs."""
        needed = PREFIX.size
        while True:
            if self._expected and not self._end_payload(deliver):
                break
            start = self._start
            held = self._stop - start
            if held < needed:
                break
            header_bytes, payload_bytes = read_prefix(self._inbox, start)
            if self._asked is not None and header_bytes + payload_bytes > HANDSHAKE_BYTES_MAX:
                raise HandshakeFailed("a caller that has not said hello sends too much")
            start += PREFIX.size
            edge = start + header_bytes
            if edge > self._stop:
                needed = PREFIX.size + header_bytes
                break
            self._start = edge
            header = self._inbox[start:edge]
            if self._asked is not None:
                self._answer(decode(header), self._asked)
                continue
            try:
                message = decode(header)
            except BadMessage as error:
                malformed(self.peer, error)
                self._begin_payload(None, None, payload_bytes)
                continue
            if not payload_bytes:
                deliver(self.peer, message, None)
                continue
            sink = sink_for(arriving(self.peer, message, payload_bytes), payload_bytes)
            if edge + payload_bytes <= self._stop:  # all of it is here, as of most small ones
                self._start = edge + payload_bytes
                if sink is not None:
                    sink.fill(self._inbox, edge)
                deliver(self.peer, message, sink)
                continue
            self._begin_payload(message, sink, payload_bytes)
        return needed

    def _begin_payload(self, message: Message | None, sink: Sink | None, nbytes: int) -> None:
        self._message, self._sink = message, sink
        self._read, self._expected = 0, nbytes
        self._view = self._edge = 0

    def _end_payload(self, deliver: Deliver) -> bool:
        """Move what the inbox holds of the payload to its place; deliver it when it is whole."""
        if not self._pour():
            return False
        message, sink = self._message, self._sink
        self._message = self._sink = None
        self._expected = 0
        if message is not None:
            deliver(self.peer, message, sink)
        return True

    def _answer(self, message: Message, asked: Challenge) -> None:
        verdict = handshake.judge(self._me, asked, message)
        self.send(verdict, (), False)
        if isinstance(verdict, Denied):
            raise HandshakeFailed(f"a caller was refused: {verdict.reason}")
        if self._start != self._stop:
            raise HandshakeFailed("a caller spoke on before it was welcome")
        assert isinstance(message, Hello)
        self.peer = message.node
        self._asked = None

    def _pour(self) -> bool:
        while self._read < self._expected:
            held = self._stop - self._start
            if not held:
                return False
            target = self._target()
            count = target.nbytes
            if count <= held:
                target[:] = self._inbox[self._start : self._start + count]
            else:
                count = held
                target[:count] = self._inbox[self._start : self._stop]
            self._start += count
            self._read += count
        return True

    def _target(self) -> memoryview:
        """Where the next bytes of the payload go; scratch where nobody wants them (any more)."""
        sink = self._sink
        if sink is None or sink.revoked:
            return _scratch[: self._expected - self._read]
        while True:
            view = sink.views[self._view]
            filled = self._read - self._edge
            if filled < view.nbytes:
                return view[filled:] if filled else view
            self._edge += view.nbytes
            self._view += 1

    def _make_room(self, nbytes: int) -> None:
        """Bring what the inbox holds to its front, with room for `nbytes` and no more than usual.

        It grows for one large header, exactly, and is its old size again after that.
        """
        start, held = self._start, self._stop - self._start
        self._start, self._stop = 0, held
        inbox = self._inbox
        if not held and len(inbox) == INBOX_BYTES:
            return
        size = nbytes if nbytes > INBOX_BYTES else INBOX_BYTES
        if len(inbox) != size:
            self._inbox = memoryview(bytearray(size))
        elif not start:
            return
        if held:
            self._inbox[:held] = inbox[start : start + held]

    def close(self) -> None:
        if self._sink is not None:
            self._sink.revoke()
        self._message = self._sink = None
        self._expected = self._start = self._stop = 0
        self._outbox.clear()
        self.backlog = 0
        self._sock.close()
