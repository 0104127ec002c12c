"""The columns of a table that a run uses, and batches of their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shoal.apps.ctr.columns.arrays import Distinct, distinct, kind_of, numbers
from shoal.apps.ctr.columns.keys import buckets, keys_of, text_of_text
from shoal.apps.ctr.columns.values import TEXTS_MOST, ColumnKeys
from shoal.apps.ctr.readers import Batch, hashed
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, InvalidValue

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
LABELS = {"1": 1.0, "+1": 1.0, "0": 0.0, "-1": 0.0, "true": 1.0, "false": 0.0}
CHOOSE = "--categorical and --numeric name the columns to use"


class Columns:
    """The columns of a table that a run uses, and batches of their keys.

    keys:      the keys of each column of categories; missing columns are added
    labelled:  whether the table has the label's column
    chosen:    whether the columns were chosen by their types, because the run names none

    Raises:
        DataCorrupt: the table lacks a column, or has a column of a type without keys.
        InvalidValue: a column is named twice.
    """

    def __init__(
        self,
        spec: CtrSpec,
        schema: pyarrow.Schema,
        name: str,
        keys: dict[str, ColumnKeys] | None = None,
    ) -> None:
        self.label = spec.label or "label"
        self.labelled = self.label in schema.names
        self.categorical, self.numeric = _chosen(spec, schema, self.label, name)
        self.chosen = not (spec.categorical or spec.numeric)
        self._spec = spec
        self._name = name
        self._positive, self._negative = _label_text(spec.positive), _label_text(spec.negative)
        self.keys = {} if keys is None else keys
        for column in self.categorical:
            most = TEXTS_MOST // len(self.categorical)
            self.keys.setdefault(column, ColumnKeys(column, most))

    @property
    def wanted(self) -> list[str]:
        """The names of all columns that are read."""
        label = [self.label] if self.labelled else []
        return [*self.categorical, *self.numeric, *label]

    def encoded(self, table: pyarrow.RecordBatch) -> Batch:
        """Return the keys of the rows of a part of the table, as a batch.

        Raises:
            DataCorrupt: a label is unknown, a number is malformed, or a text is not UTF-8
        """
        keys, there = [], []
        for name in self.categorical:
            found = self._of(name, distinct, table)
            made, has = self.keys[name].of(found.texts, found.final)
            keys.append(made[found.places])
            there.append(has[found.places])
            self.keys[name].count(int(there[-1].sum()))
        for name in self.numeric:
            made, has = _bucket_keys(name, self._of(name, numbers, table))
            keys.append(made)
            there.append(has)
        mask = np.column_stack(there)
        counts = mask.sum(1)
        used = np.column_stack(keys)[mask]
        fields = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)[mask]
        if self._spec.hash_bits:
            used = hashed(used, self._spec.hash_bits)
        labels = np.zeros(table.num_rows, np.float32)
        if self.labelled:
            labels = self._labels(self._of(self.label, distinct, table))
        ones = np.ones(len(used), np.float32)
        return Batch(labels, np.cumsum(counts) - counts, used, ones, fields.astype(np.int64))

    def _of(
        self, name: str, function: Callable[[pyarrow.Array], T], table: pyarrow.RecordBatch
    ) -> T:
        """Apply a function to a column; its errors name the column."""
        try:
            return function(table.column(name))
        except DataCorrupt as error:
            numeric = function is numbers
            what = "is no number" if numeric else "cannot be read"
            hint = " (--categorical names columns of categories)" if numeric else ""
            raise DataCorrupt(
                f"{self._name}: column {name!r} {what}: {error.message}{hint}"
            ) from None

    def _labels(self, column: Distinct) -> np.ndarray:
        """Return the labels, (n,) float32: 1 for a click, else 0."""
        found = []
        for text in map(_label_text, column.texts):
            if self._positive:
                known = text == self._positive or self._negative in ("", text)
                found.append(float(text == self._positive))
                expected = f"{self._positive!r} or {self._negative!r}"
            else:
                known = text in LABELS
                found.append(LABELS.get(text, 0.0))
                expected = "1, 0 or -1"
            if not known:
                raise DataCorrupt(
                    f"{self._name}: column {self.label!r}: expected a label of {expected}, not "
                    f"{repr(text[:30]) if text else 'nothing'} (--positive VALUE says which value "
                    "is a click)"
                )
        labels: np.ndarray = np.array(found, np.float32)[column.places]
        return labels


def _label_text(text: str) -> str:
    """Return the text by which a label is compared."""
    return text_of_text(text) or text.strip()


def _bucket_keys(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of a column of numbers, and a mask of the rows that have one."""
    found, there = buckets(values)
    distinct, places = np.unique(found, return_inverse=True)
    return keys_of(name, map(str, distinct.tolist()))[places], there


def _chosen(
    spec: CtrSpec, schema: pyarrow.Schema, label: str, name: str
) -> tuple[list[str], list[str]]:
    """Return the columns of categories and of numbers: named by the run, or all by their types."""
    categorical, numeric = spec.columns(spec.categorical), spec.columns(spec.numeric)
    kinds = dict(zip(schema.names, schema.types, strict=True))
    if not categorical and not numeric:
        for column in schema.names:
            if column != label:
                (numeric if kind_of(kinds[column]) == "number" else categorical).append(column)
    named = [*categorical, *numeric]
    check_columns(named, schema.names, name)
    if len({*named, label}) <= len(named):
        raise InvalidValue(f"{name}: a column is named twice among the label, categories, numbers")
    if not named:
        raise DataCorrupt(f"{name}: no columns beside the label {label!r}")
    for column in (*named, label):
        if schema.names.count(column) > 1:
            raise DataCorrupt(f"{name}: two columns have the name {column!r}; rename one")
        if column in kinds and not kind_of(kinds[column]):
            out = "" if column == label else f", or leave it out ({CHOOSE})"
            raise DataCorrupt(
                f"{name}: column {column!r} has values of type {kinds[column]}, which have no "
                f"keys: write them as text or as numbers{out}"
            )
    return categorical, numeric


def check_columns(named: Sequence[str], known: Sequence[str], name: str) -> None:
    """Refuse a table that lacks columns.

    Raises:
        DataCorrupt: the table lacks a column
    """
    absent = sorted({*named} - {*known})
    if absent:
        raise DataCorrupt(
            f"{name}: no column {', '.join(absent)} (columns: {', '.join(known[:20])})"
        )
