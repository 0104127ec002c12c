"""File formats: IDX, CIFAR-10 binary (files, or a tar of them), numeric CSV.

Every reader takes plain or gzip files (told by content, not by name), checks all that the format
lets it check, and raises `DataCorrupt` with the file and the byte offset, or the line and column.
Offsets of a gzip file's content count its bytes after decompression. How much of a file is held in
memory has a bound, even if it is compressed: the bound of a line (`streams.LINE_BYTES_MAX`), what
the file's header says, or the bound of the data set.
"""

from __future__ import annotations

import csv
import io
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from shoal.data.streams import BLOCK_BYTES, corrupt, is_gunzipped, lines, opened
from shoal.errors import DataCorrupt

Bytes = npt.NDArray[np.uint8]

IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + prod(CIFAR_SHAPE)  # a label byte, then the planes
CIFAR_BYTES_MAX = 60_000 * CIFAR_RECORD  # bytes of a file: CIFAR-10 has so many images
TAR_BYTES_MAX = 512 << 20  # bytes of a tar, decompressed
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = "test_batch.bin"
TRAINED, TESTED, HELD_OUT = range(3)
FLOAT32_MAX = float(np.finfo(np.float32).max)


# -- bytes ---------------------------------------------------------------------------------------


def _opened(path: Path) -> IO[bytes]:
    """Open a file, decompressed if it is gzip; refuse a file that is not gzip, but named .gz."""
    file = opened(path)
    if path.suffix == ".gz" and not is_gunzipped(file):
        file.close()
        corrupt(path, "not a gzip file, as its name says", byte=0)
    return file


def read_bytes(path: Path, at_most: int) -> bytearray:
    """Read the content of a file, decompressed if it is gzip.

    All members of a gzip file are read, and their checksums checked.

    Raises:
        DataCorrupt: damaged gzip data, or more than `at_most` bytes
    """
    with _opened(path) as file:
        data = _up_to(file, at_most + 1)
    if len(data) > at_most:
        corrupt(path, f"longer than {at_most} bytes, the most for such a file", byte=at_most)
    return data


def _up_to(file: IO[bytes], count: int) -> bytearray:
    """Read `count` bytes, or as many as there are, and take memory for no more than these."""
    data = bytearray()
    while block := file.read(min(BLOCK_BYTES, count - len(data))):
        data += block
    return data


# -- IDX -----------------------------------------------------------------------------------------


def read_idx(path: Path, *, dims: int | None = None) -> npt.NDArray[Any]:
    """Read the array in an IDX file (the format of MNIST), in native byte order.

    The layout: two zero bytes, a dtype code, the number of dimensions, each dimension as a
    big-endian uint32, then the values in C order.

    Args:
        path: the file, plain or gzip.
        dims: the number of dimensions that the array must have, if that is known.
    """
    with _opened(path) as file:
        data = _up_to(file, 4)
        if len(data) < 4:
            corrupt(
                path, "the file ends inside the 4-byte magic number (truncated?)", byte=len(data)
            )
        code, count = data[2], data[3]
        if data[0] or data[1]:
            corrupt(path, f"not an IDX file: the magic number is {data[:4].hex(' ')}", byte=0)
        if code not in IDX_DTYPES:
            corrupt(path, f"unknown IDX dtype code 0x{code:02x}", byte=2)
        if count == 0 or (dims is not None and count != dims):
            wanted = "at least 1" if dims is None else str(dims)
            corrupt(path, f"{count} dimensions where {wanted} must be", byte=3)
        header = 4 + 4 * count
        data += _up_to(file, header - 4)
        if len(data) < header:
            corrupt(
                path, f"the file ends inside the {header}-byte header (truncated?)", byte=len(data)
            )
        shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4))
        dtype = np.dtype(IDX_DTYPES[code])
        size = prod(shape) * dtype.itemsize
        content = _up_to(file, size + 1)
    end = header + size
    if len(content) < size:
        found = header + len(content)
        corrupt(
            path, f"the file ends, but shape {shape} needs {end} bytes (truncated?)", byte=found
        )
    if len(content) > size:
        corrupt(path, f"more bytes than shape {shape} needs", byte=end)
    values = np.frombuffer(content, dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)


# -- CIFAR-10 ------------------------------------------------------------------------------------


def read_cifar(path: Path) -> Bytes:
    """Read the records of a CIFAR-10 binary file, shape (n, 3073), for `split_records`."""
    return _records(path, read_bytes(path, CIFAR_BYTES_MAX))


def _records(path: Path, data: bytearray | memoryview, offset: int = 0) -> Bytes:
    """Return the records that begin at a place of a file."""
    whole, rest = divmod(len(data), CIFAR_RECORD)
    if rest or not whole:
        corrupt(
            path,
            f"record {whole} has {rest} of {CIFAR_RECORD} bytes (truncated?)",
            byte=offset + whole * CIFAR_RECORD,
        )
    records = np.frombuffer(data, np.uint8).reshape(whole, CIFAR_RECORD)
    check_labels(path, records[:, 0], 10, header=offset, stride=CIFAR_RECORD)
    return records


def split_records(records: Bytes) -> tuple[Bytes, Bytes]:
    """Return (images (n, 3, 32, 32), labels (n,)) as views of CIFAR-10 records."""
    return records[:, 1:].reshape(len(records), *CIFAR_SHAPE), records[:, 0]


def read_cifar_tar(path: Path) -> npt.NDArray[Any]:
    """Read the records in a tar of CIFAR-10's binary layout, as it is published, as `samples`."""
    parts: dict[str, Bytes] = {}
    for name, offset, content in tar_files(path):
        file = name.rpartition("/")[2]
        if file in parts:
            corrupt(path, f"member {name!r} is there twice", byte=offset)
        if file in (*CIFAR_TRAIN, CIFAR_TEST):
            parts[file] = _records(path, content, offset)
    if lacking := [name for name in (*CIFAR_TRAIN, CIFAR_TEST) if name not in parts]:
        corrupt(path, f"no {', '.join(lacking)} in this tar", byte=0)
    records = np.concatenate([parts[name] for name in (*CIFAR_TRAIN, CIFAR_TEST)])
    found = samples(len(records), CIFAR_SHAPE)
    found["pixels"], found["label"] = split_records(records)
    found["part"][-len(parts[CIFAR_TEST]) :] = TESTED
    return found


def samples(count: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return an array for images, which a cache can keep; its fields are label, part and pixels.

    part: TRAINED, as all are at first, TESTED, or HELD_OUT for tests
    """
    kind = [("label", "<i8"), ("part", "u1"), ("pixels", "u1", shape)]
    found = np.empty(count, np.dtype(kind))
    found["part"] = TRAINED
    return found


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


# -- tar -----------------------------------------------------------------------------------------


def tar_files(path: Path, links: tuple[str, ...] = ()) -> Iterator[tuple[str, int, memoryview]]:
    """Yield (name, offset of the content, content) of each plain file in the tar.

    links:  the ends of names for which a link, whose content is elsewhere, is refused
    """
    data = read_bytes(path, TAR_BYTES_MAX)
    whole = memoryview(data)
    offset = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                offset = member.offset_data
                if member.isfile():
                    content = whole[offset : offset + member.size]
                    if len(content) < member.size:
                        corrupt(
                            path,
                            f"the tar ends inside {member.name!r} (truncated?)",
                            byte=len(data),
                        )
                    yield member.name, offset, content
                elif (member.islnk() or member.issym()) and member.name.lower().endswith(links):
                    corrupt(path, f"member {member.name!r} is a link", byte=member.offset)
            # tarfile takes a damaged header after the first for the end; the real end is zeros.
            offset = archive.offset
            if data[offset : offset + tarfile.BLOCKSIZE] != bytes(tarfile.BLOCKSIZE):
                corrupt(path, "no tar header and no end mark here (truncated?)", byte=offset)
    except tarfile.TarError as error:
        corrupt(path, f"not a whole tar file ({error})", byte=offset)


# -- CSV -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A numeric CSV file: features, and the last column as classes."""

    features: npt.NDArray[np.float32]  # (rows, columns - 1)
    labels: npt.NDArray[np.int64]  # (rows,), 0 <= label < len(classes)
    classes: tuple[str, ...]  # the value or word of each label, in sorted order
    header: tuple[str, ...]  # column names, or empty where the file has none
    dropped: int  # rows left out because a value was missing


def read_csv(path: Path, *, header: bool | None = None) -> Table:
    """Read a comma-separated file of numbers whose last column is the class, a number or a word.

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
    """Yield (line number, stripped fields) of each line that is not blank."""
    reader = csv.reader(_csv_lines(path), skipinitialspace=True, strict=True)
    try:
        for fields in reader:
            if any(fields):
                yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as error:
        raise DataCorrupt(f"{path}: line {reader.line_num}: {error}") from None


def _csv_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text, ended by \\n, \\r\\n or \\r."""
    start = 0
    with _opened(path) as file:
        for number, line in lines(path, file):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                corrupt(path, f"not UTF-8 text ({error.reason})", byte=start + error.start)
            yield from io.StringIO(text, newline="")
            start += len(line)


def _number(field: str) -> float | None:
    """Return the number that `field` spells; None if it spells none that a float32 can hold."""
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
            raise DataCorrupt(
                f"{path}: line {line}, column {column}: {field!r} is not a number, or too large"
            )
        yield value


def _classes(
    path: Path, labels: list[str], lines: array[int], column: int
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Return labels as 0, 1, ... in sorted order, and the value or word of each.

    They are sorted by value if the first label is a number, else as words.
    """
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
