"""HostFiles: what the processes of a run leave in its folder on one host, and what is sent there.

Names are relative to the folder, with "/" between their parts.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from errno import ENOENT
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import ClassVar, NamedTuple

from shoal.errors import NotTrusted
from shoal.storage.files import make_folder, open_file
from shoal.storage.run_folder import EVENTS, HEADER_BYTES_MAX, header_of

INPUTS = "inputs"  # in the folder of a host: what is sent there


class FileState(NamedTuple):
    """The size of a file in bytes, and when it was changed, in ns of its host's clock."""

    size: int
    modified: int


class HostFiles(ABC):
    """The folder of a run on one host.

    All methods raise OSError: there is no such file, it cannot be written, or the host is gone
    (ConnectionError).

    Attributes:
        label: the host's name.
        path: the path of the folder there.
        ahead_s: how many seconds the host's clock is ahead of that of the command's host.
        elsewhere: whether the host may be another machine.
    """

    label: str
    path: Path
    ahead_s: float = 0.0
    elsewhere: ClassVar[bool] = False

    def mark(self) -> str:
        """Return the mark of the folder, as `RunFolder.mark`."""
        try:
            header = self.read(EVENTS, 0, HEADER_BYTES_MAX)
        except FileNotFoundError:
            return ""
        return header_of(header.partition(b"\n")[0]).mark

    @abstractmethod
    def sees(self, path: Path, size: int) -> bool:
        """Return whether a file of the command's host, by its absolute path, is on this one too.

        size:  its size: another file may have that path here
        """

    @abstractmethod
    def listed(self) -> dict[str, FileState]:
        """Return what processes have left, by name; not what was sent, nor unfinished files."""

    @abstractmethod
    def state(self, name: str) -> FileState:
        """Return the state of a file."""

    @abstractmethod
    def read(self, name: str, start: int, size: int) -> bytes:
        """Return a part of a file: `size` bytes, or fewer at its end."""

    @abstractmethod
    def digest(self, name: str, start: int, size: int) -> str:
        """Return the SHA-256 of such a part as hexadecimal digits."""

    @abstractmethod
    def put(self, name: str, start: int, data: bytes, last: bool) -> None:
        """Write a part of a new file, in order from `start` 0; with the last the file is there.

        Its name begins with "inputs/": nothing else is sent. The last part may come twice.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, and its folder if that is empty; do nothing if there is none.

        Its name begins with "checkpoints/": nothing else is removed.
        """


class LocalFiles(HostFiles):
    """A folder of this machine.

    root:  what stands for the file system of the host
    """

    def __init__(self, folder: Path, label: str = "", root: Path = Path("/")) -> None:
        self.label = label
        self.path = folder.resolve()
        self._root = root.resolve()

    def sees(self, path: Path, size: int) -> bool:
        found = path.resolve()
        return found.is_relative_to(self._root) and path.is_file() and path.stat().st_size == size

    def listed(self) -> dict[str, FileState]:
        if not self.path.is_dir():
            raise FileNotFoundError(ENOENT, "the run's folder is not there", str(self.path))
        found = {}
        for parent, folders, names in os.walk(self.path):
            inside = Path(parent).relative_to(self.path)
            folders[:] = [each for each in folders if (inside / each).as_posix() != INPUTS]
            for name in filter(_is_whole, names):
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    status = Path(parent, name).lstat()
                    if S_ISREG(status.st_mode):
                        found[(inside / name).as_posix()] = _state_of(status)
        return found

    def state(self, name: str) -> FileState:
        return _state_of(below(self.path, name).stat())

    def read(self, name: str, start: int, size: int) -> bytes:
        with open_file(below(self.path, name)) as file:
            file.seek(start)
            return file.read(size)

    def digest(self, name: str, start: int, size: int) -> str:
        return sha256(self.read(name, start, size)).hexdigest()

    def put(self, name: str, start: int, data: bytes, last: bool) -> None:
        path = below(self.path, name)
        make_folder(path.parent)
        fresh = path.with_name(f".{path.name}.part")
        if last and not fresh.exists() and path.exists() and start:
            return  # this part has come before
        with fresh.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.write(data)
        if last:
            fresh.rename(path)

    def remove(self, name: str) -> None:
        path = below(self.path, name)
        path.unlink(missing_ok=True)
        if path.parent != self.path:
            with suppress(OSError):  # it has other files, or is gone
                path.parent.rmdir()


def _is_whole(name: str) -> bool:
    """Return whether a file has its final name, which other hosts can be told."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return not name.startswith(".")


def _state_of(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns)


def below(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, by a name that another host has said.

    Raises:
        NotTrusted: the name leads out of the folder

    >>> below(Path("/runs/a"), "logs/worker-0.log")
    PosixPath('/runs/a/logs/worker-0.log')
    """
    path = folder / name
    if not name or ".." in path.parts or not path.resolve().is_relative_to(folder.resolve()):
        raise NotTrusted(f"a host names a file that is not below the run's folder: {name!r:.200}")
    return path
