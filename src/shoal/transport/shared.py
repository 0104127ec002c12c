"""Shared memory between two processes of one host: ring buffers for large payloads.

Each side of a connection owns a ring, and the other may read it. The owner copies the next bytes in
and says over the socket how many (PUT); the reader copies them out, or uses them where they lie,
and says so (TAKEN). While one copies in, the other copies out, in pieces that stay in the cache.

The memory is anonymous and passed as a file descriptor, so that nothing is left behind by a process
that was killed. It is sealed against shrinking: a missing page would kill the reading process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from shoal.errors import BadLength, BadSharedMemory
from shoal.transport.wire import LINE_BYTES

RING_BYTES = 4 << 20
CHUNK_BYTES = 256 << 10  # bytes per PUT signal, of a payload of 1 MiB
ONE_CHUNK_BYTES = 512 << 10  # up to here a payload is one chunk: a signal costs more than it saves
CHUNK_BYTES_MAX = 1 << 20  # bytes per PUT signal, of a large payload
TAKEN_BYTES = RING_BYTES // 2  # bytes per TAKEN signal
DESCRIPTORS_MAX = 2  # of a greeting: a ring's, and an arena's
SHARED_BYTES = 32 << 10  # a smaller payload is faster through the socket

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def chunk_of(nbytes: int) -> int:
    """Return the bytes per PUT signal for a payload of `nbytes` bytes.

    Fewer signals mean less overlap of the two copies. Chunks are of whole cache lines, so that the
    bytes of a payload follow each other in the ring.

    >>> [chunk_of(kib << 10) >> 10 for kib in (512, 1024, 8192, 65536)]
    [512, 256, 1024, 1024]
    """
    if nbytes <= ONE_CHUNK_BYTES:
        return ONE_CHUNK_BYTES
    lines = nbytes // (4 * LINE_BYTES)
    return min(max(CHUNK_BYTES, lines * LINE_BYTES), CHUNK_BYTES_MAX)


class Outlet:
    """The ring that this side writes, whose `fd` is for the peer until `passed`."""

    def __init__(self) -> None:
        self.fd = sealed_memory("shoal-ring", RING_BYTES)
        try:
            self._map = mmap.mmap(self.fd, RING_BYTES)
        except BaseException:
            os.close(self.fd)
            raise
        self._ring = memoryview(self._map)
        self._at = 0  # where the next byte goes
        self.room = RING_BYTES  # free bytes: the peer has not taken the others yet

    def passed(self) -> None:
        """Close the descriptor: the peer has its own, or will never have one."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def lines(self) -> int:
        """The number of free cache lines."""
        return self.room // LINE_BYTES

    def put(self, data: memoryview, limit: int) -> int:
        """Copy in as much as fits, `limit` bytes at most; return the number of bytes."""
        at = self._at
        count = min(data.nbytes, limit, self.room, RING_BYTES - at)
        self._ring[at : at + count] = data[:count]
        self._at = (at + count) % RING_BYTES
        self.room -= count
        return count

    def end_chunk(self) -> None:
        """Skip to the next cache line, where the next payload begins."""
        skipped = -self._at % LINE_BYTES
        self._at = (self._at + skipped) % RING_BYTES
        self.room -= skipped

    def taken(self, count: int) -> None:
        """Note that the peer has copied `count` bytes out."""
        if count > RING_BYTES - self.room:
            raise BadLength(f"{count} bytes taken where {RING_BYTES - self.room} were there")
        self.room += count

    def close(self) -> None:
        self.passed()
        self._ring.release()
        self._map.close()


class Inlet:
    """The peer's ring, whose contents may change at any time: only values are read in place."""

    # Bytes of a view that is lent; a larger one is copied. What waits and what is owed have to
    # leave the peer a line of room.
    most = RING_BYTES - TAKEN_BYTES - LINE_BYTES

    def __init__(self, fd: int) -> None:
        """Map the ring, and close its descriptor.

        Raises:
            BadSharedMemory: it is not a sealed ring.
        """
        try:
            check_sealed(fd, RING_BYTES, "a ring")
            self._map = mmap.mmap(fd, RING_BYTES, prot=mmap.PROT_READ)
        except OSError as error:
            raise BadSharedMemory(f"a descriptor that is no shared memory: {error}") from None
        finally:
            os.close(fd)
        self._ring = memoryview(self._map)
        self._at = 0

    def take(self, into: memoryview) -> None:
        """Copy the next bytes out, as many as `into` holds."""
        at, count = self._at, into.nbytes
        first = min(count, RING_BYTES - at)
        into[:first] = self._ring[at : at + first]
        if first < count:
            into[first:] = self._ring[: count - first]
        self._at = (at + count) % RING_BYTES

    @property
    def in_one_piece(self) -> int:
        """The number of bytes before the ring wraps around."""
        return RING_BYTES - self._at

    def look(self, count: int) -> memoryview:
        """Take the next `count` bytes in place, at most those in one piece."""
        at = self._at
        self._at = (at + count) % RING_BYTES
        return self._ring[at : at + count]

    def end_chunk(self) -> int:
        """Skip to the next cache line, where the next payload begins; return the bytes skipped."""
        skipped = -self._at % LINE_BYTES
        self._at = (self._at + skipped) % RING_BYTES
        return skipped

    def close(self) -> None:
        with suppress(BufferError):  # a view is in use; the memory is freed with it
            self._ring.release()
            self._map.close()


def sealed_memory(name: str, nbytes: int) -> int:
    """Return the descriptor of new memory of this size, which keeps it.

    Raises:
        OSError: the system refuses it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_sealed(fd: int, nbytes: int, what: str) -> None:
    """Check that memory has this size, and keeps it.

    Raises:
        BadSharedMemory: it has another, or may shrink.
        OSError: it is no shared memory.
    """
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    size = os.fstat(fd).st_size
    if not seals & fcntl.F_SEAL_SHRINK or size != nbytes:
        raise BadSharedMemory(
            f"shared memory of {size} bytes, seals {seals:#x}: not {what} of {nbytes} bytes that "
            "cannot shrink"
        )


def send_with(
    sock: socket.socket, data: bytes, outlet: Outlet | None, more: Sequence[int] = ()
) -> None:
    """Send a greeting with the ring's descriptor, if there is a ring, and `more` behind it."""
    if outlet is None:
        sock.sendall(data)
        return
    sent = socket.send_fds(sock, [data], [outlet.fd, *more])
    outlet.passed()
    if sent < len(data):
        sock.sendall(data[sent:])


def receive_with(sock: socket.socket, nbytes: int) -> tuple[bytes, list[int]]:
    """Receive a part of a greeting, and the descriptors that came with it."""
    if sock.family != socket.AF_UNIX:
        return sock.recv(nbytes), []
    data, descriptors, _, _ = socket.recv_fds(
        sock, nbytes, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
    )
    return data, descriptors
