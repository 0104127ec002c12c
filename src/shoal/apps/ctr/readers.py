"""Lines of text as batches of keys and values, read as a stream.

    libsvm   label index:value index:value ...
    dummy    label index index ...                  every value is 1
    criteo   label, 13 integers, 26 categories of hexadecimal digits; tabs between, empty: missing

Labels are 1, and 0 or -1; a file with all three has three classes, and is refused. An index is a
key. A field of criteo's makes the key (column, what is there): a category as it is, an integer
v > 2 by its bucket ⌊ln² v⌋ (the winners of that challenge, Juan et al. 2014), so that 100 and 101
are the same and 1 and 2 are not. Keys may be hashed to fewer bits, as the hashing trick has it
(Weinberger et al. 2009).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from math import inf, log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.apps.ctr.lines import (
    CATEGORIES,
    COLUMN_BITS,
    CRITEO,
    DONE,
    DUMMY,
    FULL,
    INTEGERS,
    LIBSVM,
    MINUS,
    ZERO,
    Rows,
)
from shoal.apps.ctr.spec import Format
from shoal.data.readers import FLOAT32_MAX
from shoal.data.streams import blocks, lines, opened
from shoal.errors import DataCorrupt
from shoal.tables.sparse.jit import U, kernel, mixed

LABELS = {"1": 1.0, "+1": 1.0, "0": 0.0, "-1": -1.0, "1.0": 1.0, "0.0": 0.0, "-1.0": -1.0}
KEYS = 1 << 64
INTEGER, HEXADECIMAL = re.compile(r"-?[0-9]+"), re.compile(r"[0-9a-fA-F]+")
LINE_OF_FIELDS = re.compile(rb"^(?=[^\r\n])", re.MULTILINE)
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

Row = tuple[float, list[int], list[float] | None]  # label, keys, values (None: all 1)


class Batch(msgspec.Struct):
    """Rows of keys, one after the other.

    labels:   (n,) float32, 0 or 1
    offsets:  (n,) int64, where each row's keys begin
    keys:     (m,) uint64
    values:   (m,) float32
    fields:   (m,) int64, the column of criteo's, elsewhere the place in the row
    """

    labels: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    fields: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


class Reader:
    """One worker's rows of a file: of every `share[1]` batches the one numbered `share[0]`.

    skipped:   malformed lines that were left out; more than `skip` of them are an error
    labelled:  whether lines begin with a label; without, a blank line is a row without features
    advice:    what the error of a malformed line says to do

    Raises:
        DataMissing: no such file.
        DataCorrupt: a malformed line (file, line, what was expected) or one that is too long
            (`streams.LINE_BYTES_MAX`), a file without rows, or labels of three classes.
    """

    def __init__(
        self,
        path: Path,
        batch_size: int,
        kind: Format = "auto",
        hash_bits: int = 0,
        share: tuple[int, int] = (0, 1),
        skip: int = 0,
        labelled: bool = True,
        advice: str = "",
    ) -> None:
        self._path = path
        self.kind = guess(path, skip) if kind == "auto" else kind
        self._parser = Parser(
            str(path), batch_size, self.kind, hash_bits, share, skip, labelled, advice
        )

    @property
    def skipped(self) -> int:
        return self._parser.skipped

    def __iter__(self) -> Iterator[Batch]:
        with opened(self._path) as file:
            try:
                yield from self._parser.batches(blocks(self._path, file))
            except OSError as error:
                raise DataCorrupt(f"{self._path}: {error}") from None


class Parser:
    """Makes batches of lines.

    name:  of what has the lines, for errors
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        kind: Format,
        hash_bits: int = 0,
        share: tuple[int, int] = (0, 1),
        skip: int = 0,
        labelled: bool = True,
        advice: str = "",
    ) -> None:
        self._name = name
        self._size = batch_size
        self._bits = hash_bits
        self._share = share
        self._skip = skip
        self.skipped = 0
        self._kind = kind
        self._labelled = labelled
        self._advice = advice
        self._parse = PARSERS[kind]

    def batches(self, blocks: Iterable[bytes]) -> Iterator[Batch]:
        """The batches of blocks of whole lines."""
        mine, sharers = self._share
        rows, kind = Rows(self._size), KINDS[self._kind]
        for block in blocks if self._labelled else map(self._with_labels, blocks):
            rows.begin(len(block))
            data = np.frombuffer(block, np.uint8)
            while (state := rows.parse(data, kind, sharers, mine)) != DONE:
                if state == FULL:
                    yield self._batch(rows)
                    continue
                stop = block.index(b"\n", rows.at) + 1
                line, number = block[rows.at : stop], rows.number + 1
                rows.skip(stop - rows.at)
                row = self._row(line, number) if line.strip() else None
                if row is not None:
                    rows.add(*row)
        if not rows.seen:
            raise DataCorrupt(f"{self._name}: no rows")
        if rows.count:
            yield self._batch(rows)

    def _with_labels(self, block: bytes) -> bytes:
        """The lines with a label before each, which nobody looks at."""
        if self._kind == "criteo":
            return LINE_OF_FIELDS.sub(b"0\t", block)
        return b"0 " + block[:-1].replace(b"\n", b"\n0 ") + b"\n"

    def _row(self, line: bytes, number: int) -> Row | None:
        try:
            return self._parse(_text(line))
        except ValueError as error:
            self.skipped += 1
            if self.skipped > self._skip:
                raise DataCorrupt(f"{self._name}: line {number}: {error}{self._advice}") from None
            return None

    def _batch(self, rows: Rows) -> Batch:
        if rows.signs == ZERO | MINUS:
            raise DataCorrupt(
                f"{self._name}: labels 1, 0 and -1 by line {rows.number}: clicks have the label 1, "
                "and all other rows the same one, 0 or -1"
            )
        labels, counts, keys, values = rows.take()
        offsets = np.cumsum(counts) - counts
        if self._kind == "criteo":
            fields = (keys >> np.uint64(COLUMN_BITS)).astype(np.int64)
        else:
            fields = np.arange(len(keys)) - np.repeat(offsets, counts)
        if self._bits:
            keys = hashed(keys, self._bits)
        return Batch(labels, offsets, keys, values, fields)


def hashed(keys: np.ndarray, bits: int) -> np.ndarray:
    """The upper bits of each key's hash."""
    found = np.empty_like(keys)
    _hashed(keys, U(64 - bits), found)
    return found


@kernel
def _hashed(keys: Any, shift: Any, found: Any) -> None:
    for i in range(U(keys.size)):
        found[i] = mixed(keys[i]) >> shift


def guess(path: Path, skip: int = 0) -> Format:
    """The format, by the first line with more than a label.

    skip: malformed lines that may be before it

    Raises:
        DataCorrupt: it is none of them, or there is no line.
    """
    problem, found = "", False
    with opened(path) as file:
        try:
            for number, line in lines(path, file):
                if not (text := line.split()):
                    continue
                kind: Format = "criteo" if b"\t" in line else "libsvm" if b":" in line else "dummy"
                try:
                    PARSERS[kind](_text(line))
                except ValueError as error:
                    problem = problem or f"line {number} is no row of {kind}: {error}"
                    if skip <= 0:
                        break
                    skip -= 1
                    continue
                found = True
                if len(text) > 1:
                    return kind
        except OSError as error:
            raise DataCorrupt(f"{path}: {error}") from None
    if found and not problem:
        return "dummy"  # rows of labels only
    known = "neither libsvm, dummy nor criteo"
    raise DataCorrupt(f"{path}: {known} ({problem})" if problem else f"{path}: no rows")


def text_format(path: Path) -> Format | None:
    """The format that the first line with features looks like, with a label before them or not."""
    with opened(path) as file:
        for _, line in lines(path, file):
            if b"\t" in line:
                return "criteo"
            if b":" in line:
                return "libsvm"
            if len(line.split()) > 1:
                return "dummy"
    return None


def has_labels(lines: Iterable[bytes], kind: Format) -> bool:
    """Whether the first line that is not blank begins with a label.

    Lines of dummy do, because nothing can tell; lines that are all blank are rows without features.
    """
    for line in lines:
        if fields := line.split():
            if kind == "criteo":
                return line.count(b"\t") >= INTEGERS + CATEGORIES
            return b":" not in fields[0]
    return False


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        byte, at = line[error.start], error.start + 1
        raise ValueError(f"expected text in UTF-8, not byte {byte:#04x} at {at}") from None


def _label(text: str) -> float:
    if text not in LABELS:
        raise ValueError(f"expected a label of 1, 0 or -1, not {text[:20]!r}")
    return LABELS[text]


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected an index of 0 or more, not {text[:20]!r}")
    if int(text) >= KEYS:
        raise ValueError(f"expected an index below 2**64, not {text[:30]}")
    return int(text)


def _libsvm(line: str) -> Row:
    label, *fields = line.split()
    keys, values = [], []
    for field in fields:
        index, found, value = field.partition(":")
        keys.append(_index(index))
        number = float(value) if NUMBER.fullmatch(value) else inf
        if not found or abs(number) > FLOAT32_MAX:
            raise ValueError(f"expected index:value, not {field[:30]!r}")
        values.append(number)
    return _label(label), keys, values


def _dummy(line: str) -> Row:
    label, *fields = line.split()
    return _label(label), [_index(field) for field in fields], None


def _criteo(line: str) -> Row:
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 1 + INTEGERS + CATEGORIES:
        raise ValueError(f"expected {1 + INTEGERS + CATEGORIES} fields, not {len(fields)}")
    keys = []
    for column, field in enumerate(fields[1:]):
        if not field:
            continue
        if column < INTEGERS:
            if not INTEGER.fullmatch(field):
                raise ValueError(f"expected an integer in field {column + 1}")
            value = bucket(int(field))
        else:
            if not HEXADECIMAL.fullmatch(field):
                raise ValueError(f"expected hexadecimal digits in field {column + 1}")
            value = int(field, 16)
        keys.append(column << COLUMN_BITS | value % (1 << COLUMN_BITS))
    return _label(fields[0]), keys, None


def bucket(number: int) -> int:
    """Small integers as they are, larger ones by the square of their logarithm.

    >>> [bucket(each) for each in (-2, 0, 2, 3, 10, 100, 101, 1000000)]
    [-2, 0, 2, 3, 7, 23, 23, 192]
    """
    return number if number <= 2 else 2 + int(log(number) ** 2)


KINDS = {"libsvm": LIBSVM, "dummy": DUMMY, "criteo": CRITEO}
PARSERS: dict[str, Callable[[str], Row]] = {
    "libsvm": _libsvm,
    "dummy": _dummy,
    "criteo": _criteo,
}
