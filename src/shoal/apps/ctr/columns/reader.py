"""Files with named columns, CSV and Parquet, as batches of keys and values: read by pyarrow.

`keys` has the rule that gives a value its key. Missing values have no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.apps.ctr.columns.encoding import Columns
from shoal.apps.ctr.columns.files import CsvFile, ParquetFile, TableFile, with_codes
from shoal.apps.ctr.columns.values import ColumnKeys
from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.shuffling import cut, joined
from shoal.apps.ctr.spec import CtrSpec, Format
from shoal.errors import DataCorrupt
from shoal.extras import require

if TYPE_CHECKING:
    import pyarrow


class TableReader:
    """One worker's rows of a CSV or Parquet file: batch `share[0]` of every `share[1]` batches.

    skipped:  the number of CSV lines left out; more than `spec.skip_bad_lines` are an error
    columns:  the columns in use
    advice:   the advice at the end of the error of a malformed line
    keys:     the keys of each column of categories; missing columns are added

    Raises:
        DataMissing: there is no such file.
        DataCorrupt: the file is not a table of this kind, lacks a column, has no rows, a column of
            a type without keys, or a label that is neither of the two.
        InvalidValue: a column is named twice.
        PackageMissing: pyarrow is not installed.
    """

    def __init__(
        self,
        path: Path,
        kind: Format,
        spec: CtrSpec,
        share: tuple[int, int] = (0, 1),
        advice: str = "",
        keys: dict[str, ColumnKeys] | None = None,
    ) -> None:
        self.kind = kind
        self.skipped = 0
        self.path = path
        self._spec = spec
        self._share = share
        self._advice = advice
        try:
            with self._open() as table:  # the schema of a CSV file is that of its first rows
                self._schema = table.schema
            if kind == "csv" and not (spec.categorical or spec.numeric):
                self._schema = with_codes(path, self._schema)
            self.columns = Columns(spec, self._schema, str(path), keys)
        except UnicodeDecodeError as error:  # in a column's name
            raise self._corrupt(error) from None

    def __iter__(self) -> Iterator[Batch]:
        self.skipped = 0
        mine, sharers = self._share
        size, first, seen = self._spec.batch_size, 0, False
        held: list[Batch] = []
        rows = 0
        for table in self.tables():
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

    def tables(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the columns in use, in parts."""
        import pyarrow

        try:
            with self._open(used=True) as table:
                yield from table.batches()
        except (pyarrow.ArrowException, OSError) as error:
            raise self._corrupt(error) from None

    def _open(self, used: bool = False) -> TableFile:
        """Open the file, with all columns or with those in use."""
        require("pyarrow", f"{self.path}: reading {self.kind}")
        import pyarrow

        try:
            if self.kind == "parquet":
                return ParquetFile(self.path, self.columns.wanted if used else ())
            return CsvFile(self.path, self._types() if used else {}, self._leave_out)
        except (pyarrow.ArrowException, OSError) as error:
            raise self._corrupt(error) from None

    def _types(self) -> dict[str, pyarrow.DataType]:
        """Return the types of CSV columns: text for categories, whose keys depend on spelling."""
        from pyarrow import bool_, float64, string, types

        found = dict.fromkeys(self.columns.wanted, string())
        for name in self.columns.numeric:
            truth = types.is_boolean(self._schema.field(name).type)
            found[name] = bool_() if truth else float64()
        return found

    def _corrupt(self, error: Exception) -> DataCorrupt:
        hint = ""
        if "conversion error" in str(error):
            hint = " (--categorical names the columns of categories, --numeric those of numbers)"
        elif "parse error" in str(error):
            hint = self._advice
        return DataCorrupt(f"{self.path}: {error}{hint}")

    def _leave_out(self, row: Any) -> str:
        """Return "skip" to leave out a malformed line of CSV, or "error" if there are too many."""
        self.skipped += 1
        return "skip" if self.skipped <= self._spec.skip_bad_lines else "error"
