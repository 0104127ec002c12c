"""Scratch folders: temporary folders, which a later process removes if their owner is killed.

The held file `lock` in a folder tells whether its owner has ended.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from shoal.storage.held_file import HeldFile, is_abandoned

PREFIX = "shoal-"
LOCK = "lock"


class ScratchFolder:
    """A new folder for temporary files, of this user alone; folders of ended owners are removed.

    Args:
        name: the first part of the folder's name, after "shoal-".

    Attributes:
        path: the folder.
    """

    def __init__(self, name: str) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
        self._lock: HeldFile | None = HeldFile(self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder with all that is in it; do nothing in further calls."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            self._lock = None


def remove_abandoned(parent: Path) -> None:
    """Remove this user's scratch folders whose owners have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, another's, none of ours, or gone by now
            status = folder.lstat()
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if mine and is_abandoned(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)
