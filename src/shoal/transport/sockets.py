"""Listening and connecting stream sockets, for Unix and TCP."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from shoal.errors import BadVersion, HandshakeFailed, HandshakeRefused
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.handshake import Challenge, Denied
from shoal.transport import handshake
from shoal.transport.arena import arena
from shoal.transport.base import NO_TURN, Connection, Identity, Listener, Turn
from shoal.transport.shared import Inlet, Outlet, receive_with, send_with
from shoal.transport.shortcut import of_this_user, open_shortcut, take_shortcut
from shoal.transport.stream import HANDSHAKE_BYTES_MAX, StreamConnection
from shoal.transport.wire import PREFIX, decode_greeting, encode, read_prefix

UNIX_SEND_BYTES = 1 << 20  # the default, 208 KiB, costs a third of the throughput
UNACKNOWLEDGED_MS = 30_000  # then TCP abandons a connection; by default after a quarter of an hour
TCP_RTO_MAX_MS = 44  # since Linux 6.15
RETRANSMIT_MS = 1000  # at most between retransmissions, so that a link that is up again is used


class StreamListener(Listener):
    """A listening socket, whose address `before_close` cleans up.

    Over TCP it also listens at a Unix socket for callers of this host and user (`shortcut.py`).

    It keeps a file descriptor in reserve. When the process has no other left, a caller is accepted
    with it and dropped. A waiting caller would keep the socket readable and the loop busy.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        me: Identity,
        before_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self._me = me
        self._before_close = before_close
        self._reserve = os.open(os.devnull, os.O_RDONLY)
        beside = open_shortcut() if sock.family != socket.AF_UNIX else None
        self._socks, self._shortcut = [sock], ""
        if beside is not None:
            self._shortcut = beside[1]
            self._socks.insert(0, beside[0])
        self._ready = select.epoll()
        for each in self._socks:
            each.setblocking(False)
            self._ready.register(each, select.EPOLLIN)

    def fileno(self) -> int:
        return self._ready.fileno()

    def accept(self) -> Connection | None:
        for listener in self._socks:
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._send_away()  # the system says so even where nobody waits
                    return None
                continue
            beside = self._shortcut and listener.family == socket.AF_UNIX
            if beside and not of_this_user(sock):
                sock.close()
                continue
            tune(sock)
            asked = handshake.challenge(self._me, "" if beside else self._shortcut)
            return self._connection(sock, asked)
        return None

    def _connection(self, sock: socket.socket, asked: Challenge) -> Connection:
        """Return the connection of a caller, which will be asked."""
        return StreamConnection(sock, self._me, asked=asked)

    def _send_away(self) -> None:
        os.close(self._reserve)
        for listener in self._socks:
            with suppress(OSError):
                listener.accept()[0].close()
        self._reserve = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        if not self._ready.closed:
            self._before_close()
            os.close(self._reserve)
            self._ready.close()
        for each in self._socks:
            each.close()


def shake(
    sock: socket.socket,
    me: Identity,
    until: float,
    turn: Turn = NO_TURN,
    leaves: Callable[[], None] | None = None,
) -> StreamConnection:
    """Shake hands on a connected socket, as the caller; close the socket on failure.

    leaves:  the function to call before this side says anything on a connection that leaves this
             host; it may raise `HandshakeRefused`
    """
    caller = _Caller(sock, until, leaves)
    try:
        return caller.greet(me, turn)
    except TimeoutError:
        caller.give_up()
        raise HandshakeFailed("the other side did not finish its greeting in time") from None
    except OSError as error:
        caller.give_up()
        raise HandshakeFailed(f"the greeting failed: {error}") from error
    except BaseException:
        caller.give_up()
        raise


class _Caller:
    """The connecting side, which offers a ring and its arena to a listener of this host."""

    def __init__(
        self, sock: socket.socket, until: float, leaves: Callable[[], None] | None
    ) -> None:
        self._leaves = leaves
        self._outlet: Outlet | None = None
        self._descriptors: list[int] = []  # of the listener's ring
        self._sock = sock
        self._until = until

    def greet(self, me: Identity, turn: Turn) -> StreamConnection:
        try:
            asked = self._read_message()
        except BadVersion as error:
            with suppress(OSError):
                send_with(self._sock, encode(handshake.farewell(me)), None)
            raise HandshakeRefused(error.message) from None
        if isinstance(asked, Denied):  # by a listener of another kind, which has to know of this
            with suppress(OSError):
                send_with(self._sock, encode(handshake.farewell(me)), None)
            raise HandshakeRefused(f"the peer refused the connection: {asked.reason}")
        if isinstance(asked, Challenge) and (sock := take_shortcut(asked.shortcut, self._left())):
            self._sock.close()
            self._sock = sock
            asked = self._read_message()
        elif self._leaves is not None:
            self._leaves()
        with turn:
            return self._introduce(me, asked)

    def _introduce(self, me: Identity, asked: Message) -> StreamConnection:
        said = handshake.hello(me, asked)
        assert isinstance(asked, Challenge)
        more: list[int] = []
        if self._sock.family == socket.AF_UNIX:
            self._outlet = Outlet()
            with suppress(OSError):  # without an arena nothing is lent
                more.append(arena.fd)
        send_with(self._sock, encode(said), self._outlet, more)
        welcome = handshake.conclude(me, asked, said, self._read_message())
        inlet = None
        if welcome.rings:
            if self._outlet is None or not self._descriptors:
                raise HandshakeFailed("the other side's ring did not come: no descriptor is left")
            inlet = Inlet(self._descriptors.pop())
        else:  # this side's ring did not reach the other side
            self._let_go()
        tune(self._sock)
        connection = StreamConnection(self._sock, me, welcome.node)
        connection.share(self._outlet, inlet, welcome.arena)
        return connection

    def give_up(self) -> None:
        self._let_go()
        self._sock.close()

    def _left(self) -> float:
        """Return the seconds that are left for the handshake."""
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _let_go(self) -> None:
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _read_message(self) -> Message:
        _, header_bytes, padding, payload_bytes = read_prefix(self._read_exactly(PREFIX.size))
        if header_bytes + padding + payload_bytes > HANDSHAKE_BYTES_MAX:
            raise HandshakeFailed("the other side's greeting is too long")
        header = self._read_exactly(header_bytes + padding)[:header_bytes]
        return decode_greeting(header, "listener")

    def _read_exactly(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            self._sock.settimeout(self._left())
            more, descriptors = receive_with(self._sock, nbytes - len(data))
            self._descriptors += descriptors
            if len(self._descriptors) > 1:
                raise HandshakeFailed("the other side passed more than one descriptor")
            if not more:
                raise HandshakeFailed("the other side closed the connection during the greeting")
            data += more
        return data


def tune(sock: socket.socket) -> None:
    """Set the options of a socket: small TCP messages are not delayed, a silent peer is noticed.

    The kernel sizes the send buffers of TCP sockets, and not those of Unix sockets.
    """
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RETRANSMIT_MS)
