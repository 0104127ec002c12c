"""Lines of rows, parsed by compiled code.

What is written plainly is parsed here. Any other line (an exponent, 20 digits, a character that is
not ASCII, a mistake) is left to `readers`, which knows what else is legal, and how to say what is
wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.sparse.jit import U, kernel

DONE, FULL, ODD = 0, 1, 2
LIBSVM, DUMMY, CRITEO = 0, 1, 2
BLANK, STRANGE = -1, -2
ZERO, MINUS = 1, 2  # labels of the other class
INTEGERS, CATEGORIES = 13, 26
COLUMN_BITS = 40  # of a key of criteo's, below its column
DIGITS_MOST = 15  # of a number whose digits make an exact float64
_TENS = 10.0 ** np.arange(DIGITS_MOST + 1)


class Rows:
    """Rows that are being made into a batch.

    at:      where in the block the next line begins
    number:  of that line in the file, from 0
    count:   rows so far
    seen:    whether any line was not blank
    signs:   how labels that are not 1 were written: ZERO, MINUS, or both (their sum)
    """

    def __init__(self, size: int) -> None:
        self.labels = np.empty(size, np.float32)
        self.counts = np.empty(size, np.int64)
        self.keys = np.empty(0, np.uint64)
        self.values = np.empty(0, np.float32)
        self.at = self.number = self.count = self._used = 0  # keys in use
        self.seen = False
        self.signs = 0

    def parse(self, block: np.ndarray, kind: int, sharers: int, mine: int) -> int:
        """Go on in a block of whole lines; of every `sharers` batches' lines those of `mine`.

        FULL: a batch is; ODD: the next line is not parsed; DONE: the block is
        """
        begin = self.at, self.number, self.count, self._used
        into = self.labels, self.counts, self.keys, self.values
        result, seen, signs, *end = _parse(block, kind, sharers, mine, begin, into)
        self.at, self.number, self.count, self._used = end
        self.seen |= seen
        self.signs |= signs
        return int(result)

    def begin(self, nbytes: int) -> None:
        """A block of so many bytes comes."""
        self.at = 0
        most = self._used + nbytes // 2 + 1  # a key is a digit and what is before it
        if most > len(self.keys):
            more = 2 * most - len(self.keys)
            self.keys = np.concatenate([self.keys, np.empty(more, np.uint64)])
            self.values = np.concatenate([self.values, np.empty(more, np.float32)])

    def skip(self, nbytes: int) -> None:
        """The next line, of so many bytes, is done."""
        self.at += nbytes
        self.number += 1
        self.seen = True

    def add(self, label: float, keys: list[int], values: list[float] | None) -> None:
        """A row that was parsed elsewhere, with its label as it is written."""
        first, self._used = self._used, self._used + len(keys)
        self.labels[self.count], self.counts[self.count] = label > 0, len(keys)
        self.signs |= MINUS if label < 0 else ZERO if label == 0 else 0
        self.keys[first : self._used] = keys
        self.values[first : self._used] = 1 if values is None else values
        self.count += 1

    def take(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Labels, counts, keys and values of the rows so far; the next batch begins."""
        rows, used = self.count, self._used
        self.count = self._used = 0
        labels, counts = self.labels[:rows].copy(), self.counts[:rows].copy()
        return labels, counts, self.keys[:used].copy(), self.values[:used].copy()


@kernel
def _parse(block: Any, kind: Any, sharers: Any, mine: Any, begin: Any, into: Any) -> Any:
    """`begin` is where to go on: at, number, rows and keys; returned as they are at the end."""
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
        found = BLANK
        for i in range(at, stop):
            if not _white(block[U(i)]):
                found = 0
                break
        if found != BLANK:
            seen = True
            if number // size % sharers == mine:
                if kind == CRITEO:
                    found = _criteo(block, at, stop, labels, rows, keys, values, first)
                else:
                    valued = kind == LIBSVM
                    found = _pairs(block, at, stop, valued, labels, rows, keys, values, first)
                if found == STRANGE:
                    result = ODD
                    break
                if labels[U(rows)] <= 0:
                    signs |= MINUS if labels[U(rows)] < 0 else ZERO
                    labels[U(rows)] = 0
                counts[U(rows)] = found
                rows += 1
                first += found
        at = stop + 1
        number += 1
    return result, seen, signs, at, number, rows, first


@kernel
def _white(byte: Any) -> Any:
    return byte == 32 or (byte >= 9 and byte <= 13)


@kernel
def _digit(byte: Any) -> Any:
    return byte >= 48 and byte <= 57


@kernel
def _label(block: Any, at: Any, stop: Any) -> Any:
    """1, 0, -1, or STRANGE: of 1 0 +1 -1 1.0 0.0 -1.0."""
    negative = block[U(at)] == 45
    signed = negative or block[U(at)] == 43
    if signed:
        at += 1
    if stop - at == 3:
        if signed and not negative:
            return STRANGE
        if block[U(at + 1)] != 46 or block[U(at + 2)] != 48:
            return STRANGE
    elif stop - at != 1:
        return STRANGE
    if block[U(at)] == 49:
        return -1 if negative else 1
    if block[U(at)] == 48 and not signed:
        return 0
    return STRANGE


@kernel
def _pairs(
    block: Any,
    at: Any,
    stop: Any,
    valued: Any,
    labels: Any,
    row: Any,
    keys: Any,
    values: Any,
    first: Any,
) -> Any:
    """`label index:value ...`, or `label index ...`; how many there are."""
    while _white(block[U(at)]):
        at += 1
    end = at
    while end < stop and not _white(block[U(end)]):
        end += 1
    label = _label(block, at, end)
    if label == STRANGE:
        return STRANGE
    labels[U(row)] = label
    found, at = 0, end
    while True:
        while at < stop and _white(block[U(at)]):
            at += 1
        if at == stop:
            return found
        key, start = U(0), at
        while at < stop and _digit(block[U(at)]):
            key = key * U(10) + U(block[U(at)] - 48)
            at += 1
        if at == start or at - start > 19:
            return STRANGE
        value = 1.0
        if valued:
            if at == stop or block[U(at)] != 58:
                return STRANGE
            at += 1
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
                return STRANGE
            value = number / _TENS[U(after)]
            if negative:
                value = -value
        if at < stop and not _white(block[U(at)]):
            return STRANGE
        keys[U(first + found)] = key
        values[U(first + found)] = value
        found += 1


@kernel
def _criteo(
    block: Any, at: Any, stop: Any, labels: Any, row: Any, keys: Any, values: Any, first: Any
) -> Any:
    """A label, 13 integers, 26 hexadecimal numbers, between tabs; how many are there."""
    if block[U(stop - 1)] == 13:
        stop -= 1
    found, column = 0, -1
    while True:
        end = at
        while end < stop and block[U(end)] != 9:
            end += 1
        if column < 0:
            label = _label(block, at, end) if end > at else STRANGE
            if label == STRANGE:
                return STRANGE
            labels[U(row)] = label
        elif column >= INTEGERS + CATEGORIES:
            return STRANGE
        elif end > at:
            key = _integer(block, at, end) if column < INTEGERS else _hexadecimal(block, at, end)
            if key == STRANGE:
                return STRANGE
            keys[U(first + found)] = (U(column) << U(COLUMN_BITS)) | U(key)
            values[U(first + found)] = 1.0
            found += 1
        column += 1
        if end == stop:
            return found if column == INTEGERS + CATEGORIES else STRANGE
        at = end + 1


@kernel
def _integer(block: Any, at: Any, stop: Any) -> Any:
    """The bucket of an integer, as `readers.bucket` has it, in COLUMN_BITS."""
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
