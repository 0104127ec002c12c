"""Files that a run leaves: each is written whole or not at all, and says its format's version."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from shoal.errors import DataCorrupt, DataMissing, ShoalError, UnknownFormat

if TYPE_CHECKING:
    import numpy as np

FORMAT = 4  # of all files that a run leaves; raise it when one of them changes
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk without room
WHOLE_BYTES_MAX = 1 << 28  # of a file that is read whole: texts, logs of leases, journals
FORMAT_KEY = "shoal_format"  # in a file's metadata
NOT_ARRAYS = (  # what numpy raises where a file of arrays is damaged
    *(OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, MemoryError),
    *(ArithmeticError, SyntaxError, TokenError, zipfile.BadZipFile, zlib.error),
)


def write_whole(path: Path, content: bytes | str | Callable[[Path], object]) -> None:
    """Write a file that readers see as it was before, or whole, even after a power cut.

    content:  the content, or a function that writes it to the path that it is given
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        if callable(content):
            content(fresh)
        else:
            data = content.encode() if isinstance(content, str) else content
            with fresh.open("xb") as file:
                file.write(data)
        flush(fresh)
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    flush(path.parent)


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner may read, as `write_whole` does."""

    def create(fresh: Path) -> None:
        fresh.touch(0o600, exist_ok=False)
        fresh.write_text(content)

    write_whole(path, create)


def damaged(path: Path, problem: object) -> DataCorrupt:
    """Return the error for a file that is not as it was written."""
    return DataCorrupt(f"{path} is damaged: {problem}; restore it from a copy")


def unreadable(path: Path, error: OSError) -> DataCorrupt:
    """Return the error for a file that the system does not let this process read."""
    return DataCorrupt(f"{path} cannot be read: {error.strerror}; it has to be a file of yours")


def open_file(path: Path) -> BufferedReader:
    """Open a regular file to read it.

    Other files may have no end, or may not open before somebody writes to them.

    Raises:
        OSError: it cannot be opened, or is not a regular file
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path, at_most: int = -1) -> bytes:
    """Read the content of a file, or its first `at_most` bytes.

    Raises:
        DataMissing: it does not exist
        DataCorrupt: it cannot be read, or is too large to be read whole
    """
    try:
        with open_file(path) as file:
            if at_most < 0 and (size := os.fstat(file.fileno()).st_size) > WHOLE_BYTES_MAX:
                raise damaged(path, f"it has {size} bytes, more than {WHOLE_BYTES_MAX}")
            return file.read(at_most)
    except FileNotFoundError:
        raise DataMissing(f"{path} does not exist") from None
    except OSError as error:
        raise unreadable(path, error) from None


def read_text(path: Path) -> str:
    """Read the content of a file as text.

    Raises:
        DataMissing: it does not exist
        DataCorrupt: it cannot be read, or is not UTF-8
    """
    try:
        return read_whole(path).decode()
    except UnicodeDecodeError as error:
        raise damaged(path, f"it is not text ({error})") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file.

    Raises:
        DataMissing: it does not exist
        DataCorrupt: it has none
    """
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise damaged(path, "it has no JSON object")
    return found


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Read the arrays of these names in a .npz file.

    Raises:
        DataMissing: it does not exist
        DataCorrupt: it lacks one, or is damaged
    """
    import numpy as np

    try:
        with open_file(path) as file, np.load(file, allow_pickle=False) as saved:
            found = [saved[name] for name in names]
    except FileNotFoundError:
        raise DataMissing(f"{path} does not exist") from None
    except NOT_ARRAYS as error:
        raise damaged(path, error) from None
    if not all(isinstance(each, np.ndarray) for each in found):  # bytes, where it names none
        raise damaged(path, "an entry is no array")
    return found


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before the text of each `ShoalError` of a `with` block."""
    try:
        yield
    except ShoalError as error:
        raise type(error)(f"{path}: {error.message}", error.trace) from None


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its missing parents, and flush their names to disk.

    mode:  the mode of the folders that are made, less the process's umask

    Raises:
        FileExistsError: it is a file
    """
    if path.is_dir():
        return
    make_folder(path.parent, mode)
    path.mkdir(mode, exist_ok=True)  # another process may make it at the same time
    flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_format(path: Path, found: object) -> None:
    """Refuse a file that another version of Shoal has written.

    found:  the format that the file states; None if it states none

    Raises:
        UnknownFormat: the file does not state this version's format
    """
    if str(found) != str(FORMAT):
        said = "does not say its format" if found is None else f"has format {found}"
        raise UnknownFormat(
            f"{path} {said}, and this version of Shoal reads format {FORMAT}: use the version that "
            "wrote it"
        )
