"""Files of tensors with checksums: of the tensors, and of what the file says of them.

Shards, checkpoints and workers' states are such files. Each is written whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.errors import DataMissing
from shoal.storage.files import (
    FORMAT,
    FORMAT_KEY,
    check_format,
    damaged,
    make_folder,
    write_whole,
)
from shoal.tables.snapshots import crc32

CRC, TOLD_CRC = "crc32", "told"  # in the metadata: the checksums of tensors, and of metadata


def write_verified(path: Path, tensors: Mapping[str, Tensor], told: Mapping[str, str]) -> str:
    """Write a file whole or not at all, with checksums of its tensors and of what it says.

    Returns the first of them.
    """
    metadata = {**told, FORMAT_KEY: str(FORMAT), CRC: str(_checksum(tensors))}
    metadata[TOLD_CRC] = str(_told(metadata))
    make_folder(path.parent)
    write_whole(path, lambda fresh: save_file(dict(tensors), fresh, metadata))
    return metadata[CRC]


def read_verified(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A file's tensors, and what it says.

    Raises:
        DataMissing: it does not exist
        DataCorrupt: it is not as it was written, or cannot be read
        UnknownFormat: another version of Shoal has written it
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = file.metadata() or {}
    _check_told(path, metadata)
    if metadata.get(CRC) != str(_checksum(tensors)):
        raise damaged(path, "its rows are not as they were written")
    return tensors, metadata


def read_told(path: Path) -> dict[str, str]:
    """What a file says of its tensors, which are not looked at.

    Raises:
        DataMissing, DataCorrupt, UnknownFormat: as `read_verified`
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
    _check_told(path, metadata)
    return metadata


def read_some(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without it, of a file that was verified before.

    Raises:
        DataMissing, DataCorrupt: it is not there any more, or cannot be read
    """
    with _opened(path) as file:
        names = [name for name in list(file.keys()) if name.startswith(prefix)]
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except FileNotFoundError:
        raise DataMissing(f"{path} does not exist") from None
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise damaged(path, f"it cannot be read ({error})") from None


def _check_told(path: Path, metadata: Mapping[str, str]) -> None:
    found = metadata.get(TOLD_CRC)
    if found is None:  # as of another version
        check_format(path, metadata.get(FORMAT_KEY))
    if found != str(_told(metadata)):
        raise damaged(path, "its metadata are not as they were written")
    check_format(path, metadata.get(FORMAT_KEY))


def _told(metadata: Mapping[str, str]) -> int:
    """Checksum of what a file says of its rows."""
    told = sorted((name, text) for name, text in metadata.items() if name != TOLD_CRC)
    return zlib.crc32(msgspec.json.encode(told))


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """Checksum of the rows."""
    shapes = [(name, str(each.dtype), list(each.shape)) for name, each in sorted(tensors.items())]
    found = zlib.crc32(msgspec.json.encode(shapes))
    return crc32([tensors[name] for name in sorted(tensors)], found)
