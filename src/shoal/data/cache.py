"""Decoded arrays in the cache folder: a file is decompressed once, not by every process.

Unpacking MNIST takes half a second of every worker's start; to check and map the unpacked array
takes some milliseconds, and all processes of a machine then share one copy in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from glob import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import NotTrusted
from shoal.ownership import private_folder
from shoal.storage.files import NOT_ARRAYS, write_whole

SMALLEST_BYTES = 256 << 10  # smaller files are decoded about as fast as their cache is opened
FORMAT = "2"  # part of the key: raise it when a reader's arrays change
log = logging.getLogger("shoal.data")


def kept(
    folder: Path,
    source: Path,
    decode: Callable[[Path], npt.NDArray[Any]],
    files: Sequence[Path] = (),
) -> npt.NDArray[Any]:
    """Return `decode(source)`, the array in a file; from the cache `folder` if that has it.

    files:  the files that count, where the source is a folder

    The key is the source's path, and the size and time of change of its files: what was edited is
    decoded again, and its old array removed. A file of the cache has its checksum in
    its name; if it differs, the source is decoded again. A cache that cannot be written or read, or
    in which another user can write, is not used: it only saves time. The array is writable, but
    writing to it changes no file.
    """
    nbytes, version = _state(source, files or [source])
    if nbytes < SMALLEST_BYTES or not _is_private(folder):
        return decode(source)
    place = f"{source.name}.{_digest(str(source.resolve()))}"
    for found in folder.glob(f"{escape(place)}-{version}-*.npy"):
        with contextlib.suppress(*NOT_ARRAYS):
            whole = zlib.crc32(np.memmap(found, np.uint8, "r").data)
            if found.stem.endswith(f"-{whole:08x}"):
                # "c": copy on write, which torch accepts without a warning and which leaves the
                # file alone
                mapped: npt.NDArray[Any] = np.load(found, mmap_mode="c", allow_pickle=False)
                return mapped
        log.warning("%s is not as it was written: %s is decoded again", found, source)
    array = decode(source)
    header, values = _header(array), np.ascontiguousarray(array).data
    whole = zlib.crc32(values, zlib.crc32(header))
    target = folder / f"{place}-{version}-{whole:08x}.npy"
    try:
        write_whole(target, lambda fresh: _save(fresh, header, values))
    except OSError:
        return array
    for old in folder.glob(f"{escape(place)}-*.npy"):
        if old != target:
            old.unlink(missing_ok=True)
    return array


def _state(source: Path, files: Sequence[Path]) -> tuple[int, str]:
    """Return the bytes of files, and a digest that differs once one of them is edited."""
    words, nbytes = [FORMAT], 0
    for each in files:
        status = each.stat()
        nbytes += status.st_size
        name = str(each.relative_to(source))
        words += [name, str(status.st_size), str(status.st_mtime_ns)]
    return nbytes, _digest(*words)


@cache
def _is_private(folder: Path) -> bool:
    """Return whether only this user can change the cache; log a warning once if not."""
    try:
        private_folder(folder)
    except (NotTrusted, OSError) as error:
        log.warning("decoded data are not kept, because %s", error)
        return False
    return True


def _header(array: npt.NDArray[Any]) -> bytes:
    """Return the header of a .npy file with values in C order, as np.save writes it."""
    header, fields = BytesIO(), np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(header, {**fields, "fortran_order": False})
    return header.getvalue()


def _save(path: Path, *pieces: bytes | memoryview) -> None:
    with path.open("xb") as file:
        file.writelines(pieces)


def _digest(*words: str) -> str:
    return hashlib.sha256(os.fsencode("\0".join(words))).hexdigest()[:8]
