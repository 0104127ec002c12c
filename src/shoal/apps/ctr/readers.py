"""Lines of text as batches of keys and values, read as a stream.

    libsvm   label index:value index:value ...      blanks or tabs between
    dummy    label index index ...                  every value is 1
    criteo   label, 13 integers, 26 categories of hexadecimal digits; tabs between, empty: missing

`#` begins a comment in libsvm and dummy, and `qid:number` behind a label of libsvm is left out.
`labels` defines the meaning of labels. An index is a key. A field of criteo has the key (column,
value): a category as it is, an integer v > 2 by its bucket 2 + ⌊ln² v⌋ (the winners of that
challenge, Juan et al. 2014), so that 100 and 101 are the same and 1 and 2 are not. Keys may be
hashed to fewer bits (the hashing trick, Weinberger et al. 2009).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.apps.ctr.formats import PARSERS, Row, guess, text_of, without_comment
from shoal.apps.ctr.labels import SEVERAL, Classes
from shoal.apps.ctr.lines import (
    COLUMN_BITS,
    CRITEO,
    DONE,
    DUMMY,
    FULL,
    LIBSVM,
    MINUS,
    ZERO,
    Rows,
)
from shoal.apps.ctr.spec import Format
from shoal.data.streams import blocks, opened, unmarked
from shoal.errors import DataCorrupt
from shoal.jit import U, kernel, mixed

LINE_OF_FIELDS = re.compile(rb"^(?=[^\r\n])", re.MULTILINE)
LINE_OF_PAIRS = re.compile(rb"^(?![ \t]*#)", re.MULTILINE)  # a line that is no comment
BLANK = ()  # in place of the row of a blank line


class Batch(msgspec.Struct):
    """Rows of keys, one after the other.

    labels:   (n,) float32, 0 or 1
    offsets:  (n,) int64, the place in `keys` where each row begins
    keys:     (m,) uint64
    values:   (m,) float32
    fields:   (m,) int64, the column of each key in criteo, else its place in the row
    """

    labels: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    fields: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


class LineOptions(msgspec.Struct, frozen=True):
    """The options by which the lines of a file become rows.

    Attributes:
        hash_bits:  the number of bits that keys are hashed to; 0 leaves them as they are
        labelled:   whether lines begin with a label; if not, a blank line is a row without
                    features
        classes:    the meaning of the labels
    """

    hash_bits: int = 0
    labelled: bool = True
    classes: Classes = Classes()


class Reader:
    """One worker's rows of a file: of every `share[1]` batches the one numbered `share[0]`.

    skipped:   the number of malformed lines that were left out; more than `skip` are an error
    advice:    the advice at the end of the error of a malformed line

    Raises:
        DataMissing: there is no such file.
        DataCorrupt: a malformed line (file, line, what was expected) or one that is too long
            (`streams.LINE_BYTES_MAX`), a file without rows, or labels of several classes.
    """

    def __init__(
        self,
        path: Path,
        batch_size: int,
        kind: Format = "auto",
        options: LineOptions = LineOptions(),  # noqa: B008 - frozen
        share: tuple[int, int] = (0, 1),
        skip: int = 0,
        advice: str = "",
    ) -> None:
        self._path = path
        self.kind = guess(path, skip) if kind == "auto" else kind
        self._parser = Parser(str(path), batch_size, self.kind, options, share, skip, advice)

    @property
    def skipped(self) -> int:
        return self._parser.skipped

    def __iter__(self) -> Iterator[Batch]:
        with opened(self._path) as file:
            try:
                yield from self._parser.batches(_unmarked(self._path, blocks(self._path, file)))
            except OSError as error:
                raise DataCorrupt(f"{self._path}: {error}") from None


class Parser:
    """Parses lines into batches.

    name:  the name of the source of the lines, for errors
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        kind: Format,
        options: LineOptions = LineOptions(),  # noqa: B008 - frozen
        share: tuple[int, int] = (0, 1),
        skip: int = 0,
        advice: str = "",
    ) -> None:
        self._name = name
        self._size = batch_size
        self._bits = options.hash_bits
        self._share = share
        self._skip = skip
        self.skipped = 0
        self._kind = kind
        self._labelled = options.labelled
        self._advice = advice
        self._classes = (
            options.classes if options.labelled else Classes()
        )  # `_with_labels` writes the label 0
        self._parse = PARSERS[kind]

    def batches(self, blocks: Iterable[bytes]) -> Iterator[Batch]:
        """Yield the batches of blocks of whole lines."""
        mine, sharers = self._share
        rows, kind = Rows(self._size, self._classes), KINDS[self._kind]
        for block in blocks if self._labelled else map(self._with_labels, blocks):
            rows.begin(len(block))
            data = np.frombuffer(block, np.uint8)
            while (state := rows.parse(data, kind, sharers, mine)) != DONE:
                if state == FULL:
                    yield self._batch(rows)
                    continue
                stop = block.index(b"\n", rows.at) + 1
                line, number = block[rows.at : stop], rows.number + 1
                row = self._row(line, number)
                rows.skip(stop - rows.at, row is BLANK)
                if row:
                    rows.add(*row)
        if not rows.seen:
            raise DataCorrupt(f"{self._name}: no rows")
        if rows.count:
            yield self._batch(rows)

    def _with_labels(self, block: bytes) -> bytes:
        """Return the lines with a placeholder for the label before each."""
        if self._kind == "criteo":
            return LINE_OF_FIELDS.sub(b"0\t", block)
        if b"#" in block:
            return LINE_OF_PAIRS.sub(b"0 ", block[:-1]) + b"\n"
        return b"0 " + block[:-1].replace(b"\n", b"\n0 ") + b"\n"

    def _row(self, line: bytes, number: int) -> Row | tuple[()] | None:
        """Return the row of a line, with the label 1, 0 or -1; BLANK, or None if it is left out."""
        try:
            text = text_of(line)
            if not (text if self._kind == "criteo" else without_comment(text)).strip():
                return BLANK
            label, keys, values = self._parse(text)
            return self._classes.of(label), keys, values
        except ValueError as error:
            self.skipped += 1
            if self.skipped > self._skip:
                raise DataCorrupt(f"{self._name}: line {number}: {error}{self._advice}") from None
            return None

    def _batch(self, rows: Rows) -> Batch:
        if rows.signs == ZERO | MINUS:
            raise DataCorrupt(
                f"{self._name}: labels 1, 0 and -1 by line {rows.number}: clicks have the label 1, "
                f"and all other rows the same one, 0 or -1{SEVERAL}"
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
    """Return the upper `bits` bits of each key's hash."""
    found = np.empty_like(keys)
    _hashed(keys, U(64 - bits), found)
    return found


@kernel
def _hashed(keys: Any, shift: Any, found: Any) -> None:
    for i in range(U(keys.size)):
        found[i] = mixed(keys[i]) >> shift


def _unmarked(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a text without its byte-order mark."""
    for first in blocks:
        yield unmarked(path, first)
        yield from blocks


KINDS = {"libsvm": LIBSVM, "dummy": DUMMY, "criteo": CRITEO}
