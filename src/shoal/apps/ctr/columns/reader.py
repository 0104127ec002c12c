"""Files with named columns, CSV and Parquet, as batches of keys and values: read by pyarrow.

A category makes the key hash(column, value). A number makes hash(column, bucket): its sign and
⌊4 log₂ |v|⌋, so that buckets are about a fifth wide, whatever the unit. What is missing makes none.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shoal.apps.ctr.readers import Batch, hashed
from shoal.apps.ctr.shuffling import cut, joined
from shoal.apps.ctr.spec import CtrSpec, Format
from shoal.data.streams import opened
from shoal.errors import DataCorrupt, InvalidValue

if TYPE_CHECKING:
    import pyarrow

LABELS = {"1": 1.0, "+1": 1.0, "0": 0.0, "-1": -1.0, "1.0": 1.0, "0.0": 0.0, "-1.0": -1.0}
READ_ROWS = 1 << 15
READ_BYTES = 1 << 20
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
NULLS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"]  # numbers that are missing
ZERO, NEGATIVE = 1 << 20, 1 << 21  # buckets of 0, and before those of negative numbers
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")


class TableReader:
    """One worker's rows of a CSV or Parquet file: of every `share[1]` batches that of `share[0]`.

    skipped:  lines of CSV that were left out; more than `spec.skip_bad_lines` are an error
    columns:  that count
    advice:   what the error of a malformed line says to do

    Raises:
        DataMissing: no such file.
        DataCorrupt: it is no such table, has no such columns or no rows, or a label is neither 1, 0
            nor -1.
        InvalidValue: pyarrow is not installed, or a column is named twice.
    """

    def __init__(
        self,
        path: Path,
        kind: Format,
        spec: CtrSpec,
        share: tuple[int, int] = (0, 1),
        advice: str = "",
    ) -> None:
        self.kind = kind
        self.skipped = 0
        self.path = path
        self._spec = spec
        self._share = share
        self._advice = advice
        try:
            with self._open() as table:  # the schema of CSV is that of its first rows
                self.columns = Columns(spec, table.schema, str(path))
        except UnicodeDecodeError as error:  # in a column's name
            raise self._corrupt(error) from None

    def __iter__(self) -> Iterator[Batch]:
        self.skipped = 0
        mine, sharers = self._share
        size, first, seen = self._spec.batch_size, 0, False
        held: list[Batch] = []
        rows = 0
        for table in self._tables():
            numbers = first + np.arange(table.num_rows)
            first += table.num_rows
            seen = seen or table.num_rows > 0
            if sharers > 1:
                table = table.filter(numbers // size % sharers == mine)
            if not table.num_rows:
                continue
            held.append(self.columns.encoded(table))
            rows += table.num_rows
            if rows >= size:
                pool, whole = joined(held), rows // size * size
                yield from cut(pool, np.arange(whole), size)
                held, rows = list(cut(pool, np.arange(whole, rows), size)), rows - whole
        if not seen:
            raise DataCorrupt(f"{self.path}: no rows")
        if rows:
            yield joined(held)

    # ------------------------------------------------------------------ files

    def _tables(self) -> Iterator[pyarrow.RecordBatch]:
        """The columns in use, of some rows after the other."""
        import pyarrow

        columns = self.columns
        wanted = [*columns.categorical, *columns.numeric]
        wanted += [columns.label] if columns.labelled else []
        try:
            with self._open(wanted, columns.numeric) as table:
                yield from table.batches()
        except (pyarrow.ArrowException, OSError) as error:
            raise self._corrupt(error) from None

    def _open(self, wanted: Sequence[str] = (), numeric: Sequence[str] = ()) -> _Table:
        """The file; of CSV with the `wanted` columns that are not `numeric` as text."""
        try:
            import pyarrow
        except ImportError:
            raise InvalidValue(
                f"{self.path}: reading {self.kind} needs pyarrow: pip install 'shoal[tables]'"
            ) from None
        try:
            if self.kind == "parquet":
                return _Parquet(self.path, wanted)
            return _Csv(self, wanted, numeric)
        except (pyarrow.ArrowException, OSError) as error:
            raise self._corrupt(error) from None

    def _corrupt(self, error: Exception) -> DataCorrupt:
        hint = ""
        if "conversion error" in str(error):
            hint = " (--categorical names the columns of categories, --numeric those of numbers)"
        elif "parse error" in str(error):
            hint = self._advice
        return DataCorrupt(f"{self.path}: {error}{hint}")

    def leave_out(self, row: Any) -> str:
        """Leave out a malformed line of CSV, or stop."""
        self.skipped += 1
        return "skip" if self.skipped <= self._spec.skip_bad_lines else "error"


class Columns:
    """The columns of a table that count, and batches of their keys.

    labelled:  whether the table has the label's column

    Raises:
        DataCorrupt: the table has no such columns, or a label is neither 1, 0 nor -1.
        InvalidValue: a column is named twice.
    """

    def __init__(self, spec: CtrSpec, schema: pyarrow.Schema, name: str) -> None:
        self.label = spec.label or "label"
        self.labelled = self.label in schema.names
        self.categorical, self.numeric = _chosen(spec, schema, self.label, name)
        self._spec = spec
        self._name = name

    def encoded(self, table: pyarrow.RecordBatch) -> Batch:
        """The rows of a part of the table."""
        keys, there = [], []
        for name in self.categorical:
            made = _categories(name, table.column(name))
            keys.append(made[0])
            there.append(made[1])
        for name in self.numeric:
            made = _buckets(name, self._numbers(name, table.column(name)))
            keys.append(made[0])
            there.append(made[1])
        mask = np.column_stack(there)
        counts = mask.sum(1)
        used = np.column_stack(keys)[mask]
        fields = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)[mask]
        if self._spec.hash_bits:
            used = hashed(used, self._spec.hash_bits)
        labels = np.zeros(table.num_rows, np.float32)
        if self.labelled:
            labels = self._labels(table.column(self.label))
        ones = np.ones(len(used), np.float32)
        return Batch(labels, np.cumsum(counts) - counts, used, ones, fields.astype(np.int64))

    def _numbers(self, name: str, column: pyarrow.Array) -> np.ndarray:
        import pyarrow
        from pyarrow import compute

        if _is_text(column.type):
            column = _as_text(column)
            missing = compute.is_in(column, value_set=pyarrow.array(NULLS, column.type))
            column = compute.if_else(missing, None, column)
        try:
            cast = column.cast(pyarrow.float64())
        except pyarrow.ArrowException as error:
            raise DataCorrupt(
                f"{self._name}: column {name!r} is no number: {error} (--categorical names columns "
                "of categories)"
            ) from None
        numbers: np.ndarray = cast.to_numpy(zero_copy_only=False)
        return numbers

    def _labels(self, column: pyarrow.Array) -> np.ndarray:
        """Labels, (n,) float32: 1 of clicks, else 0."""
        values, places = _distinct(column)
        wanted = self._spec.positive
        found = []
        for value in values:
            if wanted and (value == wanted or self._spec.negative in ("", value)):
                found.append(float(value == wanted))
            elif wanted:
                raise DataCorrupt(
                    f"{self._name}: column {self.label!r}: expected a label of {wanted!r} or "
                    f"{self._spec.negative!r}, not {value!r:.30}"
                )
            elif value in LABELS:
                found.append(float(LABELS[value] > 0))
            elif value in TRUE or value in FALSE:
                found.append(float(value in TRUE))
            else:
                shown = "nothing" if value is None else repr(value[:30])
                raise DataCorrupt(
                    f"{self._name}: column {self.label!r}: expected a label of 1, 0 or -1, not "
                    f"{shown} (--positive VALUE says which value is a click)"
                )
        labels: np.ndarray = np.array(found, np.float32)[places]
        return labels


class _Table(ABC):
    """An open file, and the types of its columns."""

    schema: pyarrow.Schema
    file: Any

    @abstractmethod
    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Some rows after the other, of the columns that are wanted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.file.close()


class _Parquet(_Table):
    def __init__(self, path: Path, wanted: Sequence[str]) -> None:
        import pyarrow.parquet

        opened(path).close()  # an error that says why it cannot be read
        self.file = pyarrow.parquet.ParquetFile(path)
        self._wanted = list(wanted)
        self.schema = self.file.schema_arrow

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        yield from self.file.iter_batches(READ_ROWS, columns=self._wanted, use_threads=False)


class _Csv(_Table):
    def __init__(self, reader: TableReader, wanted: Sequence[str], numeric: Sequence[str]) -> None:
        from pyarrow import csv, float64, string

        kinds = {name: string() for name in wanted} | {n: float64() for n in numeric}
        path = reader.path
        self.file = opened(path)
        try:
            self._reader = csv.open_csv(
                self.file,
                csv.ReadOptions(use_threads=False, block_size=READ_BYTES),
                csv.ParseOptions(
                    delimiter="\t" if ".tsv" in path.suffixes else ",",
                    invalid_row_handler=reader.leave_out,
                ),
                csv.ConvertOptions(
                    column_types=kinds, include_columns=list(wanted), null_values=NULLS
                ),
            )
        except BaseException:
            self.file.close()
            raise
        self.schema = self._reader.schema

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        yield from self._reader


def _chosen(
    spec: CtrSpec, schema: pyarrow.Schema, label: str, name: str
) -> tuple[list[str], list[str]]:
    """The columns of categories and of numbers: those that the run names, or all by their types."""
    import pyarrow

    categorical, numeric = spec.columns(spec.categorical), spec.columns(spec.numeric)
    if not categorical and not numeric:
        for column, kind in zip(schema.names, schema.types, strict=True):
            is_number = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
            if column != label:
                (numeric if is_number else categorical).append(column)
    named = [*categorical, *numeric]
    absent = sorted({*named} - {*schema.names})
    known = ", ".join(schema.names[:20])
    if absent:
        raise DataCorrupt(f"{name}: no column {', '.join(absent)} (columns: {known})")
    if len({*named, label}) <= len(named):
        raise InvalidValue(f"{name}: a column is named twice among the label, categories, numbers")
    if not named:
        raise DataCorrupt(f"{name}: no columns beside the label (columns: {known})")
    return categorical, numeric


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(of(kind) for of in (types.is_string, types.is_large_string, types.is_string_view))


def _as_text(column: pyarrow.Array) -> pyarrow.Array:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if pyarrow.types.is_string(column.type) else column.cast(pyarrow.string())


def _distinct(column: pyarrow.Array) -> tuple[list[str | None], np.ndarray]:
    """The distinct values as text without blanks around it, and the place of each row's."""
    from pyarrow import compute

    coded = compute.utf8_trim_whitespace(_as_text(column))
    coded = coded.dictionary_encode(null_encoding="encode")
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)


def _categories(name: str, column: pyarrow.Array) -> tuple[np.ndarray, np.ndarray]:
    """The keys of a column, and which rows have one."""
    values, places = _distinct(column)
    keys = np.array([_key(name, value or "") for value in values], np.uint64)
    there = np.array([bool(value) for value in values], bool)
    return keys[places], there[places]


def _buckets(name: str, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    there = np.isfinite(numbers)
    sizes = np.abs(np.where(there & (numbers != 0), numbers, 1.0))
    buckets = np.floor(4 * np.log2(sizes)).astype(np.int64)
    buckets[numbers == 0] = ZERO
    buckets[there & (numbers < 0)] += NEGATIVE
    values, places = np.unique(buckets, return_inverse=True)
    keys = np.array([_key(name, str(value)) for value in values.tolist()], np.uint64)
    return keys[places], there


def _key(column: str, value: str) -> int:
    digest = hashlib.blake2b(f"{column}\0{value}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
