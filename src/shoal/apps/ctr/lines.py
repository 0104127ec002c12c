"""Lines of rows, parsed by compiled code.

This module parses plainly written lines. It leaves any other line (an exponent, 20 digits, a
character that is not ASCII, a mistake) to `formats`, which accepts all legal lines and describes
what is wrong with the others. A line ends in a newline, with or without a carriage return before
it. In libsvm and dummy, `#` begins a comment.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.apps.ctr.labels import Classes
from shoal.jit import U, kernel

DONE, FULL, ODD = 0, 1, 2
LIBSVM, DUMMY, CRITEO = 0, 1, 2
BLANK, STRANGE = -1, -2
ZERO, MINUS = 1, 2  # labels of the other class
INTEGERS, CATEGORIES = 13, 26
COLUMN_BITS = 40  # the bits of a key of criteo below those of its column
DIGITS_MOST = 15  # a number of so many digits is exact as float64
HASH = 35  # the character that begins a comment
_TENS = 10.0 ** np.arange(DIGITS_MOST + 1)


class Rows:
    """Rows that are being made into a batch.

    at:      the place in the block where the next line begins
    number:  the number of that line in the file, from 0
    count:   the number of rows so far
    seen:    whether any line was not blank
    signs:   the spelling of the labels that are not 1: ZERO, MINUS, or both (their sum)
    """

    def __init__(self, size: int, classes: Classes) -> None:
        self._classes = classes.positive, classes.negative
        self.labels = np.empty(size, np.float32)
        self.counts = np.empty(size, np.int64)
        self.keys = np.empty(0, np.uint64)
        self.values = np.empty(0, np.float32)
        self.at = self.number = self.count = self._used = 0  # _used: the keys in use
        self.seen = False
        self.signs = 0

    def parse(self, block: np.ndarray, kind: int, sharers: int, mine: int) -> int:
        """Parse on in a block of whole lines: of every `sharers` batches the one numbered `mine`.

        Returns FULL if the batch is full, ODD if the next line is left to `formats`, and DONE at
        the end of the block.
        """
        begin = self.at, self.number, self.count, self._used
        into = self.labels, self.counts, self.keys, self.values
        result, seen, signs, *end = _parse(block, kind, self._classes, sharers, mine, begin, into)
        self.at, self.number, self.count, self._used = end
        self.seen |= seen
        self.signs |= signs
        return int(result)

    def begin(self, nbytes: int) -> None:
        """Prepare for a block of `nbytes` bytes."""
        self.at = 0
        most = self._used + nbytes // 2 + 1  # a key is a digit and what is before it
        if most > len(self.keys):
            more = 2 * most - len(self.keys)
            self.keys = np.concatenate([self.keys, np.empty(more, np.uint64)])
            self.values = np.concatenate([self.values, np.empty(more, np.float32)])

    def skip(self, nbytes: int, blank: bool) -> None:
        """Go past the next line, which has `nbytes` bytes."""
        self.at += nbytes
        self.number += 1
        self.seen |= not blank

    def add(self, label: float, keys: list[int], values: list[float] | None) -> None:
        """Add a row that was parsed elsewhere, with the label 1, 0 or -1."""
        first, self._used = self._used, self._used + len(keys)
        self.labels[self.count], self.counts[self.count] = label > 0, len(keys)
        self.signs |= MINUS if label < 0 else ZERO if label == 0 else 0
        self.keys[first : self._used] = keys
        self.values[first : self._used] = 1 if values is None else values
        self.count += 1

    def take(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the labels, counts, keys and values of the rows so far; begin the next batch."""
        rows, used = self.count, self._used
        self.count = self._used = 0
        labels, counts = self.labels[:rows].copy(), self.counts[:rows].copy()
        return labels, counts, self.keys[:used].copy(), self.values[:used].copy()


@kernel
def _parse(
    block: Any, kind: Any, classes: Any, sharers: Any, mine: Any, begin: Any, into: Any
) -> Any:
    """Parse from `begin` on: (at, number, rows, keys in use).

    Returns (result, seen, signs), and the values of `begin` at the end.
    """
    at, number, rows, first = begin
    labels, counts, keys, values = into
    size, result, seen, signs = labels.size, DONE, False, 0
    while at < block.size:
        if rows == size:
            result = FULL
            break
        stop = at
        while stop < block.size and block[U(stop)] != 10:
            stop += 1
        end = stop - 1 if stop > at and block[U(stop - 1)] == 13 else stop
        found = BLANK
        for i in range(at, end):
            if not _white(block[U(i)]):
                if kind == CRITEO or not _comment(block, i, end):
                    found = 0
                break
        if found != BLANK:
            if number // size % sharers == mine:
                if kind == CRITEO:
                    found, written = _criteo(block, at, end, keys, values, first)
                else:
                    valued = kind == LIBSVM
                    found, written = _pairs(block, at, end, valued, keys, values, first)
                label = _class(written, classes)
                if found == STRANGE or label == STRANGE:
                    result = ODD
                    break
                if label <= 0:
                    signs |= MINUS if label < 0 else ZERO
                labels[U(rows)] = label > 0
                counts[U(rows)] = found
                rows += 1
                first += found
            seen = True  # not before an odd line is parsed elsewhere, which may be a comment
        at = stop + 1
        number += 1
    return result, seen, signs, at, number, rows, first


@kernel
def _white(byte: Any) -> Any:
    return byte == 32 or byte == 9


@kernel
def _comment(block: Any, at: Any, stop: Any) -> Any:
    """Return whether only a comment is left, of bytes that are printable ASCII or tabs."""
    if block[U(at)] != HASH:
        return False
    for i in range(at, stop):
        if block[U(i)] > 126 or (block[U(i)] < 32 and block[U(i)] != 9):
            return False
    return True


@kernel
def _digit(byte: Any) -> Any:
    return byte >= 48 and byte <= 57


@kernel
def _decimal(block: Any, at: Any, stop: Any) -> Any:
    """Return a plainly written number and the place where it ends; NaN if there is none."""
    negative = at < stop and block[U(at)] == 45
    if at < stop and (negative or block[U(at)] == 43):
        at += 1
    number, digits, after, dots = 0.0, 0, 0, 0
    while at < stop and (_digit(block[U(at)]) or block[U(at)] == 46):
        if block[U(at)] == 46:
            dots += 1
        else:
            number = number * 10.0 + (block[U(at)] - 48)
            digits += 1
            after += dots
        at += 1
    if digits == 0 or digits > DIGITS_MOST or dots > 1:
        return np.nan, at
    number /= _TENS[U(after)]
    return -number if negative else number, at


@kernel
def _class(label: Any, classes: Any) -> Any:
    """Return 1, 0 or -1, as `Classes.of` does; STRANGE for another label."""
    positive, negative = classes
    if np.isnan(positive):
        return np.int64(label) if label in (1.0, 0.0, -1.0) else STRANGE
    if label == positive:
        return 1
    return 0 if np.isnan(negative) or label == negative else STRANGE


@kernel
def _pairs(block: Any, at: Any, stop: Any, valued: Any, keys: Any, values: Any, first: Any) -> Any:
    """Parse `label index:value ...` or `label index ...`; return the number of pairs and the label.

    The number is STRANGE if the line is not plain. In a line with values, a `qid:number` behind the
    label is left out.
    """
    while _white(block[U(at)]):
        at += 1
    label, at = _decimal(block, at, stop)
    if np.isnan(label) or (at < stop and not _white(block[U(at)])):
        return STRANGE, label
    found, begun = 0, False
    while True:
        while at < stop and _white(block[U(at)]):
            at += 1
        if at == stop or _comment(block, at, stop):
            return found, label
        if valued and not begun:
            begun = True
            if block[U(at)] == 113:
                at = _group(block, at, stop)
                if at < 0:
                    return STRANGE, label
                continue
        key, start = U(0), at
        while at < stop and _digit(block[U(at)]):
            key = key * U(10) + U(block[U(at)] - 48)
            at += 1
        if at == start or at - start > 19:
            return STRANGE, label
        value = 1.0
        if valued:
            if at == stop or block[U(at)] != 58:
                return STRANGE, label
            value, at = _decimal(block, at + 1, stop)
            if np.isnan(value):
                return STRANGE, label
        if at < stop and not _white(block[U(at)]):
            return STRANGE, label
        keys[U(first + found)] = key
        values[U(first + found)] = value
        found += 1


@kernel
def _group(block: Any, at: Any, stop: Any) -> Any:
    """Return the place where a `qid:number` ends; STRANGE if there is none."""
    if stop - at < 5 or block[U(at + 1)] != 105 or block[U(at + 2)] != 100:
        return STRANGE
    if block[U(at + 3)] != 58:
        return STRANGE
    at += 4
    while at < stop and _digit(block[U(at)]):
        at += 1
    white = at == stop or _white(block[U(at)])
    return at if white and block[U(at - 1)] != 58 else STRANGE


@kernel
def _criteo(block: Any, at: Any, stop: Any, keys: Any, values: Any, first: Any) -> Any:
    """Parse a label, 13 integers and 26 hexadecimal numbers between tabs.

    Returns the number of fields that are not empty, besides the label (STRANGE if the line is not
    plain), and the label.
    """
    found, column, label = 0, -1, np.nan
    while True:
        end = at
        while end < stop and block[U(end)] != 9:
            end += 1
        if column < 0:
            label, after = _decimal(block, at, end)
            if np.isnan(label) or after != end:
                return STRANGE, label
        elif column >= INTEGERS + CATEGORIES:
            return STRANGE, label
        elif end > at:
            key = _integer(block, at, end) if column < INTEGERS else _hexadecimal(block, at, end)
            if key == STRANGE:
                return STRANGE, label
            keys[U(first + found)] = (U(column) << U(COLUMN_BITS)) | U(key)
            values[U(first + found)] = 1.0
            found += 1
        column += 1
        if end == stop:
            return (found if column == INTEGERS + CATEGORIES else STRANGE), label
        at = end + 1


@kernel
def _integer(block: Any, at: Any, stop: Any) -> Any:
    """Return the bucket of an integer, as `formats.bucket` does, in COLUMN_BITS bits."""
    negative = block[U(at)] == 45
    if negative:
        at += 1
    if at == stop or stop - at > DIGITS_MOST:
        return np.int64(STRANGE)
    number = np.int64(0)
    for i in range(at, stop):
        if not _digit(block[U(i)]):
            return np.int64(STRANGE)
        number = number * 10 + (block[U(i)] - 48)
    if negative:
        number = -number
    if number > 2:
        number = 2 + np.int64(np.log(np.float64(number)) ** 2)
    return number & ((np.int64(1) << COLUMN_BITS) - 1)


@kernel
def _hexadecimal(block: Any, at: Any, stop: Any) -> Any:
    if stop - at > COLUMN_BITS // 4:
        return np.int64(STRANGE)
    number = np.int64(0)
    for i in range(at, stop):
        byte = block[U(i)]
        if _digit(byte):
            digit = byte - 48
        elif byte >= 97 and byte <= 102:
            digit = byte - 87
        elif byte >= 65 and byte <= 70:
            digit = byte - 55
        else:
            return np.int64(STRANGE)
        number = number * 16 + digit
    return number
