"""Decoded arrays in the cache folder: a file is decompressed once, not by every process.

Unpacking MNIST takes half a second of every worker's start; mapping the unpacked array takes a
millisecond, and all processes of a machine then share one copy in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.storage.files import NOT_ARRAYS, write_whole

SMALLEST_BYTES = 256 << 10  # smaller files are decoded about as fast as their cache is opened
FORMAT = "1"  # part of the key: raise it when a reader's arrays change


def kept(
    folder: Path, source: Path, decode: Callable[[Path], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """`decode(source)`, the array in a file; from the cache `folder` if that has it.

    The key is the source's path, size and time of change: an edited file is decoded again, and its
    old array removed. A cache that cannot be written or read is not used: it only saves time. The
    array is writable, but writing to it changes no file.
    """
    status = source.stat()
    if status.st_size < SMALLEST_BYTES:
        return decode(source)
    place = _digest(str(source.resolve()))
    version = _digest(FORMAT, str(status.st_size), str(status.st_mtime_ns))
    target = folder / f"{source.name}.{place}-{version}.npy"
    with contextlib.suppress(*NOT_ARRAYS):
        # "c": copy on write, which torch accepts without a warning and which leaves the file alone
        mapped: npt.NDArray[Any] = np.load(target, mmap_mode="c", allow_pickle=False)
        return mapped
    array = decode(source)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(target, lambda fresh: _save(fresh, array))
    except OSError:
        return array
    for old in folder.glob(f"{source.name}.{place}-*.npy"):
        if old != target:
            old.unlink(missing_ok=True)
    return array


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    with path.open("xb") as file:  # np.save would append a suffix to a path
        np.save(file, array, allow_pickle=False)


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
