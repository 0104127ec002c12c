"""The `unix` transport: sockets of this host, in a directory that only its owner may enter."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic

from shoal.errors import AddressInUse, AddressInvalid, HandshakeFailed
from shoal.ownership import make_folders
from shoal.transport.base import (
    NO_TURN,
    Connection,
    Identity,
    Listener,
    Transport,
    Turn,
    place_of,
    transports,
)
from shoal.transport.sockets import StreamListener, shake

PATH_BYTES_MAX = 107  # of sockaddr_un
NAME_BYTES_MAX = 80  # of a socket's file name: `_short` needs the rest for the folder


def path_of(address: str) -> Path:
    """Return the socket's path in a unix:///PATH address."""
    path = place_of(address, "unix")
    if not path.startswith("/"):
        raise AddressInvalid(f"{address!r}: a unix address has an absolute path, unix:///PATH")
    too_long = len(os.fsencode(path)) > PATH_BYTES_MAX
    if too_long and len(os.fsencode(Path(path).name)) > NAME_BYTES_MAX:
        raise AddressInvalid(f"{address!r}: a socket's name has at most {NAME_BYTES_MAX} bytes")
    return Path(path)


class LocalTransport(Transport):
    """Unix sockets, protected by the directory's mode 0700; a token works here too."""

    def listen(self, address: str, me: Identity) -> Listener:
        path = path_of(address)
        sock = socket.socket(socket.AF_UNIX)
        try:
            make_folders(path.parent)
            if not me.token:
                _check_private(path.parent)
            with _locked(path.parent):
                _bind(sock, path)
                sock.listen(512)
            return StreamListener(sock, address, me, partial(_remove, path, path.stat().st_ino))
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(f"{address} is taken: another process listens there") from None
            raise AddressInvalid(f"cannot listen at {address}: {error.strerror}") from None
        except AddressInvalid:
            sock.close()
            raise

    def beside(self, address: str, name: str) -> str:
        return f"unix://{path_of(address).parent / name}.sock"

    def connect(
        self, address: str, me: Identity, timeout_s: float, turn: Turn = NO_TURN
    ) -> Connection:
        path = path_of(address)
        until = monotonic() + timeout_s
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout_s)
        try:
            with _short(path) as place:
                sock.connect(place)
        except OSError as error:
            sock.close()
            raise HandshakeFailed(f"no process answers at {address}: {error.strerror}") from None
        return shake(sock, me, until, turn)


def _check_private(directory: Path) -> None:
    held = directory.stat()
    mode = stat.S_IMODE(held.st_mode)
    if mode & 0o077 or held.st_uid != os.getuid():
        raise AddressInvalid(
            f"{directory} is open to other users (mode {mode:o}); use a directory of your own with "
            "mode 0700, or a token"
        )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock: a socket that is bound and does not listen yet looks abandoned."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path that is short enough for a socket, by way of its folder's descriptor if long."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def _bind(sock: socket.socket, path: Path) -> None:
    """Bind a socket; replace a socket file that a killed process has left, and no other file."""
    with _short(path) as place:
        try:
            sock.bind(place)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _abandoned(path):
                raise
            path.unlink()
            sock.bind(place)


def _remove(path: Path, inode: int) -> None:
    """Remove the socket's file before its listener closes, unless it belongs to another."""
    with suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()


def _abandoned(path: Path) -> bool:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise AddressInvalid(f"{path} is a file that is no socket; use another path")
    with socket.socket(socket.AF_UNIX) as probe, _short(path) as place:
        probe.setblocking(False)  # a full queue of callers belongs to a living listener
        return probe.connect_ex(place) == errno.ECONNREFUSED


transports.add("unix", LocalTransport)
