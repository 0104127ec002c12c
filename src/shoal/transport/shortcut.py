"""The Unix socket beside a TCP listener, which peers of the same host and user take.

The listener names the socket in its challenge. It is in Linux's abstract namespace: it has no file,
only processes in the same network namespace can connect to it, and its random name exists on no
other host. Each side checks the other's user; the handshake, with its token, is the same.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CREDENTIALS = struct.Struct("iII")  # of SO_PEERCRED: process, user, group

_taken = True  # by this process's connections over TCP


@contextmanager
def without_shortcut() -> Iterator[None]:
    """Keep this process's new connections to tcp:// addresses on TCP, to measure and to test it."""
    global _taken
    before, _taken = _taken, False
    try:
        yield
    finally:
        _taken = before


def open_shortcut() -> tuple[socket.socket, str] | None:
    """Return a listening socket and its name; None if this system has no abstract sockets."""
    sock = socket.socket(socket.AF_UNIX)
    name = f"shoal-{secrets.token_hex(16)}"
    try:
        sock.bind(_address(name))
        sock.listen(512)
    except OSError:
        sock.close()
        return None
    return sock, name


def take_shortcut(name: str, timeout_s: float) -> socket.socket | None:
    """Connect to the socket that a listener has named; return None if it is not of this host."""
    if not name or not _taken:
        return None
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    with suppress(OSError):
        sock.connect(_address(name))
        if of_this_user(sock):
            return sock
    sock.close()
    return None


def of_this_user(sock: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket belongs to this user."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())


def _address(name: str) -> str:
    return f"\0{name}"
