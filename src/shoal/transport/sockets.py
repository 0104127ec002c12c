"""Stream sockets that listen and that call: what Unix and TCP share around `stream`."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from shoal.errors import HandshakeFailed
from shoal.protocol.messages import Challenge, Message
from shoal.transport import handshake
from shoal.transport.base import Connection, Identity, Listener
from shoal.transport.stream import HANDSHAKE_BYTES_MAX, StreamConnection
from shoal.transport.wire import PREFIX, decode, encode, read_prefix

UNIX_SEND_BYTES = 1 << 20  # the default, 208 KiB, costs a third of the throughput


class StreamListener(Listener):
    """A listening socket. `before_close` removes what else there is at its address.

    It keeps a file descriptor in reserve: where this process has no other left, a caller is
    accepted with it and sent away. Left waiting, it would keep the socket readable, and the loop
    busy, for ever.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        me: Identity,
        before_close: Callable[[], None] = lambda: None,
    ) -> None:
        sock.setblocking(False)
        self.address = address
        self._sock = sock
        self._me = me
        self._before_close = before_close
        self._reserve = os.open(os.devnull, os.O_RDONLY)

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> Connection | None:
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._send_away()
            return None
        tune(sock)
        return StreamConnection(sock, self._me, asked=handshake.challenge(self._me))

    def _send_away(self) -> None:
        os.close(self._reserve)
        with suppress(OSError):
            self._sock.accept()[0].close()
        self._reserve = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._before_close()
            os.close(self._reserve)
        self._sock.close()


def shake(sock: socket.socket, me: Identity, until: float) -> StreamConnection:
    """The caller's side of the handshake on a connected socket; closes it on failure."""
    try:
        asked = _read_message(sock, until)
        said = handshake.hello(me, asked)
        sock.sendall(encode(said))
        assert isinstance(asked, Challenge)
        peer = handshake.conclude(me, asked, said, _read_message(sock, until))
    except TimeoutError:
        sock.close()
        raise HandshakeFailed("the other side did not finish its greeting in time") from None
    except OSError as error:
        sock.close()
        raise HandshakeFailed(f"the other side closed the connection: {error}") from None
    except BaseException:
        sock.close()
        raise
    tune(sock)
    return StreamConnection(sock, me, peer)


def _read_message(sock: socket.socket, until: float) -> Message:
    header_bytes, payload_bytes = read_prefix(_read_exactly(sock, PREFIX.size, until))
    if header_bytes + payload_bytes > HANDSHAKE_BYTES_MAX:
        raise HandshakeFailed("the other side's greeting is too long")
    return decode(_read_exactly(sock, header_bytes, until))


def _read_exactly(sock: socket.socket, nbytes: int, until: float) -> bytes:
    data = b""
    while len(data) < nbytes:
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        more = sock.recv(nbytes - len(data))
        if not more:
            raise HandshakeFailed("the other side closed the connection during the greeting")
        data += more
    return data


def tune(sock: socket.socket) -> None:
    """No delays for small TCP messages. The kernel sizes TCP's buffers, and not those of Unix."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
