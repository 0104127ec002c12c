"""A connection whose other end is a bare socket, sockets that misbehave, and frames by hand."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import select
import shutil
import socket
import struct
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.apps.keys import add_certificate, make_authority
from shoal.protocol.machine import Sink
from shoal.protocol.messages.base import PROTOCOL_VERSION, Message
from shoal.protocol.messages.handshake import Challenge
from shoal.testing.connections import CALLER, LISTENER, End
from shoal.transport.arena import WINDOW_BYTES, Arena
from shoal.transport.base import Identity
from shoal.transport.shared import RING_BYTES, Inlet, Outlet
from shoal.transport.stream import StreamConnection
from shoal.transport.wire import MAGIC, PREFIX, decode, read_prefix


class Raw:
    """A connection, and the bare other end of its socket."""

    def __init__(
        self, me: Identity = LISTENER, peer: str = CALLER.node, asked: Challenge | None = None
    ) -> None:
        self.sock, ours = socket.socketpair()
        self.connection = StreamConnection(ours, me, peer, asked)
        self.end = End(self.connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.connection.close()
        self.sock.close()

    def feed(self, data: bytes) -> None:
        """Hand over some bytes, and let the connection take them in."""
        view = memoryview(data)
        self.sock.setblocking(False)
        while view:
            view = view[self.sock.send(view) :]
            self.serve()

    def serve(self) -> None:
        """What a level-triggered poll asks for, and no more."""
        while not self.end.ended and select.select([self.connection], [], [], 0)[0]:
            self.end.receive()

    def read(self, nbytes: int) -> bytes:
        self.sock.setblocking(True)
        self.sock.settimeout(5)
        data = b""
        while len(data) < nbytes:
            more = self.sock.recv(nbytes - len(data))
            if not more:
                break
            data += more
        return data

    def read_message(self) -> Message:
        _, header_bytes, _, payload_bytes = read_prefix(self.read(PREFIX.size))
        assert payload_bytes == 0
        return decode(self.read(header_bytes))

    def all_delivered(self) -> list[tuple[Message, bytes]]:
        return [
            (message, b"" if sink is None else b"".join(sink.views))
            for message, sink in self.end.delivered
        ]


class Liar(Raw):
    """The bare end of a connection that has rings, and perhaps this side's arena.

    ring:    what this side puts in, the connection reads
    memory:  memory in the arena, if there is one
    """

    def __init__(self, arena: bool = False) -> None:
        super().__init__()
        self.ring = Outlet()
        self.connection.share(Outlet(), Inlet(os.dup(self.ring.fd)), lends=arena)
        if arena:
            self.arena = Arena()
            self.memory = self.arena.zeros(2 * WINDOW_BYTES)
            self.connection.map(os.dup(self.arena.fd))

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self.ring.close()

    def says(self, *frames: bytes) -> None:
        """Send some frames, and let the connection take them in."""
        self.sock.sendall(b"".join(frames))
        self.end.receive()


class Wrapped:
    """A socket that does what the one in it does, where a test does not say otherwise."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class Watched(Wrapped):
    """A socket that notes what it is given, and where it is to put what comes.

    sent:     bytes that it took
    reads:    how often it was asked for bytes
    targets:  the memory that each read has filled
    """

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.sent = self.reads = 0
        self.targets: list[object] = []

    def send(self, data: bytes | memoryview) -> int:
        return self._count(self.sock.send(data))

    def sendmsg(self, pieces: Sequence[bytes | memoryview]) -> int:
        return self._count(self.sock.sendmsg(pieces))

    def _count(self, sent: int) -> int:
        self.sent += sent
        return sent

    def recv_into(self, view: memoryview) -> int:
        self.reads += 1
        count: int = self.sock.recv_into(view)
        self.targets.append(view.obj)
        return count


def two_views(nbytes: int) -> Sink:
    memory = memoryview(bytearray(nbytes))
    return Sink([memory[: nbytes // 3], memory[nbytes // 3 :]])


def prefix(
    magic: bytes = MAGIC,
    version: int = PROTOCOL_VERSION,
    kind: int = 0,
    padding: int = 0,
    header: int = 0,
    payload: int = 0,
) -> bytes:
    """The beginning of a frame, right or wrong."""
    return struct.pack("<4sBBHIQ", magic, version, kind, padding, header, payload)


def ring_like(size: int = RING_BYTES, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    """The descriptor of memory that is a ring, if size and seals are right."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def free_port() -> int:
    """A port of this host that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def authority(name: str = "ours") -> Path:
    """The folder of an authority, which goes with this process."""
    return _authority(name)


@cache
def _authority(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="shoal-keys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_authority(folder, name)
    return folder


def keys_of(name: str, by: str = "ours") -> Path:
    """The folder of a certificate by an authority."""
    return add_certificate(authority(by), name)


def drop_packets_to(sock: socket.socket) -> None:
    """Have the kernel drop all that comes to a socket, by a BPF program that keeps no byte."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0
    told = struct.pack("HP", 1, ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, 26, told)  # SO_ATTACH_FILTER
