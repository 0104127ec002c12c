"""Small files in the formats of the data sets."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from shoal.data.readers import CIFAR_RECORD

RAMP = np.arange(CIFAR_RECORD - 1, dtype=np.int64)


def write(path: Path, content: bytes) -> Path:
    """Write a file, as gzip where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def idx(shape: Sequence[int], code: int = 0x08, values: bytes | None = None) -> bytes:
    content = bytes(i % 251 for i in range(int(np.prod(shape)))) if values is None else values
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape) + content


def cifar(labels: Sequence[int], pixels: npt.NDArray[Any] = RAMP) -> bytes:
    """Records of CIFAR-10; each has these pixels, plus its label."""
    return b"".join(
        bytes([label]) + ((pixels + label) % 256).astype(np.uint8).tobytes() for label in labels
    )


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (32, 32)) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, colour).save(content, "JPEG", quality=95)
    return content.getvalue()


def png(grey: int, size: tuple[int, int] = (4, 4)) -> bytes:
    content = io.BytesIO()
    Image.new("L", size, grey).save(content, "PNG")
    return content.getvalue()


def tar(members: Mapping[str, bytes], folders: Sequence[str] = ("train",)) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in folders:
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()
