"""CSV and Parquet files with named columns, in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shoal.apps.ctr.columns.keys import MISSING
from shoal.apps.ctr.spec import Format
from shoal.data.streams import opened

if TYPE_CHECKING:
    import pyarrow

READ_ROWS = 1 << 15
READ_BYTES = 1 << 20
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
CODE = "^-?0[0-9]"  # digits that are a code, not a number


class TableFile(ABC):
    """An open file, and the types of its columns."""

    schema: pyarrow.Schema
    file: Any

    @abstractmethod
    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of the wanted columns, in parts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.file.close()


class ParquetFile(TableFile):
    """A Parquet file.

    wanted: the names of the columns that `batches` reads
    """

    def __init__(self, path: Path, wanted: Sequence[str] = ()) -> None:
        import pyarrow.parquet

        opened(path).close()  # raises an error with the reason if the file cannot be read
        self.file = pyarrow.parquet.ParquetFile(path)
        self._wanted = list(wanted)
        self.schema = self.file.schema_arrow

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        yield from self.file.iter_batches(READ_ROWS, columns=self._wanted, use_threads=False)


class CsvFile(TableFile):
    """A CSV file with a header; types that are not given are inferred from the first rows.

    wanted:   the types of the columns to read, by name; {}: all columns
    bad_line: the function that is called with a malformed line, and returns "skip" or "error"
    """

    def __init__(
        self,
        path: Path,
        wanted: Mapping[str, pyarrow.DataType],
        bad_line: Callable[[Any], str],
    ) -> None:
        from pyarrow import csv

        self.file = opened(path)
        try:
            self._reader = csv.open_csv(
                self.file,
                csv.ReadOptions(use_threads=False, block_size=READ_BYTES),
                csv.ParseOptions(
                    delimiter="\t" if ".tsv" in path.suffixes else ",",
                    invalid_row_handler=bad_line,
                ),
                csv.ConvertOptions(
                    column_types=dict(wanted), include_columns=list(wanted), null_values=MISSING
                ),
            )
        except BaseException:
            self.file.close()
            raise
        self.schema = self._reader.schema

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        yield from self._reader


def with_codes(path: Path, schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return the schema of a CSV file with integers that have leading zeros (zip codes) as text.

    The first rows decide, as for all types.
    """
    from pyarrow import compute, string, types

    names = [each.name for each in schema if types.is_integer(each.type)]
    names = [name for name in names if schema.names.count(name) == 1]
    if names:
        with CsvFile(path, dict.fromkeys(names, string()), lambda row: "skip") as file:
            first = next(file.batches(), None)
        for name in names:
            column = first.column(name) if first is not None else ()
            if len(column) and compute.any(compute.match_substring_regex(column, CODE)).as_py():
                at = schema.get_field_index(name)
                schema = schema.set(at, schema.field(at).with_type(string()))
    return schema
