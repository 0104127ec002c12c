"""HeldFile: a file by which others know that the process that wrote it still runs.

The owner holds a lock (flock) on it, which the kernel releases when the owner has ended, however it
ended. So a file whose lock is free has no owner any more.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from shoal.storage.files import write_whole


class HeldFile:
    """A new file with a lock, which replaces an older file; others never see it without the lock.

    On a file system without locks nobody can tell that a held file was abandoned.
    """

    def __init__(self, path: Path, content: str = "") -> None:
        self.path = path
        write_whole(path, partial(self._create, content))

    def _create(self, content: str, fresh: Path) -> None:
        self._descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fresh.write_text(content)
        except BaseException:
            self.release()
            raise
        with suppress(OSError):  # this file system has no locks
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Release the lock; may be called once."""
        os.close(self._descriptor)


def is_abandoned(path: Path) -> bool:
    """Return whether a path is a held file whose owner has ended; False if nobody can tell."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held, or without locks
        return False
    else:
        return True
    finally:
        os.close(descriptor)
