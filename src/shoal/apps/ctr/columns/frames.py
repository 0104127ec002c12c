"""Tables of callers, in memory, as batches of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.apps.ctr.columns.encoding import Columns, check_columns
from shoal.apps.ctr.columns.keys import number_of, text_of
from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.shuffling import joined
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, InvalidValue
from shoal.extras import require

if TYPE_CHECKING:
    import pyarrow

STREAM = "__arrow_c_stream__"  # a method of tables of pyarrow, pandas (from 2.2 on) and polars
OBJECTS = np.dtype(object)  # the type of a pandas or numpy column of Python objects


def is_table(rows: object) -> bool:
    """Return whether rows are a table: a dictionary, or an object with an Arrow stream."""
    return isinstance(rows, Mapping) or hasattr(rows, STREAM)


def batch_of_table(spec: CtrSpec, rows: Any) -> Batch:
    """Return the rows of a table as a batch for the model of a run.

    Python objects, in lists or in pandas columns of type object, are converted one by one: pyarrow
    would infer one type for the column and change values (a date and a datetime become two dates).

    Raises:
        DataCorrupt: a column is missing, or has values without keys; no rows
        InvalidValue: a column is not a list of values
        PackageMissing: pyarrow is not installed
    """
    require("pyarrow", "a prediction of rows in a table")
    import pyarrow

    try:
        if isinstance(rows, Mapping) or hasattr(rows, "iloc"):
            table = _of_columns(spec, rows)
        else:
            table = pyarrow.table(rows)
    except pyarrow.ArrowException as error:
        raise DataCorrupt(f"rows: {error}") from None
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"rows: a column is a list of values: {error}") from None
    columns = Columns(spec, table.schema, "rows")
    parts = [columns.encoded(part) for part in table.to_batches() if part.num_rows]
    if not parts:
        raise DataCorrupt("rows: no rows")
    return joined(parts)


def _of_columns(spec: CtrSpec, rows: Any) -> pyarrow.Table:
    """Return the columns of a dictionary or a pandas table that the run uses."""
    import pyarrow

    label, numeric = spec.label or "label", spec.columns(spec.numeric)
    features = [*spec.columns(spec.categorical), *numeric]
    lengths = {name: _length(rows[name]) for name in rows}
    check_columns(features, [*map(str, lengths)], "rows")
    if len({*lengths.values()}) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataCorrupt(f"rows: columns differ in length ({told})")
    found = {}
    for name in (*features, *([label] if label in lengths else [])):
        column = rows[name]
        if isinstance(column, list | tuple) or getattr(column, "dtype", None) == OBJECTS:
            found[name] = _one_by_one(name, column, name in numeric)
        elif hasattr(column, STREAM):  # such as a polars Series
            found[name] = pyarrow.chunked_array(column)
        else:
            found[name] = pyarrow.table({name: column}).column(0)
    return pyarrow.table(found)


def _length(column: Any) -> int:
    if isinstance(column, str | bytes):
        raise TypeError("got text")  # its characters are not values
    return len(column)


def _one_by_one(name: str, values: Iterable[Any], numeric: bool) -> pyarrow.Array:
    """Convert Python objects to numbers, or to the texts of their keys."""
    import pyarrow

    kind, usual = (pyarrow.float64(), float) if numeric else (pyarrow.string(), str)
    if {*map(type, values)} <= {usual, type(None)}:
        return pyarrow.array(values, kind)
    try:
        if numeric:
            return pyarrow.array([number_of(each) for each in values], pyarrow.float64())
        return pyarrow.array([text_of(each) for each in values], pyarrow.string())
    except InvalidValue as error:
        what = "is no number" if numeric else "cannot be read"
        raise DataCorrupt(f"rows: column {name!r} {what}: {error.message}") from None
