"""The texts of categories that a run has seen, with their keys.

A worker keeps a bounded number of texts: a text that occurs again is not hashed again, and an
export lists the texts with the keys of a model's tables. The number of distinct texts of a column
is estimated from a sample of keys (distinct sampling, Gibbons 2001).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from shoal.apps.ctr.columns.keys import digests_of, joined, keys_of, meanings
from shoal.storage.files import (
    FORMAT,
    FORMAT_KEY,
    check_format,
    damaged,
    make_folder,
    read_whole,
    write_whole,
)

TEXTS_MOST = 1 << 17  # bound of the texts that a worker keeps, over all columns
LENGTH_MOST = 200  # bound of the characters of a text that is kept
SAMPLE_MOST = 1 << 10

Count = Annotated[int, msgspec.Meta(ge=0)]


class Seen(msgspec.Struct, frozen=True):
    """A record of the texts that a worker has seen in a column.

    rows:    the number of rows with a value
    texts:   the texts that were kept
    all:     whether all texts were kept
    level:   the number of leading bits that are 0 in the keys of the sample
    sample:  the distinct keys with such bits
    """

    rows: Count
    texts: list[str]
    all: bool
    level: Annotated[int, msgspec.Meta(ge=0, le=64)]
    sample: list[Count]


class ColumnKeys:
    """The keys of a column's texts, and a record of the texts.

    most: the bound of the texts that are kept
    """

    def __init__(self, column: str, most: int) -> None:
        self._column = column
        self._most = most
        self._missing = keys_of(column, [""])  # no value has this text
        self._kept: dict[str, bytes] = {}
        self._all = self._repeats = True
        self._rows = self._level = 0
        self._sample: set[int] = set()

    def of(self, texts: list[str], final: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of texts, (n,) uint64, and a mask of the texts that have one.

        final: whether the texts are those of keys
        """
        new, found = texts, []
        if self._repeats:  # kept texts are not hashed again
            found = list(map(self._kept.get, texts))
            new = [text for text, each in zip(texts, found, strict=True) if each is None]
        digests = digests_of(self._column, new if final else meanings(new))
        before = len(self._kept)
        self._keep(new, digests)
        if len(new) < len(texts):
            made = iter(digests)
            digests = [next(made) if each is None else each for each in found]
        if self._repeats or before < self._most:
            added = len(new) if before == self._most else len(self._kept) - before
            self._repeats = added <= len(texts) // 2
        keys = joined(digests)
        there: np.ndarray = keys != self._missing
        self._add(keys[there])
        return keys, there

    def _keep(self, texts: list[str], digests: list[bytes]) -> None:
        before = len(self._kept)
        if before < self._most:
            pairs: Iterable[tuple[str, bytes]] = zip(texts, digests, strict=True)
            if len(max(texts, key=len, default="")) > LENGTH_MOST:
                pairs = (pair for pair in pairs if len(pair[0]) <= LENGTH_MOST)
            self._kept.update(islice(dict(pairs).items(), self._most - before))
        if self._all and len(self._kept) - before < len(texts):
            self._all = self._kept.keys() >= {*texts}

    def count(self, rows: int) -> None:
        """Add to the number of rows that have a value."""
        self._rows += rows

    def seen(self) -> Seen:
        """Return a record of the column so far."""
        texts = sorted({*meanings([*self._kept])} - {""})
        return Seen(self._rows, texts, self._all, self._level, sorted(self._sample))

    def _add(self, keys: np.ndarray) -> None:
        sample = self._sample
        sample.update(_at_level(keys, self._level).tolist())
        while len(sample) > SAMPLE_MOST:
            self._level += 1
            sample &= set(_at_level(np.array([*sample], np.uint64), self._level).tolist())


def write_seen(path: Path, columns: Mapping[str, ColumnKeys]) -> None:
    """Write the records of a worker's columns."""
    seen = {name: each.seen() for name, each in columns.items()}
    make_folder(path.parent)
    write_whole(path, msgspec.json.encode({FORMAT_KEY: FORMAT, "columns": seen}))


def read_seen(path: Path) -> dict[str, Seen]:
    """Read the records of a worker's columns; return {} if there is no file.

    Raises:
        DataCorrupt: the file is not as it was written
        UnknownFormat: another version of Shoal has written it
    """
    if not path.exists():
        return {}
    try:
        found = msgspec.json.decode(read_whole(path), type=_File)
    except ValueError as error:
        raise damaged(path, error) from None
    check_format(path, found.shoal_format)
    return found.columns


class _File(msgspec.Struct):
    shoal_format: int
    columns: dict[str, Seen]


def merged(parts: Sequence[Mapping[str, Seen]]) -> dict[str, Seen]:
    """Merge the records of several workers."""
    found: dict[str, Seen] = {}
    for part in parts:
        for name, more in part.items():
            one = found.get(name, Seen(0, [], True, 0, []))
            level = max(one.level, more.level)
            keys = np.array([*{*one.sample, *more.sample}], np.uint64)
            found[name] = Seen(
                one.rows + more.rows,
                sorted({*one.texts, *more.texts}),
                one.all and more.all,
                level,
                sorted(_at_level(keys, level).tolist()),
            )
    return found


def distinct_texts(seen: Seen) -> int:
    """Estimate the number of distinct texts; exact up to SAMPLE_MOST."""
    return len(seen.sample) << seen.level


def _at_level(keys: np.ndarray, level: int) -> np.ndarray:
    """Return the keys whose first `level` bits are 0."""
    return keys[keys >> np.uint64(64 - level) == 0] if level else keys
