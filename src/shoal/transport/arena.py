"""Arena: memory of this process that its peers on this host read in place.

A tensor there is sent without a copy: the socket carries where its bytes lie (LENT), and how many
the peer has read (READ). The peer maps the whole arena when it greets, once, and for reading.

The arena is one sparse file without a name, of a fixed size that is sealed: a missing page would
kill the process that reads it. Only pages that are in use take memory.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from shoal.errors import BadSharedMemory

ARENA_BYTES = 1 << 36
WINDOW_BYTES = 16 << 20  # that may be announced to a peer, and not be read yet
READ_BYTES = WINDOW_BYTES // 2  # per READ signal
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_MAP_FIXED = 0x10  # of Linux
_FAILED = ctypes.c_void_p(-1).value


class Extent:
    """Some pages of the arena; they are free when nothing refers to the extent any more."""

    __slots__ = ("__weakref__", "nbytes", "offset")

    def __init__(self, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes


class Region:
    """Memory of this process: the address at which an extent is mapped."""

    __slots__ = ("address", "extent")

    def __init__(self, address: int, extent: Extent) -> None:
        self.address = address
        self.extent = extent


class _Pages(mmap.mmap):
    """Mapped pages, which leave the arena's regions before they are unmapped.

    After that, other memory may be at their address.
    """

    regions: dict[int, Region]
    address = -1

    def __del__(self) -> None:
        if self.address >= 0:
            self.regions.pop(self.address, None)


class Arena:
    """The memory of this process that peers may read.

    An extent belongs to its region, and to each message that names it until the peer has read it.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _forget(self) -> None:
        self._lock = Lock()
        self._fd = -1
        self._free = [(0, ARENA_BYTES)]  # (offset, bytes), by offset
        self._given: deque[tuple[int, int]] = deque()  # pages that are free since
        self._regions: dict[int, Region] = {}  # by address
        self._kept: list[Extent] = []

    @property
    def fd(self) -> int:
        """The arena's descriptor; the arena is made on first use.

        Raises:
            OSError: the system refuses it.
        """
        with self._lock:
            if self._fd < 0:
                fd = os.memfd_create("shoal-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                os.ftruncate(fd, ARENA_BYTES)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
                self._fd = fd
            return self._fd

    def zeros(self, nbytes: int) -> memoryview:
        """Return zeroed memory that begins on a page, and is free when nothing refers to it.

        Raises:
            OSError: the arena is full, or the system refuses it.
        """
        extent = self._take(nbytes)
        pages = _Pages(self.fd, extent.nbytes, offset=extent.offset)
        pages.regions = self._regions
        pages.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._regions[pages.address] = Region(pages.address, extent)
        return memoryview(pages)[:nbytes]

    def find(self, view: memoryview) -> tuple[Extent, int] | None:
        """Return the extent of some memory and its offset in the arena; None if it is elsewhere."""
        if not self._regions or view.readonly:
            return None
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for region in list(self._regions.values()):
            within = address - region.address
            if within >= 0 and within + view.nbytes <= region.extent.nbytes:
                return region.extent, region.extent.offset + within
        return None

    def move(self, extent: Extent) -> None:
        """Give the region of an extent other pages of the same content.

        The owner may write to its memory then, and a peer still reads what was there. Where there
        are no other pages, the peer reads what is written.
        """
        for region in list(self._regions.values()):
            if region.extent is not extent:
                continue
            with suppress(OSError):
                to = self._take(extent.nbytes)
                with (
                    mmap.mmap(self.fd, extent.nbytes, offset=extent.offset) as old,
                    mmap.mmap(self.fd, extent.nbytes, offset=to.offset) as new,
                ):
                    new.write(old)
                _map(region.address, to, self.fd, mmap.MAP_SHARED)
                region.extent = to

    def keep(self, extent: Extent) -> None:
        """Never free an extent: a peer may read it, and nothing will say when it has."""
        self._kept.append(extent)

    # ------------------------------------------------------------------ pages

    def _take(self, nbytes: int) -> Extent:
        """Return free pages, which are zero.

        Raises:
            OSError: there are not so many in one piece.
        """
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = self.fd
        with self._lock:
            if self._given:
                self._join()
            for index, (offset, free) in enumerate(self._free):
                if free >= size:
                    rest = [(offset + size, free - size)] if free > size else []
                    self._free[index : index + 1] = rest
                    extent = Extent(offset, size)
                    weakref.finalize(extent, self._give, fd, offset, size).atexit = False
                    return extent
        raise OSError(f"the arena has no {size} bytes in one piece")

    def _give(self, fd: int, offset: int, size: int) -> None:
        """Free some pages; this may be called anywhere, by the collector of garbage."""
        if fd == self._fd:  # else they are of a process that this one was forked from
            with suppress(OSError), mmap.mmap(fd, size, offset=offset) as pages:
                pages.madvise(mmap.MADV_REMOVE)
            self._given.append((offset, size))

    def _join(self) -> None:
        """Join the pages that were given with the free ones beside them."""
        while self._given:
            self._free.append(self._given.popleft())
        joined: list[tuple[int, int]] = []
        for offset, size in sorted(self._free):
            if joined and sum(joined[-1]) == offset:
                joined[-1] = joined[-1][0], joined[-1][1] + size
            else:
                joined.append((offset, size))
        self._free = joined

    def _leave_to_parent(self) -> None:
        """Leave the arena to the process that this one was forked from.

        What is written to inherited memory stays in this process, as with all other memory.
        """
        regions, fd = list(self._regions.values()), self._fd
        for region in regions:
            with suppress(OSError):
                _map(region.address, region.extent, fd, mmap.MAP_PRIVATE)
        self._forget()
        if fd >= 0:
            os.close(fd)


def _map(address: int, extent: Extent, fd: int, kind: int) -> None:
    """Map an extent at an address, in place of what is mapped there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_int64,
    )
    way = mmap.PROT_READ | mmap.PROT_WRITE, kind | _MAP_FIXED
    if libc.mmap(address, extent.nbytes, *way, fd, extent.offset) == _FAILED:
        raise OSError(ctypes.get_errno(), "cannot map memory")


arena = Arena()


class _Use:
    """Some bytes of a peer's arena, and whether they are in use no more."""

    __slots__ = ("count", "ended")

    def __init__(self, count: int, ended: bool) -> None:
        self.count = count
        self.ended = ended


class PeerArena:
    """A peer's arena, whose contents may change at any time: only values are read in place.

    read:  the bytes that were read, or are kept, of which the peer was not told
    free:  the bytes that are in use no more, of which the peer was not told
    owes:  whether there may be any of these
    """

    most = WINDOW_BYTES - READ_BYTES  # bytes of a view that is lent; see `Inlet.most`

    def __init__(self, fd: int) -> None:
        """Map the arena, and close its descriptor.

        Raises:
            BadSharedMemory: it is no sealed arena.
            OSError: it cannot be mapped, or is no shared memory at all.
        """
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            size = os.fstat(fd).st_size
            if not seals & fcntl.F_SEAL_SHRINK or size != ARENA_BYTES:
                raise BadSharedMemory(
                    f"shared memory of {size} bytes, seals {seals:#x}: not an arena of "
                    f"{ARENA_BYTES} bytes that cannot shrink"
                )
            self._map = mmap.mmap(fd, ARENA_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._memory = memoryview(self._map)
        self._pieces: deque[tuple[int, int]] = deque()  # (offset, bytes); none adjoin
        self._uses: deque[_Use] = deque()  # of what was taken, from the first that is kept on
        self.read = self.free = 0
        self.owes = False

    def announce(self, offset: int, count: int, keeps: bool) -> None:
        """Note where the next bytes of the payload lie.

        keeps:  whether the peer may announce more at once, because they are kept where they lie

        Raises:
            BadSharedMemory: they are not in the arena.
        """
        if offset + count > ARENA_BYTES:
            raise BadSharedMemory(f"{count} bytes at {offset} of an arena of {ARENA_BYTES}")
        if self._pieces and sum(self._pieces[-1]) == offset:
            before, held = self._pieces.pop()
            self._pieces.append((before, held + count))
        else:
            self._pieces.append((offset, count))
        if keeps:
            self.read += count
        self.owes = True

    @property
    def in_one_piece(self) -> int:
        """The number of bytes from the next one on that lie in one piece, or may yet do so."""
        return ARENA_BYTES if len(self._pieces) < 2 else self._pieces[0][1]

    def look(self, count: int) -> memoryview:
        """Take the next `count` bytes in place, at most those in one piece."""
        offset, held = self._pieces.popleft()
        if held > count:
            self._pieces.appendleft((offset + count, held - count))
        return self._memory[offset : offset + count]

    def take(self, into: memoryview) -> None:
        """Copy the next bytes out, as many as `into` holds."""
        at = 0
        while at < into.nbytes:
            count = min(self._pieces[0][1], into.nbytes - at)
            into[at : at + count] = self.look(count)
            at += count

    def done(self, count: int, keeps: bool) -> None:
        """Note that the next `count` bytes that were taken are in use no more."""
        if not keeps:
            self.read += count
        if self._uses:
            self._uses.append(_Use(count, True))
        else:
            self.free += count

    def keep(self, count: int) -> Callable[[], None]:
        """Note that the next `count` bytes that were taken stay in use; return what ends that."""
        use = _Use(count, False)
        self._uses.append(use)

        def end() -> None:  # may be called anywhere, by the collector of garbage
            use.ended = True

        return end

    def told(self) -> tuple[int, int]:
        """Return `read` and `free`, of which the peer is told now.

        Uses that have ended count as far as no earlier one goes on.
        """
        while self._uses and self._uses[0].ended:
            self.free += self._uses.popleft().count
        told = self.read, self.free
        self.read = self.free = 0
        self.owes = bool(self._uses)
        return told

    def close(self) -> None:
        with suppress(BufferError):  # a view is in use; the memory is freed with it
            self._memory.release()
            self._map.close()
