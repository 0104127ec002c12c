"""Arena: memory of this process that its peers on this host read in place.

A tensor there is sent without a copy: the socket carries where its bytes lie (LENT), and what the
peer says of them (READ, FREE). The peer maps the whole arena when it greets, once, and for reading.

The arena is one sparse file without a name, of a fixed size that is sealed: a missing page would
kill the process that reads it. Only pages that are in use take memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from threading import Lock
from typing import Any

from shoal.errors import BadSharedMemory
from shoal.transport.shared import check_sealed, sealed_memory

ARENA_BYTES = 1 << 36
WINDOW_BYTES = 16 << 20  # that may be announced to a peer which has not said that it has read more
READ_BYTES = WINDOW_BYTES // 2  # per READ signal


class Extent:
    """Some pages of the arena; they are free when nothing refers to the extent any more."""

    __slots__ = ("__weakref__", "nbytes", "offset")

    def __init__(self, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes


class Arena:
    """The memory of this process that peers may read.

    An extent belongs to the memory at which it is mapped, and to each message that names it until
    the peer says that it uses it no more.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _forget(self) -> None:
        self._lock = Lock()
        self._fd = -1
        self._free = [(0, ARENA_BYTES)]  # (offset, bytes), by offset
        self._given: deque[tuple[int, int]] = deque()  # pages that are free since
        self._regions: dict[int, Extent] = {}  # by address, what is lent
        self._kept: set[Extent] = set()

    @property
    def fd(self) -> int:
        """The arena's descriptor; the arena is made on first use.

        Raises:
            OSError: the system refuses it.
        """
        with self._lock:
            if self._fd < 0:
                self._fd = sealed_memory("shoal-arena", ARENA_BYTES)
            return self._fd

    def zeros(self, nbytes: int) -> memoryview:
        """Return zeroed memory that begins on a page, and is free when nothing refers to it.

        Raises:
            OSError: the arena is full, or the system refuses it.
        """
        extent = self._take(nbytes)
        regions = self._regions
        pages = _Pages(self.fd, extent.nbytes, extent.offset, lambda at: regions.pop(at, None))
        pages.extent = extent
        regions[pages.address] = extent
        return pages.memory()[:nbytes]

    def find(self, view: memoryview) -> tuple[Extent, int] | None:
        """Return the extent of some memory and its offset in the arena; None if it is not lent."""
        if not self._regions or view.readonly:
            return None
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for start, extent in list(self._regions.items()):
            within = address - start
            if within >= 0 and within + view.nbytes <= extent.nbytes:
                return extent, extent.offset + within
        return None

    def withdraw(self, extent: Extent) -> None:
        """Leave the pages of an extent to the peers that read them; it is lent no more.

        What the owner writes to its memory from now on goes to pages of its own.
        """
        for address, found in list(self._regions.items()):
            if found is extent and self._regions.pop(address, None) is not None:
                with suppress(OSError):  # then peers read what is written
                    _map(self.fd, extent.nbytes, extent.offset, mmap.MAP_PRIVATE, address)

    def keep(self, extent: Extent) -> None:
        """Never free an extent: a peer may read it, and nothing will say when it has."""
        self._kept.add(extent)

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
                    give = partial(self._give, self._given, fd, offset, size)
                    weakref.finalize(extent, give).atexit = False
                    return extent
        raise OSError(f"the arena has no {size} bytes in one piece")

    def _give(self, given: deque[tuple[int, int]], fd: int, offset: int, size: int) -> None:
        """Free some pages, whose memory is zero then; the collector of garbage may call this.

        Pages that cannot be freed are not used again, nor those of the process that this one was
        forked from: `given` is not of this arena then.
        """
        if given is self._given and not _libc().fallocate(fd, _PUNCH_HOLE, offset, size):
            given.append((offset, size))

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

        What is written to inherited memory stays in this process. What the parent writes may show
        there until then.
        """
        for address, extent in list(self._regions.items()):
            _map(self._fd, extent.nbytes, extent.offset, mmap.MAP_PRIVATE, address)
        if self._fd >= 0:
            os.close(self._fd)
        self._forget()


arena = Arena()


class PeerArena:
    """A peer's arena, whose contents may change at any time: only values are read in place.

    read:  the bytes that were read, or are borrowed, of which the peer was not told
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
            check_sealed(fd, ARENA_BYTES, "an arena")
            pages = _Pages(fd, ARENA_BYTES, 0, writes=False)
        finally:
            os.close(fd)
        # a core dump would allocate all of it
        _libc().madvise(pages.address, ARENA_BYTES, mmap.MADV_DONTDUMP)
        self._memory = pages.memory().toreadonly()
        self._pieces: deque[tuple[int, int]] = deque()  # (offset, bytes); none adjoin
        self._uses: deque[_Use] = deque()  # of what was taken, from the first that is borrowed on
        self._ahead = 0  # bytes announced that the peer was not told of as read
        self.read = self.free = 0
        self.owes = False

    def announce(self, offset: int, count: int, borrows: bool) -> None:
        """Note where the next bytes of the payload lie.

        borrows:  whether the peer may announce more at once, because they are used where they lie

        Raises:
            BadSharedMemory: they are not in the arena, or more than the peer may announce.
        """
        self._ahead += count
        if offset + count > ARENA_BYTES or self._ahead > WINDOW_BYTES:
            raise BadSharedMemory(f"{count} bytes at {offset} are announced, {self._ahead} in all")
        if self._pieces and sum(self._pieces[-1]) == offset:
            before, held = self._pieces.pop()
            self._pieces.append((before, held + count))
        else:
            self._pieces.append((offset, count))
        if borrows:
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

    def skip(self, count: int) -> None:
        """Take the next `count` bytes without reading them: that might allocate their pages."""
        while count:
            some = min(self._pieces[0][1], count)
            self.look(some)
            count -= some

    def done(self, count: int, borrows: bool) -> None:
        """Note that the next `count` bytes that were taken are in use no more."""
        if not borrows:
            self.read += count
        if not self._uses:
            self.free += count
        elif self._uses[-1].ended:
            self._uses[-1].count += count
        else:
            self._uses.append(_Use(count, True))

    def borrow(self, count: int) -> Callable[[], None]:
        """Note that the next `count` bytes that were taken stay in use; return what ends that."""
        use = _Use(count, False)
        self._uses.append(use)

        def end() -> None:  # the collector of garbage may call this anywhere
            use.ended = True

        return end

    def told(self) -> tuple[int, int]:
        """Return `read` and `free`, of which the peer is told now.

        Uses that have ended count as far as no earlier one goes on.
        """
        while self._uses and self._uses[0].ended:
            self.free += self._uses.popleft().count
        told = self.read, self.free
        self._ahead -= self.read
        self.read = self.free = 0
        self.owes = bool(self._uses)
        return told


class _Use:
    """Some bytes of a peer's arena, and whether they are in use no more."""

    __slots__ = ("count", "ended")

    def __init__(self, count: int, ended: bool) -> None:
        self.count = count
        self.ended = ended


# ---------------------------------------------------------------------------- mapping
#
# Python's own mmap keeps a descriptor for each mapping, and tells of its end when other memory may
# be at its address already.

_PUNCH_HOLE = 3  # of Linux: FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


class _Pages:
    """Mapped pages, which are unmapped when nothing refers to their memory any more.

    before:  called with their address, just before that
    """

    def __init__(
        self,
        fd: int,
        nbytes: int,
        offset: int,
        before: Callable[[int], object] = lambda address: None,
        writes: bool = True,
    ) -> None:
        """Map them.

        Raises:
            OSError: they cannot be mapped.
        """
        self.extent: Extent | None = None  # they refer to it
        self._nbytes = nbytes
        self._before = before
        self._libc = _libc()  # as the interpreter ends, this module may be gone first
        self.address = _map(fd, nbytes, offset, mmap.MAP_SHARED, writes=writes)

    def memory(self) -> memoryview:
        array: Any = (ctypes.c_ubyte * self._nbytes).from_address(self.address)
        array.pages = self
        return memoryview(array).cast("B")

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._before(self.address)
            self._libc.munmap(self.address, self._nbytes)


def _map(
    fd: int, nbytes: int, offset: int, kind: int, at: int | None = None, writes: bool = True
) -> int:
    """Map pages of a file, in place of what is mapped there if `at` is given; return the address.

    Raises:
        OSError: they cannot be mapped.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
    fixed = 0 if at is None else _MAP_FIXED
    address: int = _libc().mmap(at, nbytes, protection, kind | fixed, fd, offset)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
    return address


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number, offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
    libc.mmap.restype = pointer
    libc.mmap.argtypes = (pointer, size, number, number, number, offset)
    libc.munmap.argtypes = (pointer, size)
    libc.madvise.argtypes = (pointer, size, number)
    libc.fallocate.argtypes = (number, number, offset, offset)
    return libc
