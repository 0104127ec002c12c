"""Files as streams: decompressed piece by piece, and read in lines whose length has a bound.

A gzip file of a megabyte can hold a gigabyte, and a file without a newline is one line. So no
reader holds more of a file at once than a line of LINE_BYTES_MAX, and the decompressed bytes of
CHUNK_BYTES.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from shoal.errors import DataCorrupt, DataMissing
from shoal.storage.files import open_file

LINE_BYTES_MAX = 16 << 20  # of a line in any text that is read, its newline included
BLOCK_BYTES = 1 << 20  # what is read at once
CHUNK_BYTES = 8 << 10  # of compressed data, each byte of which holds 1032 bytes at most
DAMAGE_BYTES = 512  # to within which damage of compressed data is found
GLOB = "*?["
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
PACKED = {  # the first bytes of files of other compressors
    "bzip2": re.compile(rb"BZh[1-9]1AY&SY"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "zip": re.compile(rb"PK\x03\x04"),
}
PACKED_BYTES = 10  # the first bytes that tell one from another
UTF8_MARK = b"\xef\xbb\xbf"  # byte-order marks
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def corrupt(path: Path, problem: str, *, byte: int) -> NoReturn:
    """Raise `DataCorrupt` for the file and the offset."""
    raise DataCorrupt(f"{path}: at byte {byte}: {problem}")


def files_of(path: str) -> list[Path]:
    """Return the files of a path: itself, those of a folder, or those that a pattern matches.

    Files of a folder whose names begin with a dot or an underscore are left out.

    Raises:
        DataMissing: a folder without files, or a pattern that matches none.
    """
    found = [Path(path)]
    if found[0].is_dir():
        found = sorted(each for each in found[0].iterdir() if each.is_file())
        found = [each for each in found if not each.name.startswith((".", "_"))]
    elif not found[0].exists():
        parts = found[0].parts
        at = next((n for n, part in enumerate(parts) if any(c in part for c in GLOB)), None)
        if at is not None:
            matched = Path(*parts[:at]).glob("/".join(parts[at:]))
            found = sorted(each for each in matched if each.is_file())
    if not found:
        raise DataMissing(f"{path}: no files there")
    return found


def opened(path: Path) -> IO[bytes]:
    """Open a file to read it; a gzip file (told by its content) is decompressed meanwhile.

    All members of a gzip file are read, and their checksums checked: reading raises `DataCorrupt`.

    Raises:
        DataMissing: it cannot be opened
        DataCorrupt: it is compressed, and not by gzip
    """
    try:
        file = open_file(path)
        start = file.peek(PACKED_BYTES)
    except OSError as error:
        raise DataMissing(f"{path}: cannot be read ({error.strerror})") from None
    for name, mark in PACKED.items():
        if mark.match(start):
            file.close()
            raise DataCorrupt(f"{path}: it is compressed by {name}; decompress it, or use gzip")
    gzipped = start.startswith(GZIP)
    return io.BufferedReader(Gunzip(path, file), BLOCK_BYTES) if gzipped else file


def unmarked(path: Path, start: bytes) -> bytes:
    """Return the first bytes of a text in UTF-8 without a byte-order mark.

    Raises:
        DataCorrupt: the mark is that of UTF-16
    """
    if start.startswith(UTF16_MARKS):
        raise DataCorrupt(
            f"{path}: line 1: the text is in UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
        )
    return start.removeprefix(UTF8_MARK)


def is_gunzipped(file: IO[bytes]) -> bool:
    """Return whether `opened` decompresses a file."""
    return isinstance(getattr(file, "raw", None), Gunzip)


def lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line with its newline) of a file; the last may have no newline.

    Raises:
        DataCorrupt: a line of more than LINE_BYTES_MAX bytes
    """
    number = 1
    while line := file.readline(LINE_BYTES_MAX + 1):
        _check(path, number, len(line))
        yield number, line
        number += 1


def blocks(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines; end the last line if it has no newline.

    Raises:
        DataCorrupt: as `lines`
    """
    number, left = 1, b""
    while block := file.read(BLOCK_BYTES):
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            _check(path, number, len(left) + block.index(b"\n") + 1)
            yield left + whole + newline
            number, left = number + block.count(b"\n"), b""
        left += rest
        _check(path, number, len(left))
    if left:
        yield left + b"\n"


def pieces(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; split a line longer than a block into pieces at spaces.

    Raises:
        DataCorrupt: more than LINE_BYTES_MAX bytes without a space
    """
    number, left = 1, b""
    while block := file.readline(BLOCK_BYTES):
        left += block
        if block.endswith(b"\n"):
            yield left
            number, left = number + 1, b""
        elif len(block) == BLOCK_BYTES:
            words, space, rest = left.rpartition(b" ")
            if space:
                yield words + space
                left = rest
            _check(path, number, len(left))
    if left:
        yield left


def _check(path: Path, number: int, nbytes: int) -> None:
    if nbytes > LINE_BYTES_MAX:
        raise DataCorrupt(
            f"{path}: line {number} is longer than {LINE_BYTES_MAX} bytes (no text file?)"
        )


class Gunzip(io.RawIOBase):
    """The content of a gzip file, decompressed as it is read."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._read = 0  # bytes of the file that were read
        self._member = zlib.decompressobj(wbits=31)
        self._begun = 0  # where the member begins
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            chunk = self._file.read(CHUNK_BYTES)
            if not chunk:
                if not self._member.eof:
                    problem = "the file ends inside its gzip data (truncated?)"
                    corrupt(self._path, problem, byte=self._read)
                return 0
            self._read += len(chunk)
            self._out = memoryview(self._decompressed(chunk))
        count = min(len(buffer), len(self._out))
        buffer[:count], self._out = self._out[:count], self._out[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _decompressed(self, chunk: bytes) -> bytes:
        found = []
        while chunk:
            if self._member.eof:
                chunk = chunk.lstrip(b"\0")  # gzip lets a file be padded with zeros
                if not chunk:
                    break
                self._member = zlib.decompressobj(wbits=31)
                self._begun = self._read - len(chunk)
            try:
                found.append(self._member.decompress(chunk))
            except zlib.error as error:
                corrupt(self._path, f"damaged gzip data ({error})", byte=self._damage())
            chunk = self._member.unused_data
        return b"".join(found)

    def _damage(self) -> int:
        """Return the offset of the DAMAGE_BYTES in which decompression of the member fails."""
        member, at = zlib.decompressobj(wbits=31), self._begun
        with self._path.open("rb") as file:
            file.seek(at)
            while data := file.read(DAMAGE_BYTES):
                try:
                    member.decompress(data)
                except zlib.error:
                    break
                at += len(data)
        return at
