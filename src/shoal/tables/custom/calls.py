"""Calls: requests to custom tables and their answers, as 64-bit words.

    call     client, number, forget below, what, cmd, keys, bytes | keys | lengths | values
    answer   lengths, bytes                                        | lengths | values

`client` is a worker's incarnation and `number` counts its calls, so that a server executes a call
that arrives twice only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import msgspec
import numpy as np

What = Literal["push", "pull", "request"]
KINDS = get_args(What)
HEAD, ANSWER_HEAD = 7, 2  # words
_NONE = np.empty(0, np.uint64)


class Pairs(msgspec.Struct, frozen=True, eq=False):
    """Keys with any number of values each. Iterating yields (key, values).

    Args:
        keys: the keys, (n,) uint64, strictly increasing.
        values: the keys' values one after the other, (m,) of any dtype.
        lens: the number of values of each key, (n,) int64; their sum is m.

    Example:
        >>> pairs = Pairs(np.array([3, 8], np.uint64), np.array([1.0, 2.0, 5.0]), np.array([2, 1]))
        >>> [(key, values.tolist()) for key, values in pairs]
        [(3, [1.0, 2.0]), (8, [5.0])]
    """

    keys: np.ndarray
    values: np.ndarray
    lens: np.ndarray

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        stop = 0
        for key, count in zip(self.keys.tolist(), self.lens.tolist(), strict=True):
            start, stop = stop, stop + count
            yield key, self.values[start:stop]

    def chosen(self, which: np.ndarray) -> Pairs:
        """Return the pairs at the indices `which`, in that order."""
        return Pairs(self.keys[which], self.values[elements(self.lens, which)], self.lens[which])

    @classmethod
    def of(cls, keys: np.ndarray, rows: Sequence[np.ndarray], dtype: str) -> Pairs:
        """Return pairs made from one array of values per key.

        Args:
            keys: the keys, (n,) uint64, strictly increasing.
            rows: the values of each key: n one-dimensional arrays.
            dtype: the dtype of the values.

        Raises:
            ValueError: a row is not a list of numbers.
        """
        arrays = [np.asarray(row, dtype) for row in rows]
        if any(array.ndim != 1 for array in arrays):
            raise ValueError("each row has to be a one-dimensional list of numbers")
        lens = np.array([len(array) for array in arrays], np.int64)
        return cls(keys, np.concatenate(arrays or [np.empty(0, dtype)]), lens)


def add_up(lens: np.ndarray, total: int) -> bool:
    """Return whether these lengths are not negative and add up to `total`, below 2^62.

    No sum wraps around unnoticed: the first sum above `total` is found.

    >>> huge = np.array([1 << 62] * 4)  # their sum is 2^64, which is 0 in 64 bits
    >>> add_up(huge, 0), add_up(np.array([2, 1]), 3)
    (False, True)
    """
    if not len(lens):
        return total == 0
    if int(lens.min()) < 0 or int(lens.max()) > total:
        return False
    sums = np.cumsum(lens)
    return int(sums.max()) <= total == int(sums[-1])


def elements(lens: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the indices, among all values, of the values of the keys `which`.

    >>> elements(np.array([2, 1, 3]), np.array([2, 0]))
    array([3, 4, 5, 0, 1])
    """
    starts, counts = (np.cumsum(lens) - lens)[which], lens[which]
    first = np.cumsum(counts) - counts
    found: np.ndarray = np.arange(counts.sum()) + np.repeat(starts - first, counts)
    return found


class Call(msgspec.Struct, frozen=True, eq=False):
    """A call; `values` are the bytes of a push's values or of a request's body."""

    client: int
    number: int
    forget_below: int
    what: What
    cmd: int
    keys: np.ndarray = _NONE
    lens: np.ndarray = _NONE
    values: memoryview = memoryview(b"")

    def words(self) -> np.ndarray:
        """Return the call as words, (n,) uint64."""
        count, nbytes = len(self.keys), self.values.nbytes
        lens = len(self.lens)
        words = np.zeros(HEAD + count + lens + -(-nbytes // 8), np.uint64)
        kind, cmd = KINDS.index(self.what), self.cmd % (1 << 64)
        words[:HEAD] = self.client, self.number, self.forget_below, kind, cmd, count, nbytes
        words[HEAD : HEAD + count] = self.keys
        words[HEAD + count : HEAD + count + lens] = self.lens
        words.view(np.uint8)[8 * (HEAD + count + lens) :][:nbytes] = self.values.cast("B")
        return words

    @classmethod
    def read(cls, words: np.ndarray) -> Call:
        """Return the call that these words encode.

        Raises:
            ValueError: the words are no call
        """
        if len(words) < HEAD:
            raise ValueError("it is too short")
        client, number, forget_below, kind, cmd, count, nbytes = words[:HEAD].tolist()
        if kind >= len(KINDS):
            raise ValueError(f"it is of kind {kind}")
        what = KINDS[kind]
        lens = count if what == "push" else 0
        if what == "request" and count:
            raise ValueError("a request has keys")
        if len(words) != HEAD + count + lens + -(-nbytes // 8):
            raise ValueError(f"{len(words)} words where {count} keys and {nbytes} bytes are said")
        keys = words[HEAD : HEAD + count]
        if (keys[1:] <= keys[:-1]).any():
            raise ValueError("its keys do not increase")
        lengths = words[HEAD + count : HEAD + count + lens].view(np.int64)
        values = words.view(np.uint8)[8 * (HEAD + count + lens) :][:nbytes].data
        return cls(
            client, number, forget_below, what, cmd - (cmd >> 63 << 64), keys, lengths, values
        )


def answer_of(lens: np.ndarray, values: memoryview) -> bytes:
    """Return the bytes of the answer to a call."""
    head = np.array([len(lens), values.nbytes], np.uint64)
    return head.tobytes() + lens.astype(np.int64).tobytes() + values.tobytes()


def read_answer(answer: memoryview) -> tuple[np.ndarray, memoryview]:
    """Return the lengths of an answer, and its values as bytes.

    Raises:
        ValueError: the bytes are no answer
    """
    if answer.nbytes < 8 * ANSWER_HEAD:
        raise ValueError("it is too short")
    count, nbytes = np.frombuffer(answer[: 8 * ANSWER_HEAD], np.uint64).tolist()
    start = 8 * (ANSWER_HEAD + count)
    if answer.nbytes != start + nbytes:
        raise ValueError(f"{answer.nbytes} bytes where {start + nbytes} are said")
    return np.frombuffer(answer[8 * ANSWER_HEAD : start], np.int64), answer[start:]
