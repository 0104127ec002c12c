"""Warnings about columns that are poor features: codes read as numbers, and unique ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.apps.ctr.columns.arrays import numbers
from shoal.apps.ctr.columns.encoding import Columns
from shoal.apps.ctr.columns.keys import buckets
from shoal.apps.ctr.columns.values import Seen, distinct_texts

if TYPE_CHECKING:
    import pyarrow

ROWS_LEAST = 100  # fewer rows give no warning
NEARLY_ALL = 0.9  # share of the rows with distinct values
CODES_LEAST, BUCKETS_MOST = 8, 2  # so many values or more in so few buckets or fewer are codes
EXACT = 2.0**53  # integers below are exact as float64
CODE_WORDS = ["id", "ids", "code", "codes", "zip", "zipcode", "postcode", "sku", "phone", "hash"]


def codes_among_numbers(columns: Columns, table: pyarrow.RecordBatch) -> list[str]:
    """Warn about columns of integers that were taken for numbers and look like codes or ids.

    Columns that the run names give no warning, nor do columns whose values have a bucket each.

    table: the first rows
    """
    found: dict[str, str] = {}
    for name in columns.numeric if columns.chosen else ():
        why = _why_codes(name, numbers(table.column(name)))
        if why:
            found[name] = why
    if not found:
        return []
    told = ", ".join(f"{name} ({why})" for name, why in found.items())
    others = [name for name in columns.numeric if name not in found]
    as_they_are = _options(columns.categorical, columns.numeric)
    return [
        f"integer columns that look like codes or ids are read as numbers: {told}. Numbers of "
        "similar size share a key. To give each value its own key, use "
        f"{_options([*columns.categorical, *found], others)} (leave out columns whose values all "
        f"differ); to keep them as numbers, use {as_they_are}"
    ]


def unique_ids(
    seen: Mapping[str, Seen], categorical: Sequence[str], numeric: Sequence[str]
) -> list[str]:
    """Warn about columns of categories whose values nearly all occur once.

    seen: the texts that all workers have seen, by column
    """
    found = {}
    for name, each in seen.items():
        values = min(distinct_texts(each), each.rows)
        if each.rows >= ROWS_LEAST and values >= NEARLY_ALL * each.rows:
            found[name] = f"{values:,} values in {each.rows:,} rows"
    if not found:
        return []
    told = ", ".join(f"{name} ({many})" for name, many in found.items())
    others = _options([name for name in categorical if name not in found], numeric)
    leave = f"leave the columns out: {others}" if others else "leave the columns out"
    return [
        f"nearly all values of these columns occur once: {told}. A model learns nothing from a "
        f"value that occurs once; {leave}"
    ]


def _why_codes(name: str, values: np.ndarray) -> str:
    """Return the reason why a column of numbers looks like codes; "" if it does not."""
    values = values[np.isfinite(values)]
    if len(values) < ROWS_LEAST or (values != np.floor(values)).any():
        return ""
    many, few = len(np.unique(values)), len(np.unique(buckets(values)[0]))
    if many == few:
        return ""
    low, high = values.min(), values.max()
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    if re.split(r"[^a-z]+", words.lower().rstrip("0123456789_"))[-1] in CODE_WORDS:
        return "by its name"
    if max(-low, high) >= EXACT:
        return "integers above 2**53"
    if many >= CODES_LEAST and few <= BUCKETS_MOST:
        return f"{many:,} values of similar size"
    if many >= NEARLY_ALL * len(values) and high - low < 2 * len(values):
        return "row numbers"
    return ""


def _options(categorical: Sequence[str], numeric: Sequence[str]) -> str:
    """Return the command-line options that name these columns."""
    named = (("--categorical", categorical), ("--numeric", numeric))
    return " ".join(f'{option} "{",".join(names)}"' for option, names in named if names)
