"""Scratch folders: temporary ones of this process, which a later process removes if this is killed.

The owner holds a lock (flock) on the file `lock` in its folder, which the kernel releases when the
owner has ended, however it ended. So a folder whose lock is free is nobody's any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "shoal-"
LOCK = "lock"


class ScratchFolder:
    """A new folder for temporary files, of this user alone; those of dead owners are removed.

    Args:
        name: first part of its name, behind "shoal-".

    Attributes:
        path: the folder.
    """

    def __init__(self, name: str) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
        fresh = self.path / f"{LOCK}.new"
        self._lock: int | None = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):  # this file system has no locks: nobody removes it later
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            fresh.rename(self.path / LOCK)  # nobody sees a lock that is not held

    def remove(self) -> None:
        """Remove it with all that is in it; further calls do nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def remove_abandoned(parent: Path) -> None:
    """Remove this user's scratch folders whose owners have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, another's, none of ours, or gone by now
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
