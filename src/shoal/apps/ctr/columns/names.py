"""The column and the value of each key of a run's tables, in a file next to the exported rows."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from shoal.apps.ctr.columns.keys import all_buckets, bounds_of, keys_of
from shoal.apps.ctr.columns.values import Seen
from shoal.apps.ctr.readers import hashed
from shoal.apps.ctr.spec import CtrSpec
from shoal.storage.files import write_whole


class KeyName(msgspec.Struct, frozen=True):
    """A key, and the column and the value that have it.

    key:        the key, below 2**64
    column:     the column's name
    value:      the text of a category; "" for a number
    low, high:  the bounds of a number's bucket; None for a category
    """

    key: int
    column: str
    value: str
    low: float | None = None
    high: float | None = None


def names_of(spec: CtrSpec, seen: Mapping[str, Seen], keys: np.ndarray) -> Iterator[KeyName]:
    """Yield the columns and values whose keys are among those of some tables.

    With --hash-bits several values may have the same key.

    seen: the texts of columns of categories
    keys: the tables' keys, (n,) uint64, sorted
    """
    for column in spec.columns(spec.categorical):
        texts = seen[column].texts if column in seen else []
        for key, at in _among(spec, column, texts, keys):
            yield KeyName(key, column, texts[at])
    known = all_buckets()
    for column in spec.columns(spec.numeric):
        for key, at in _among(spec, column, [*map(str, known)], keys):
            yield KeyName(key, column, "", *bounds_of(known[at]))


def write_names(path: Path, names: Iterator[KeyName]) -> None:
    """Write a CSV file with a header and a line for each name; None is an empty field."""

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(KeyName.__struct_fields__)
            lines.writerows(map(msgspec.structs.astuple, names))

    write_whole(path, write)


def _among(
    spec: CtrSpec, column: str, texts: list[str], keys: np.ndarray
) -> Iterator[tuple[int, int]]:
    """Yield (key, place) of the texts whose key is among the tables' keys."""
    found = keys_of(column, texts)
    if spec.hash_bits:
        found = hashed(found, spec.hash_bits)
    places = np.minimum(np.searchsorted(keys, found), max(len(keys) - 1, 0))
    for at in np.flatnonzero(keys[places] == found) if len(keys) else ():
        yield int(found[at]), int(at)
