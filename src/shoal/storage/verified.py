"""Files of tensors with two checksums: of the tensors, and of the metadata.

Shards, checkpoints and workers' states are such files. Each is written whole. Only functions that
take or return tensors import torch: a command that looks at checkpoints starts without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from safetensors import SafetensorError, safe_open

from shoal.errors import DataMissing
from shoal.storage.files import (
    FORMAT,
    FORMAT_KEY,
    check_format,
    damaged,
    make_folder,
    open_file,
    write_whole,
)

if TYPE_CHECKING:
    from torch import Tensor

CRC, TOLD_CRC = "crc32", "told"  # in the metadata: the checksums of tensors, and of metadata
DTYPES = {  # names in safetensors -> names in torch
    **{f"I{bits}": f"torch.int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"torch.uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"torch.float{bits}" for bits in (16, 32, 64)},
    "BF16": "torch.bfloat16",
    "BOOL": "torch.bool",
}
NOT_AS_WRITTEN = "its rows are not as they were written"
HEADER_AT = 8  # the bytes before it say how long the header is


def write_verified(path: Path, tensors: Mapping[str, Tensor], told: Mapping[str, str]) -> str:
    """Write a file whole or not at all; return the checksum of its tensors.

    told:  the metadata, to which the format and both checksums are added
    """
    from safetensors.torch import save_file

    metadata = {**told, FORMAT_KEY: str(FORMAT), CRC: str(_checksum(tensors))}
    metadata[TOLD_CRC] = str(_told(metadata))
    make_folder(path.parent)
    write_whole(path, lambda fresh: save_file(dict(tensors), fresh, metadata))
    return metadata[CRC]


def read_verified(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read and verify the tensors and the metadata of a file.

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
        raise damaged(path, NOT_AS_WRITTEN)
    return tensors, metadata


class _Place(msgspec.Struct):
    """The type and the shape of a tensor in a file, and where its bytes begin and end."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def check_verified(path: Path) -> None:
    """Check the checksums of a file.

    Its bytes are mapped, not copied, and torch is not imported, unless a tensor has a type that
    `DTYPES` lacks.

    Raises:
        DataMissing, DataCorrupt, UnknownFormat: as `read_verified`
    """
    told = read_told(path)
    try:
        with open_file(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            whole = memoryview(data)
            try:
                found = _checksum_of(whole)
            finally:
                whole.release()
    except (OSError, ValueError) as error:
        raise damaged(path, f"it cannot be read ({error})") from None
    if found is None:
        read_verified(path)
    elif told.get(CRC) != str(found):
        raise damaged(path, NOT_AS_WRITTEN)


def _checksum_of(data: memoryview) -> int | None:
    """Return the checksum of the tensors in a file's bytes; None if `DTYPES` lacks a type."""
    begin = HEADER_AT + int.from_bytes(data[:HEADER_AT], "little")
    header = msgspec.json.decode(data[HEADER_AT:begin], type=dict[str, msgspec.Raw])
    header.pop("__metadata__", None)
    places = {name: msgspec.json.decode(raw, type=_Place) for name, raw in sorted(header.items())}
    if any(place.dtype not in DTYPES for place in places.values()):
        return None
    shapes = [(name, DTYPES[place.dtype], place.shape) for name, place in places.items()]
    found = zlib.crc32(msgspec.json.encode(shapes))
    for place in places.values():
        first, end = place.data_offsets
        found = zlib.crc32(data[begin + first : begin + end], found)
    return found


def read_told(path: Path) -> dict[str, str]:
    """Read and verify the metadata of a file, without its tensors.

    Raises:
        DataMissing, DataCorrupt, UnknownFormat: as `read_verified`
    """
    with _opened(path, "np") as file:  # numpy, so that torch is not imported
        metadata = file.metadata() or {}
    _check_told(path, metadata)
    return metadata


def read_some(path: Path, prefix: str) -> dict[str, Tensor]:
    """Read the tensors whose names begin with `prefix` from a file that was verified before.

    The names are returned without the prefix.

    Raises:
        DataMissing, DataCorrupt: it is not there any more, or cannot be read
    """
    with _opened(path) as file:
        names = [name for name in list(file.keys()) if name.startswith(prefix)]
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


@contextmanager
def _opened(path: Path, framework: str = "pt") -> Iterator[Any]:
    try:
        open_file(path).close()  # not what `safe_open` would wait for
        with safe_open(path, framework) as file:
            yield file
    except FileNotFoundError:
        raise DataMissing(f"{path} does not exist") from None
    except (SafetensorError, OSError, RuntimeError, ValueError, MemoryError) as error:
        raise damaged(path, f"it cannot be read ({error})") from None


def _check_told(path: Path, metadata: Mapping[str, str]) -> None:
    found = metadata.get(TOLD_CRC)
    if found is None:  # as of another version
        check_format(path, metadata.get(FORMAT_KEY))
    if found != str(_told(metadata)):
        raise damaged(path, "its metadata are not as they were written")
    check_format(path, metadata.get(FORMAT_KEY))


def _told(metadata: Mapping[str, str]) -> int:
    """Return the checksum of the metadata."""
    told = sorted((name, text) for name, text in metadata.items() if name != TOLD_CRC)
    return zlib.crc32(msgspec.json.encode(told))


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """Return the checksum of the tensors."""
    from shoal.tables.snapshots import crc32

    shapes = [(name, str(each.dtype), list(each.shape)) for name, each in sorted(tensors.items())]
    found = zlib.crc32(msgspec.json.encode(shapes))
    return crc32([tensors[name] for name in sorted(tensors)], found)
