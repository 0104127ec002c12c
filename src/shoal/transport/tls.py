"""The `tls` transport: TCP with TLS 1.3, on which both sides show a certificate of one authority.

The handshake with its token is inside. Callers of the listener's host and user go on over the Unix
socket that the listener names there (`transport.shortcut`).

A caller that speaks no TLS is told so. It may wait for the listener to speak first, as callers of
tcp:// do: then it gets a verdict without TLS.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.errors import HandshakeFailed, HandshakeRefused, InvalidValue, WireError
from shoal.protocol.messages.base import PROTOCOL_VERSION
from shoal.protocol.messages.handshake import Challenge, Denied
from shoal.transport.base import (
    NO_TURN,
    Arriving,
    Connection,
    Deliver,
    Identity,
    Listener,
    Malformed,
    Turn,
    transports,
)
from shoal.transport.credentials import Credentials, current
from shoal.transport.sockets import StreamListener, shake
from shoal.transport.stream import HANDSHAKE_BYTES_MAX, TLS_HELLO, StreamConnection
from shoal.transport.tcp import TcpTransport
from shoal.transport.wire import MAGIC, encode, message_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

RECORD_BYTES = 16 << 10  # of TLS: what one call reads at most
WRITE_BYTES = 256 << 10  # of one call: several records at a time are a quarter faster
READ_BYTES = 1 << 20  # after which a read ends with the next record, as with an empty socket
LOOK_S = 1.0  # between two looks at the files of a listener's certificate
SILENT_S = 0.5  # after which a caller may be waiting for the listener to speak first

PLAIN = "it speaks plain tcp://, and this listener tls://"
PLAIN_HERE = (
    "this listener speaks tls://, and the caller plain tcp://: use tls://HOST:PORT and --tls"
)
PLAIN_THERE = "a plain tcp:// listener is there, which --tls turns into one of tls://"


log = logging.getLogger("shoal.node")


class TlsSocket(ssl.SSLSocket):
    """A TLS connection, as the plain socket that `StreamConnection` and `Outbox` use.

    `send` and `sendmsg` return the bytes that OpenSSL has taken. It takes a write that would block
    again only with the same bytes: so the next call has to begin with those that were left, as that
    of an outbox does. `recv_into` returns less than it was asked for only where OpenSSL holds no
    more: what the kernel holds makes the descriptor readable, and what OpenSSL holds does not.
    """

    _again = 0  # bytes of the write that has to be repeated
    _late: OSError | None = None  # an error that came after some bytes

    def sendmsg(  # type: ignore[override]  # no addresses, and nothing beside the bytes
        self, buffers: Iterable[Buffer], *_: Any
    ) -> int:
        sent = 0
        for chunk in self._chunks(buffers):
            try:
                count = self.write(chunk)
            except ValueError:
                raise _closed() from None
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._again = chunk.nbytes
                if sent:
                    return sent
                raise BlockingIOError(errno.EAGAIN, "the socket is full") from None
            self._again = 0
            sent += count
        return sent

    def send(self, data: Buffer, flags: int = 0) -> int:
        return self.sendmsg((data,))

    def _chunks(self, buffers: Iterable[Buffer]) -> Iterator[memoryview]:
        """Yield the bytes in pieces for one write each; small ones are copied into one."""
        limit = self._again or WRITE_BYTES
        joined: list[memoryview] = []
        room = limit
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                if not joined and view.nbytes >= limit:
                    yield view[:limit]
                    view = view[limit:]
                    limit = room = WRITE_BYTES
                    continue
                joined.append(view[:room])
                room -= joined[-1].nbytes
                view = view[joined[-1].nbytes :]
                if not room:
                    yield _joined(joined)
                    joined, limit = [], WRITE_BYTES
                    room = limit
        if joined:
            yield _joined(joined)

    def recv_into(  # type: ignore[override]  # memory of its own, as a connection has it
        self, view: memoryview, nbytes: int = 0, flags: int = 0
    ) -> int:
        if self._late is not None:
            raise self._late
        filled, wanted = 0, view.nbytes
        read: Callable[[int, memoryview], int] = self.read  # type: ignore[assignment]
        while filled < wanted:
            try:
                count = read(wanted - filled, view[filled:])
            except ValueError:
                raise _closed() from None
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if filled:
                    return filled
                raise BlockingIOError(errno.EAGAIN, "nothing has come") from None
            except OSError as error:
                if not filled:
                    raise
                self._late = error
                return filled
            filled += count
            # a record that is not full, or enough at a time: what follows is still in the kernel
            if (count < RECORD_BYTES or filled >= READ_BYTES) and not self.pending():
                return filled
        return filled

    def recv(self, nbytes: int = HANDSHAKE_BYTES_MAX, flags: int = 0) -> bytes:
        try:
            return self.read(nbytes)
        except ValueError:
            raise _closed() from None
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError(errno.EAGAIN, "nothing has come") from None

    def getpeername(self) -> Any:
        """Return the peer's address; while this is made, None for a peer that has hung up.

        `ssl` would close the descriptor, which the node's poller still has. The handshake fails.
        """
        try:
            return super().getpeername()
        except OSError:
            if self._sslobj is not None:  # type: ignore[attr-defined]
                raise
            return None

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)  # else what has come could not be read any more


class TlsCaller(StreamConnection):
    """A caller's connection, as its listener has it: TLS's handshake comes before the challenge."""

    def __init__(self, sock: socket.socket, me: Identity, asked: Challenge, own: Credentials):
        super().__init__(sock, me, asked=asked, challenges=False)
        self.encrypted = True
        self._own = own
        self._secured = False
        self._speaks_at = monotonic() + SILENT_S

    def receive(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> bool:
        if not self._secured:
            try:
                if not self._secure():
                    return True
            except ssl.SSLError as error:
                raise HandshakeFailed(_why(error, self._own), reason=_kind(error)) from None
            except OSError as error:
                raise HandshakeFailed(
                    f"TLS's handshake failed: {error}", reason="cut off"
                ) from None
            self._secured = True
            self._challenge()
        return super().receive(arriving, deliver, malformed)

    def _secure(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not isinstance(self._sock, TlsSocket):
                self._check_first(self._sock.recv(len(MAGIC), socket.MSG_PEEK))
                self._sock = _wrapped(self._own.accepts, self._sock, server_side=True)
            self._sock.do_handshake()
            return True
        return False

    @staticmethod
    def _check_first(first: bytes) -> None:
        if not first:
            raise HandshakeFailed("a caller hung up before TLS's handshake", reason="cut off")
        if first.startswith(MAGIC):
            raise HandshakeFailed(f"a caller was refused: {PLAIN}", reason="plain tcp")
        if not first.startswith(TLS_HELLO):
            raise HandshakeFailed(
                f"a caller speaks no TLS: it begins with {first!r}", reason="no TLS"
            )

    @property
    def heavy(self) -> bool:
        return not isinstance(self._sock, TlsSocket)

    def waited(self, now: float) -> None:
        if self._secured or not self.heavy or now < self._speaks_at:
            return
        self._speaks_at = now + 3600.0
        with suppress(OSError):
            try:
                self._sock.recv(1, socket.MSG_PEEK)  # it has spoken, and waits for its first step
            except BlockingIOError:
                self._sock.send(encode(Denied(PLAIN_HERE)))


class TlsListener(StreamListener):
    """A listener whose callers over TCP speak TLS."""

    def __init__(self, sock: socket.socket, address: str, me: Identity, own: Credentials) -> None:
        super().__init__(sock, address, me)
        self._own = own
        self._look_at = monotonic() + LOOK_S

    def _connection(self, sock: socket.socket, asked: Challenge) -> Connection:
        if sock.family == socket.AF_UNIX:
            return super()._connection(sock, asked)
        if (now := monotonic()) >= self._look_at:
            self._look_at, self._own = now + LOOK_S, current(self._me.tls)
        return TlsCaller(sock, self._me, asked, self._own)


class TlsTransport(TcpTransport):
    """TCP with TLS 1.3."""

    scheme = "tls"

    def _listener(self, sock: socket.socket, address: str, me: Identity) -> Listener:
        return TlsListener(sock, address, me, current(me.tls))

    def listen(self, address: str, me: Identity) -> Listener:
        current(me.tls)  # what is wrong there is told before anything listens
        return super().listen(address, me)

    def _check_listening(self, address: str, host: str) -> None:
        """Any address will do."""

    def connect(
        self, address: str, me: Identity, timeout_s: float, turn: Turn = NO_TURN
    ) -> Connection:
        until = monotonic() + timeout_s
        try:
            own = current(me.tls)
        except InvalidValue as error:
            raise HandshakeRefused(error.message) from None
        sock = self._connected(address, timeout_s)
        secured = self._secured(sock, own, address, until)
        try:
            return shake(secured, me, until, turn)
        except HandshakeFailed as error:  # the listener looks at this certificate last
            if isinstance(error.__cause__, ssl.SSLError):
                why = _why(error.__cause__, own)
                raise HandshakeRefused(f"{address}: {why}") from None
            raise

    @staticmethod
    def _secured(sock: socket.socket, own: Credentials, address: str, until: float) -> TlsSocket:
        """Return the socket after TLS's handshake."""
        tls: socket.socket = sock
        try:
            tls = _wrapped(own.connects, sock)
            tls.settimeout(max(0.001, until - monotonic()))
            tls.do_handshake()
            return tls
        except TimeoutError:
            error: HandshakeFailed = HandshakeFailed(
                f"the other side did not finish TLS's handshake in time at {address}"
            )
        except ssl.SSLError as failed:
            error = _plain(tls, address) or HandshakeRefused(f"{address}: {_why(failed, own)}")
        except OSError as failed:
            error = HandshakeFailed(f"TLS's handshake failed at {address}: {failed}")
        tls.close()
        raise error


def _plain(sock: socket.socket, address: str) -> HandshakeFailed | None:
    """Return the error for a listener that speaks plain Shoal, or has taken this caller for one.

    OpenSSL has read as much of the listener's first frame as a record's head has.
    """
    try:
        how = socket.MSG_PEEK | socket.MSG_DONTWAIT
        rest = socket.socket.recv(sock, HANDSHAKE_BYTES_MAX, how)  # not by TLS
        said = message_of(MAGIC + bytes([PROTOCOL_VERSION]) + rest)
    except (OSError, WireError, struct.error):
        return None
    if isinstance(said, Denied):
        return HandshakeFailed(f"{address}: TLS's first message came too late")
    return HandshakeRefused(f"{address}: {PLAIN_THERE}")


def _wrapped(context: ssl.SSLContext, sock: socket.socket, server_side: bool = False) -> TlsSocket:
    context.sslsocket_class = TlsSocket
    wrapped = context.wrap_socket(sock, server_side, do_handshake_on_connect=False)
    assert isinstance(wrapped, TlsSocket)
    return wrapped


def _closed() -> OSError:
    return OSError(errno.EBADF, "the connection is closed")


def _joined(views: list[memoryview]) -> memoryview:
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


# short names for counters: of what is wrong with a certificate, by OpenSSL's number
_WRONG = {10: "expired", 18: "self-signed", 19: "another authority", 20: "another authority"}
_KINDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "UNEXPECTED_EOF_WHILE_READING": "cut off",
}


def _kind(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _WRONG.get(error.verify_code, str(error.verify_message))
    return _KINDS.get(str(error.reason), str(error.reason or "TLS").lower().replace("_", " "))


def _why(error: ssl.SSLError, own: Credentials) -> str:
    """Return why a handshake has failed, for people."""
    reason = str(error.reason or error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the other side's certificate is refused: {error.verify_message}; the authority here "
            f"is {own.authority!r}"
        )
    if any(each in reason for each in ("CERTIFICATE", "UNKNOWN_CA")) and "ALERT" in reason:
        said = reason.partition("ALERT_")[2].lower().replace("_", " ")
        return f"the other side refuses this side's certificate ({said}): {own.described}"
    return f"TLS's handshake failed: {reason.lower().replace('_', ' ')}"


transports.add("tls", TlsTransport)
