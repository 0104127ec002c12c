"""Frames over a stream socket, for Unix and TCP connections.

Headers and small payloads are read in gulps into one inbox; the rest of a large payload is
received straight into its sink. Sends leave from the lent buffers with `sendmsg`.

Within a host large payloads may go through shared memory instead (`transport.shared`): then the
socket carries their headers, and signals of what was put there and taken.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from msgspec.structs import replace

from shoal.errors import BadMessage, BadSharedMemory, HandshakeFailed
from shoal.protocol.machine import CopyOnWriteGuard, Sink
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.handshake import Challenge, Denied, Hello, Welcome
from shoal.transport import handshake
from shoal.transport.arena import READ_BYTES, PeerArena
from shoal.transport.base import Arriving, Connection, Deliver, Identity, Malformed, sink_for
from shoal.transport.outbox import BUFFERS_A_CALL, Outbox
from shoal.transport.payload import STRAIGHT_BYTES, Payload
from shoal.transport.shared import (
    DESCRIPTORS_MAX,
    RING_BYTES,
    SHARED_BYTES,
    TAKEN_BYTES,
    Inlet,
    Outlet,
    receive_with,
    send_with,
)
from shoal.transport.wire import (
    FREE,
    LENT,
    LINE_BYTES,
    OFFSET_BYTES,
    PREFIX,
    PUT,
    READ,
    SHARED,
    TAKEN,
    decode,
    decode_greeting,
    encode,
    read_prefix,
)

INBOX_BYTES = 64 << 10
JOINED_BYTES = 4 << 10  # payloads up to this are copied behind their header
# The limits of one call of `receive`, after which other connections get their turn: in bytes, and
# in seconds, because a few bytes may be much work.
TURN_BYTES = 4 << 20
TURN_S = 0.02
HANDSHAKE_BYTES_MAX = 4 << 10
TLS_HELLO = b"\x16"  # the first byte of a caller that speaks TLS
RETRANSMITS = 2  # without an acknowledgement, after 0.6 s on a fast link: the path may be cut
BYTES_RECEIVED = slice(128, 136)  # of tcp_info: tcpi_bytes_received
SILENCES = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)

_NOWHERE = memoryview(b"")


class StreamConnection(Connection):
    """A connected, non-blocking socket; with `asked`, the peer still has to answer a challenge.

    Invariant, whenever `receive` returns: the inbox holds less than one frame's prefix and header,
    at its front, and nothing at all while a payload is under way. So no message waits in it while
    the socket, which a poll looks at, is empty.
    """

    def __init__(
        self,
        sock: socket.socket,
        me: Identity,
        peer: str = "",
        asked: Challenge | None = None,
        challenges: bool = True,
    ) -> None:
        """Create a connection; with `challenges`, the challenge is sent at once."""
        sock.setblocking(False)
        self.peer = peer
        self.encrypted = hasattr(sock, "pending")  # a socket of TLS
        self._sock = sock
        self._me = me
        self._asked = asked
        self._verdict: Denied | None = None
        # a caller that has proved nothing gets little memory
        self._inbox_bytes = INBOX_BYTES if asked is None else HANDSHAKE_BYTES_MAX
        self._inbox = memoryview(bytearray(self._inbox_bytes))
        self._start = self._stop = 0  # the bounds of the inbox's bytes that are not taken yet
        self._greeted_with: list[int] = []  # the descriptors of the caller's ring and arena
        self._outbox = Outbox()
        self._payload = Payload(self._outbox)
        if challenges:
            self._challenge()

    def _challenge(self) -> None:
        """Send the challenge, if the peer has to answer one."""
        if self._asked is not None:
            self.send(self._asked, ())

    @property
    def denied(self) -> bool:
        return self._verdict is not None

    def deny(self) -> None:
        if self._verdict is not None:
            self.send(self._verdict, ())

    @property
    def origin(self) -> str:
        try:
            if self.within_host:
                found = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                return "process {} of user {}".format(*struct.unpack("iii", found))
            return "{}:{}".format(*self._sock.getpeername())
        except OSError:
            return "an address that is gone"

    def share(self, outlet: Outlet | None, inlet: Inlet | None, lends: bool = False) -> None:
        """Send and receive large payloads through rings of shared memory.

        lends:  whether the peer has mapped this process's arena
        """
        self._outbox.outlet, self._payload.inlet = outlet, inlet
        self._outbox.lends = lends

    def map(self, fd: int) -> None:
        """Map the peer's arena, in which payloads are read."""
        self._payload.arena = self._outbox.theirs = PeerArena(fd)

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def within_host(self) -> bool:
        return self._sock.family == socket.AF_UNIX

    @property
    def stalled(self) -> bool:
        if self.within_host:
            return False
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
        return info[2] >= RETRANSMITS  # tcpi_retransmits, of what is not acknowledged yet

    @property
    def received(self) -> int:
        if self.within_host:
            return 0
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.stop)
        return int.from_bytes(info[BYTES_RECEIVED], "little")

    @property
    def outstanding(self) -> int:
        held = fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return self._outbox.backlog + int.from_bytes(held, "little")

    @property
    def backlog(self) -> int:
        return self._outbox.backlog

    @property
    def wants_write(self) -> bool:
        return self._outbox.wants_write

    # ------------------------------------------------------------------ sending

    def send(
        self, message: Message, buffers: Sequence[memoryview], guard: CopyOnWriteGuard | None = None
    ) -> None:
        nbytes = 0
        for buffer in buffers:
            nbytes += buffer.nbytes
        outbox = self._outbox
        if nbytes >= SHARED_BYTES and outbox.outlet is not None:
            outbox.keep_shared(encode(message, nbytes, SHARED), buffers, nbytes, guard)
            self.flush()
            return
        head = encode(message, nbytes)
        pieces: Sequence[bytes | memoryview] = (head, *buffers)
        if outbox.theirs is not None and outbox.theirs.owes and (told := outbox.told()):
            pieces = (*pieces, told)  # with an answer the peer may be done with its memory
            nbytes += len(told)
        if 0 < nbytes <= JOINED_BYTES:
            pieces = (b"".join(pieces),)  # cheaper than to have the kernel gather them
        sent = 0
        if not outbox.backlog:
            try:
                if len(pieces) == 1:
                    sent = self._sock.send(pieces[0])
                else:
                    sent = self._sock.sendmsg(pieces[:BUFFERS_A_CALL])
            except BlockingIOError:
                pass
            except OSError as error:
                self._broken(error)
                return
            if sent == len(head) + nbytes:
                return
            outbox.wants_write = True
        outbox.keep(pieces, sent, guard)

    def detach(self) -> None:
        self._outbox.detach()

    def flush(self) -> None:
        try:
            self._outbox.flush(self._sock)
        except OSError as error:
            self._broken(error)

    def _broken(self, error: OSError) -> None:
        """Shut down after a failed send, which may have ended within a frame.

        What has come can still be read; then `receive` reports the end.
        """
        self.timed_out = error.errno in SILENCES
        self._outbox.clear()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------------ receiving

    def receive(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> bool:
        turn, until, payload = 0, monotonic() + TURN_S, self._payload
        if self._stop or payload.put or payload.lent:  # the last call was interrupted
            self._take(arriving, deliver, malformed)
            if self._outbox.owed >= TAKEN_BYTES:
                turn += self._tell_taken()
        held = 0  # bytes in the socket that do not make it readable, when the turn is over
        while True:
            target = payload.target() if payload.left and not payload.shared else _NOWHERE
            straight = target.nbytes >= STRAIGHT_BYTES
            if straight:
                into = payload.up_to_line(target)
            else:
                into = self._inbox[self._stop :] if self._stop else self._inbox
            if held:
                into = into[:held]
            try:
                count = self._sock.recv_into(into) if self._asked is None else self._meet(into)
            except BlockingIOError:
                return True
            except OSError as error:
                self.timed_out = error.errno in SILENCES
                return False
            if not count:
                return False
            if straight:
                payload.wrote(count, deliver)
            else:
                self._stop += count
            try:
                self._take(arriving, deliver, malformed)
            finally:  # else the peer would wait where a delivery is interrupted
                if self._outbox.theirs is not None:
                    turn += self._tell_read()
            turn += count
            if self._outbox.owed >= TAKEN_BYTES:
                turn += self._tell_taken()
            if count < into.nbytes:
                return True  # the socket was empty; what came since makes it readable again
            if turn >= TURN_BYTES or monotonic() >= until:
                held = self._sock.pending() if self.encrypted else 0  # type: ignore[attr-defined]
                if not held:
                    return True

    def _tell_read(self) -> int:
        """Tell the peer what was read in its arena, if it may wait for that; return the bytes."""
        theirs = self._outbox.theirs
        read = theirs.read if theirs is not None else 0
        if read < READ_BYTES:
            return 0
        self.flush()
        return read

    def _tell_taken(self) -> int:
        """Tell the peer how much of its ring is free again; return the bytes."""
        owed = self._outbox.owed
        self.flush()
        return owed

    def _take(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> None:
        """Take all whole frames out of the inbox, and make room for the start of the next one.

        Where a machine fails, or Ctrl-C comes, the rest is taken by the next call.
        """
        needed, payload = PREFIX.size, self._payload
        if payload.put or payload.lent:
            payload.take(deliver)
        while True:
            if payload.left and not payload.shared and not self._end_payload(deliver):
                break
            start = self._start
            held = self._stop - start
            if held < needed:
                break
            kind, header_bytes, padding, payload_bytes = read_prefix(self._inbox, start)
            if self._asked is not None and header_bytes + payload_bytes > HANDSHAKE_BYTES_MAX:
                raise HandshakeFailed("a caller that has not said hello sends too much")
            start += PREFIX.size
            if kind:
                self._check_shared(kind, payload_bytes)
                if kind == LENT and start + OFFSET_BYTES > self._stop:
                    needed = PREFIX.size + OFFSET_BYTES
                    break
                if kind != SHARED:
                    self._start = start + header_bytes
                    self._signalled(kind, payload_bytes, deliver)
                    continue
            elif payload.shared:
                raise BadSharedMemory("a frame within a payload that comes through shared memory")
            edge = start + header_bytes + padding
            if edge > self._stop:
                needed = PREFIX.size + header_bytes + padding
                break
            self._start = edge
            header = self._inbox[start : start + header_bytes]
            if self._asked is not None:
                self._answer(decode_greeting(header, "caller"), self._asked)
                continue
            try:
                message = decode(header)
            except BadMessage as error:
                malformed(self.peer, error)
                payload.begin(self.peer, None, None, payload_bytes, kind == SHARED)
                continue
            if not payload_bytes:
                deliver(self.peer, message, None)
                continue
            arrival = arriving(self.peer, message, payload_bytes)
            if isinstance(arrival, Sink) and arrival.nbytes == payload_bytes:
                sink: Sink | None = arrival
            else:
                sink = sink_for(arrival, payload_bytes)
            if kind == SHARED:
                payload.begin(self.peer, message, sink, payload_bytes, True)
                continue
            if edge + payload_bytes <= self._stop and (sink is None or not sink.by_view):
                self._start = edge + payload_bytes  # all of it is here, as of most small ones
                if sink is None:
                    pass
                elif len(sink.views) == 1:
                    sink.views[0][:] = self._inbox[edge : self._start]
                else:
                    sink.fill(self._inbox, edge)
                deliver(self.peer, message, sink)
                continue
            payload.begin(self.peer, message, sink, payload_bytes)
        if self._start == self._stop and len(self._inbox) == self._inbox_bytes:
            self._start = self._stop = 0  # nothing is left, as after most calls
        else:
            self._make_room(needed)

    def _end_payload(self, deliver: Deliver) -> bool:
        """Move the inbox's bytes of the payload to their place; return whether it is whole."""
        while self._payload.left:
            held = self._stop - self._start
            if not held:
                return False
            target = self._payload.target()[:held]
            count = target.nbytes
            target[:] = self._inbox[self._start : self._start + count]
            self._start += count
            self._payload.wrote(count, deliver)
        return True

    def _check_shared(self, kind: int, nbytes: int) -> None:
        """Refuse a frame about shared memory that was not expected."""
        payload = self._payload
        if kind == TAKEN:
            nonsense = self._outbox.outlet is None
        elif kind in (READ, FREE):
            nonsense = False  # the outbox knows how many were lent
        elif kind == LENT:
            nonsense = not payload.shared or payload.arena is None or bool(payload.put)
            nonsense = nonsense or payload.lent + nbytes > payload.left
        elif kind == PUT:
            put, left = payload.put + nbytes, payload.left - payload.lent
            broken = put < left and nbytes % LINE_BYTES  # the next chunk would not follow it
            nonsense = not payload.shared or put > min(RING_BYTES, left) or bool(broken)
        else:
            nonsense = payload.inlet is None or payload.shared
        if nonsense or not nbytes or self._asked is not None:
            raise BadSharedMemory(f"a frame of kind {kind} that was not expected ({nbytes} bytes)")

    def _signalled(self, kind: int, nbytes: int, deliver: Deliver) -> None:
        """Handle a signal about shared memory."""
        outbox = self._outbox
        if kind == PUT:
            self._payload.told_put(nbytes, deliver)
        elif kind == LENT:
            offset = int.from_bytes(self._inbox[self._start - OFFSET_BYTES : self._start], "little")
            self._payload.told_lent(offset, nbytes, deliver)
        else:
            if kind == TAKEN:
                outbox.taken(nbytes)
            elif kind == READ:
                outbox.was_read(nbytes)
            else:
                outbox.was_freed(nbytes)
            if outbox.backlog:  # else a TAKEN that is owed would be sent by itself
                self.flush()

    def _answer(self, message: Message, asked: Challenge) -> None:
        verdict = handshake.judge(self._me, asked, message, bool(self._greeted_with))
        if isinstance(verdict, Welcome) and verdict.rings:
            try:
                self._payload.inlet = Inlet(self._greeted_with.pop(0))
                verdict = replace(verdict, arena=self._map_arena())
                self._outbox.outlet = Outlet()
                send_with(self._sock, encode(verdict), self._outbox.outlet)
            except OSError as error:  # it has gone, or this process has no descriptor left
                raise HandshakeFailed(f"a caller could not be welcomed: {error}") from None
        elif isinstance(verdict, Denied):
            self._verdict = verdict
            reason = "wrong token" if verdict is handshake.WRONG_TOKEN else "refused"
            raise HandshakeFailed(f"a caller was refused: {verdict.reason}", reason=reason)
        else:
            self.send(verdict, ())
        if self._start != self._stop:
            raise HandshakeFailed("a caller spoke on before it was welcome")
        assert isinstance(message, Hello)
        self.peer, self.role = message.node, message.role
        self._asked, self._inbox_bytes = None, INBOX_BYTES

    def _map_arena(self) -> bool:
        """Map the caller's arena, if it came and there are addresses for it."""
        if self._greeted_with:
            with suppress(OSError):
                self.map(self._greeted_with.pop())
        return self._payload.arena is not None

    def _meet(self, into: memoryview) -> int:
        """Read a part of a caller's greeting, and the descriptors that came with it."""
        data, descriptors = receive_with(self._sock, into.nbytes)
        plain = not self.encrypted and not self.within_host
        if plain and data[:1] == TLS_HELLO and not self._stop:
            raise HandshakeFailed(
                "a caller was refused: it speaks tls://, and this listener plain tcp://",
                reason="tls",
            )
        self._greeted_with += descriptors
        if len(self._greeted_with) > DESCRIPTORS_MAX:
            raise HandshakeFailed("a caller passed too many descriptors")
        into[: len(data)] = data
        return len(data)

    def _make_room(self, nbytes: int) -> None:
        """Move the inbox's contents to its front, with room for `nbytes`.

        The inbox grows for one large header, exactly, and has its old size again after that.
        """
        start, held = self._start, self._stop - self._start
        self._start, self._stop = 0, held
        inbox = self._inbox
        least = self._inbox_bytes
        size = nbytes if nbytes > least else least
        if len(inbox) != size:
            self._inbox = memoryview(bytearray(size))
        elif not start:
            return
        if held:
            self._inbox[:held] = inbox[start : start + held]

    def close(self) -> None:
        self._payload.close()
        self._start = self._stop = 0
        self._outbox.close()
        while self._greeted_with:
            os.close(self._greeted_with.pop())
        self._sock.close()
