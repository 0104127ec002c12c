"""Files that a run leaves: each is written whole or not at all, and says its format's version."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from shoal.errors import UnknownFormat

FORMAT = 1  # of all files that a run leaves; raise it when one of them changes
FORMAT_KEY = "shoal_format"  # in a file's metadata


def write_whole(path: Path, content: bytes | str | Callable[[Path], object]) -> None:
    """Write a file that readers see as it was before, or whole; also after a power cut.

    content:  what is in it; or a function that writes it to the path that it is given
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
    """Write a file as `write_whole` does, which nobody but its owner may read."""

    def create(fresh: Path) -> None:
        fresh.touch(0o600, exist_ok=False)
        fresh.write_text(content)

    write_whole(path, create)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it is in, where they are missing; their names are on disk.

    mode:  of those that are made, less the process's umask

    Raises:
        FileExistsError: it is a file
    """
    if path.is_dir():
        return
    make_folder(path.parent, mode)
    path.mkdir(mode, exist_ok=True)  # another process may make it at the same time
    flush(path.parent)


def flush(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_format(path: Path, found: object) -> None:
    """Refuse a file that another version of Shoal has written.

    found:  the version that it says; None where it says none

    Raises:
        UnknownFormat: it is not this version's
    """
    if str(found) != str(FORMAT):
        said = "does not say its format" if found is None else f"has format {found}"
        raise UnknownFormat(
            f"{path} {said}, and this version of Shoal reads format {FORMAT}: use the version that "
            "wrote it"
        )
