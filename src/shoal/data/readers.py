"""File formats: IDX, CIFAR-10 binary, a tar of JPEGs, numeric CSV.

Every reader takes plain or gzip files (told by content, not by name), checks all that the format
lets it check, and raises `DataCorrupt` with the file and the byte offset, or the line and column.
Offsets of a gzip file's content count its bytes after decompression.
"""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from shoal.errors import DataCorrupt, DataMissing

Bytes = npt.NDArray[np.uint8]

IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + prod(CIFAR_SHAPE)  # a label byte, then the planes
JPEG_NAME = re.compile(r"train/(\d{5})_(\d)\.jpg")
FLOAT32_MAX = float(np.finfo(np.float32).max)


def corrupt(path: Path, problem: str, *, byte: int) -> NoReturn:
    """Raise `DataCorrupt` for the file and the offset."""
    raise DataCorrupt(f"{path}: at byte {byte}: {problem}")


# -- bytes ---------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """The file's content, decompressed if it is gzip (all its members, their checksums checked)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataMissing(f"{path}: cannot be read ({error.strerror})") from None
    if not data.startswith(b"\x1f\x8b"):
        if path.suffix == ".gz":
            corrupt(path, "not a gzip file, as its name says", byte=0)
        return data
    parts, start = [], 0
    while start < len(data):
        member = zlib.decompressobj(wbits=31)
        rest = memoryview(data)[start:]
        try:
            parts.append(member.decompress(rest))
        except zlib.error as error:
            corrupt(path, f"damaged gzip data ({error})", byte=start + _damage(rest))
        if not member.eof:
            corrupt(path, "the file ends inside its gzip data (truncated?)", byte=len(data))
        # gzip lets a file be padded with zeros
        start = len(data) - len(member.unused_data.lstrip(b"\0"))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _damage(data: memoryview) -> int:
    """Where in `data` decompression fails, to within a chunk: the chunk's first byte."""
    member, chunk = zlib.decompressobj(wbits=31), 512
    for start in range(0, len(data), chunk):
        try:
            member.decompress(data[start : start + chunk])
        except zlib.error:
            return start
    return len(data)


# -- IDX -----------------------------------------------------------------------------------------


def read_idx(path: Path, *, dims: int | None = None) -> npt.NDArray[Any]:
    """The array in an IDX file (the format of MNIST), in native byte order.

    The layout: two zero bytes, a dtype code, the number of dimensions, each dimension as a
    big-endian uint32, then the values in C order.

    Args:
        path: the file, plain or gzip.
        dims: how many dimensions it must have, if that is known.
    """
    data = read_bytes(path)
    if len(data) < 4:
        corrupt(path, "the file ends inside the 4-byte magic number (truncated?)", byte=len(data))
    code, count = data[2], data[3]
    if data[0] or data[1]:
        corrupt(path, f"not an IDX file: the magic number is {data[:4].hex(' ')}", byte=0)
    if code not in IDX_DTYPES:
        corrupt(path, f"unknown IDX dtype code 0x{code:02x}", byte=2)
    if count == 0 or (dims is not None and count != dims):
        wanted = "at least 1" if dims is None else str(dims)
        corrupt(path, f"{count} dimensions where {wanted} must be", byte=3)
    header = 4 + 4 * count
    if len(data) < header:
        corrupt(path, f"the file ends inside the {header}-byte header (truncated?)", byte=len(data))
    shape = tuple(int.from_bytes(data[start : start + 4], "big") for start in range(4, header, 4))
    dtype = np.dtype(IDX_DTYPES[code])
    end = header + prod(shape) * dtype.itemsize
    if len(data) < end:
        corrupt(
            path, f"the file ends, but shape {shape} needs {end} bytes (truncated?)", byte=len(data)
        )
    if len(data) > end:
        corrupt(path, f"{len(data) - end} bytes too many for shape {shape}", byte=end)
    values = np.frombuffer(data, dtype, offset=header).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


# -- CIFAR-10 ------------------------------------------------------------------------------------


def read_cifar(path: Path) -> Bytes:
    """The records of a CIFAR-10 binary file, shape (n, 3073); `split_records` takes them apart."""
    data = read_bytes(path)
    whole, rest = divmod(len(data), CIFAR_RECORD)
    if rest or not whole:
        corrupt(
            path,
            f"record {whole} has {rest} of {CIFAR_RECORD} bytes (truncated?)",
            byte=whole * CIFAR_RECORD,
        )
    records = np.frombuffer(data, np.uint8).reshape(whole, CIFAR_RECORD).copy()
    check_labels(path, records[:, 0], 10, stride=CIFAR_RECORD)
    return records


def split_records(records: Bytes) -> tuple[Bytes, Bytes]:
    """(images (n, 3, 32, 32), labels (n,)) as views of CIFAR-10 records."""
    return records[:, 1:].reshape(len(records), *CIFAR_SHAPE), records[:, 0]


def check_labels(
    path: Path, labels: Bytes, classes: int, *, header: int = 0, stride: int = 1
) -> None:
    """Refuse labels of `classes` or above; label i is at byte `header + i * stride`."""
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        index = int(wrong[0])
        corrupt(
            path,
            f"sample {index} has label {int(labels[index])}, not one of 0 to {classes - 1}",
            byte=header + index * stride,
        )


# -- JPEGs ---------------------------------------------------------------------------------------


def read_jpeg_tar(path: Path) -> Bytes:
    """A tar of 32x32 JPEGs named `train/IIIII_L.jpg` (index, label) as CIFAR-10 records.

    The records are in the order of their indices, which need not be contiguous. Decoding is lossy
    in the last bit: two builds of libjpeg may differ by one in a pixel.
    """
    found: dict[int, Bytes] = {}
    for name, offset, content in _tar_files(path):
        match = JPEG_NAME.fullmatch(name)
        if match is None:
            corrupt(path, f"member {name!r} is not named train/IIIII_L.jpg", byte=offset)
        index, label = int(match[1]), int(match[2])
        if index in found:
            corrupt(path, f"member {name!r} is the second with index {index}", byte=offset)
        record = np.empty(CIFAR_RECORD, np.uint8)
        record[0] = label
        record[1:] = _decode_jpeg(path, name, offset, content).ravel()
        found[index] = record
    if not found:
        corrupt(path, "no train/IIIII_L.jpg in this tar", byte=0)
    return np.stack([found[index] for index in sorted(found)])


def _tar_files(path: Path) -> Iterator[tuple[str, int, bytes]]:
    """(name, offset of the content, content) of each plain file in the tar."""
    data = read_bytes(path)
    offset = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                offset = member.offset_data
                if member.isfile():
                    content = data[offset : offset + member.size]
                    if len(content) < member.size:
                        corrupt(
                            path,
                            f"the tar ends inside {member.name!r} (truncated?)",
                            byte=len(data),
                        )
                    yield member.name.removeprefix("./"), offset, content
            # tarfile takes a damaged header after the first for the end; the real end is zeros.
            offset = archive.offset
            if data[offset : offset + tarfile.BLOCKSIZE] != bytes(tarfile.BLOCKSIZE):
                corrupt(path, "no tar header and no end mark here (truncated?)", byte=offset)
    except tarfile.TarError as error:
        corrupt(path, f"not a whole tar file ({error})", byte=offset)


def _decode_jpeg(path: Path, name: str, offset: int, content: bytes) -> Bytes:
    from PIL import Image  # slow to import, and few runs need it

    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        corrupt(path, f"{name!r} is not a whole JPEG ({error})", byte=offset)
    planes = pixels.transpose(2, 0, 1)
    if planes.shape != CIFAR_SHAPE:
        height, width = pixels.shape[:2]
        corrupt(path, f"{name!r} is {width}x{height} pixels, not 32x32", byte=offset)
    return planes


# -- CSV -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A numeric CSV file: features, and the last column as classes."""

    features: npt.NDArray[np.float32]  # (rows, columns - 1)
    labels: npt.NDArray[np.int64]  # (rows,), 0 <= label < len(classes)
    classes: tuple[str, ...]  # what each label stands for, in sorted order
    header: tuple[str, ...]  # column names, or empty where the file has none
    dropped: int  # rows left out because a value was missing


def read_csv(path: Path, *, header: bool | None = None) -> Table:
    """A comma-separated file of numbers whose last column is the class, a number or a word.

    Rows with a `?` for a missing value are left out, and counted.

    Args:
        path: the file, plain or gzip, UTF-8.
        header: whether the first line names the columns. None: it does if no field of it is a
            number or `?` (so that one bad field in a first line of numbers is still an error).
    """
    rows = _csv_rows(path)
    line, first = next(rows, (1, []))
    if len(first) < 2:
        raise DataCorrupt(
            f"{path}: line {line}: needs a feature and a class, has {len(first)} fields"
        )
    if header is None:
        header = not any(field == "?" or _number(field) is not None for field in first)
    names = tuple(first) if header else ()

    features, labels, lines, dropped = array("f"), list[str](), array("q"), 0
    body = rows if header else chain([(line, first)], rows)
    for line, fields in body:
        if len(fields) != len(first):
            raise DataCorrupt(
                f"{path}: line {line}: {len(fields)} fields where the first line has {len(first)}"
            )
        if "?" in fields:
            dropped += 1
            continue
        features.extend(_numbers(path, line, fields[:-1]))
        labels.append(fields[-1])
        lines.append(line)
    if not labels:
        raise DataCorrupt(f"{path}: line {line}: no complete row ({dropped} with missing values)")
    codes, classes = _classes(path, labels, lines, len(first))
    values = np.frombuffer(features, np.float32).reshape(len(labels), len(first) - 1)
    return Table(values, codes, classes, names, dropped)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, stripped fields) of each line that is not blank."""
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        corrupt(path, f"not UTF-8 text ({error.reason})", byte=error.start)
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        for fields in reader:
            if any(fields):
                yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as error:
        raise DataCorrupt(f"{path}: line {reader.line_num}: {error}") from None


def _number(field: str) -> float | None:
    """The number that `field` spells, if a float32 can hold it."""
    try:
        value = float(field)
    except ValueError:
        return None
    # Python's own spellings are not a data file's: 1_000 is a number to it, and so is nan.
    return value if "_" not in field and abs(value) <= FLOAT32_MAX else None


def _numbers(path: Path, line: int, fields: list[str]) -> Iterator[float]:
    for column, field in enumerate(fields, 1):
        value = _number(field)
        if value is None:
            raise DataCorrupt(f"{path}: line {line}, column {column}: {field!r} is not a number")
        yield value


def _classes(
    path: Path, labels: list[str], lines: array[int], column: int
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Labels as 0, 1, ... in sorted order: by value if the first is a number, else as words."""
    if _number(labels[0]) is None:
        names = sorted(set(labels))
        code = {name: index for index, name in enumerate(names)}
        return np.array([code[label] for label in labels], np.int64), tuple(names)
    values = []
    for line, label in zip(lines, labels, strict=True):
        value = _number(label)
        if value is None or not value.is_integer():
            raise DataCorrupt(
                f"{path}: line {line}, column {column}: the class {label!r} is not a whole number"
                " (the last column is the class)"
            )
        values.append(int(value))
    known, codes = np.unique(np.array(values, np.float64), return_inverse=True)
    return codes.astype(np.int64), tuple(str(int(value)) for value in known)
