"""Memory of this process, which the allocator keeps when it is freed."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = (1 << 31) - 1


def keep_memory() -> None:
    """Make the allocator reuse freed memory instead of giving it back to the system.

    A large tensor's memory is otherwise returned when it is freed, and the next one's is zeroed
    page by page when it is first touched, at every training step. Does nothing where the C library
    is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _NEVER)
        mallopt(_TRIM_THRESHOLD, _NEVER)
