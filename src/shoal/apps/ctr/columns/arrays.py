"""Whole columns of pyarrow, as the texts of their distinct values, or as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from shoal.apps.ctr.columns.keys import (
    MISSING,
    number_of,
    text_of,
    text_of_float,
    texts_of_times,
)
from shoal.errors import DataCorrupt, InvalidValue

if TYPE_CHECKING:
    import pyarrow

LOOKED_AT = 4  # texts that show whether a column may have datetimes
YEARS = -62_135_596_800, 253_402_300_800  # seconds since 1970 of the years 1 and 10000


def kind_of(kind: pyarrow.DataType) -> Literal["category", "number", ""]:
    """Return the default kind of a column of a type; "" if values of the type have no key."""
    from pyarrow import types

    while types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        kind = kind.value_type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    categories = (types.is_boolean, types.is_date, types.is_time, types.is_timestamp, types.is_null)
    return "category" if _is_text(kind) or any(each(kind) for each in categories) else ""


class Distinct(msgspec.Struct, frozen=True):
    """The distinct values of a column.

    texts:   the texts of the values; "" where a value is missing
    places:  (n,), the place in `texts` of each row's value
    final:   whether the texts are those of keys; if not, `meanings` has to convert them
    """

    texts: list[str]
    places: np.ndarray
    final: bool = True


def distinct(column: pyarrow.Array) -> Distinct:
    """Return the distinct values of a column.

    Raises:
        DataCorrupt: a text is not UTF-8
    """
    from pyarrow import types

    coded = _plain(column).dictionary_encode(null_encoding="encode")
    places: np.ndarray = coded.indices.to_numpy(zero_copy_only=False)
    values, kind = coded.dictionary, coded.dictionary.type
    if _is_text(kind) or types.is_time(kind):
        texts = values if _is_text(kind) else values.cast("string")
        moments = _moments(texts)
        return Distinct(_listed(texts if moments is None else moments), places, moments is not None)
    if types.is_timestamp(kind) or types.is_date(kind):
        return Distinct(_times(values), places)
    if types.is_integer(kind):
        return Distinct(_listed(values.cast("string")), places)
    if types.is_floating(kind):
        numbers = values.to_numpy(zero_copy_only=False)
        narrow = numbers.dtype.itemsize < 8
        floats = map(float, map(str, numbers)) if narrow else numbers.tolist()
        return Distinct([text_of_float(each) or "" for each in floats], places)
    return Distinct([text_of(each) or "" for each in values.to_pylist()], places)


def _listed(texts: pyarrow.Array) -> list[str]:
    try:
        found: list[str] = texts.to_pylist()
    except UnicodeDecodeError as error:
        raise DataCorrupt(f"text that is not UTF-8 ({error.reason})") from None
    if texts.null_count:
        found = [text or "" for text in found]
    return found


def _times(values: pyarrow.Array) -> list[str]:
    """Return the keys' texts of distinct dates or timestamps."""
    import pyarrow
    from pyarrow import compute, types

    if types.is_date(values.type):
        values = values.cast(pyarrow.date32()).cast(pyarrow.timestamp("s"))
    unit, zone = values.type.unit, "" if values.type.tz is None else "Z"
    values = values.cast(pyarrow.timestamp(unit))
    # pyarrow cannot spell other years than YEARS
    bounds = compute.min_max(values.cast(pyarrow.int64())).as_py()
    a_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    if bounds["min"] is not None and not (
        YEARS[0] * a_second <= bounds["min"] <= bounds["max"] < YEARS[1] * a_second
    ):
        return texts_of_times(values.to_numpy(zero_copy_only=False), zone)
    return _listed(_spelled(values, zone))


def _moments(texts: pyarrow.Array) -> pyarrow.Array | None:
    """Return the keys' texts of distinct texts that are all datetimes; None if one is not.

    The texts equal those of `meanings`, and pyarrow is faster.
    """
    import pyarrow
    from pyarrow import compute

    first = [text for text in _listed(texts.slice(0, LOOKED_AT)) if text not in MISSING]
    if not first or first[0][13:14] != ":":
        return None
    missing = compute.is_in(texts, value_set=pyarrow.array(MISSING, texts.type))
    texts = compute.if_else(missing, None, texts)
    if not compute.all(compute.equal(compute.utf8_slice_codeunits(texts, 13, 14), ":")).as_py():
        return None
    for zone in ("", "Z"):
        try:
            moments = texts.cast(pyarrow.timestamp("ns", "UTC" if zone else None))
        except pyarrow.ArrowInvalid:
            continue
        return _spelled(moments.cast(pyarrow.timestamp("ns")), zone)
    return None


def _spelled(moments: pyarrow.Array, zone: str) -> pyarrow.Array:
    """Return the keys' texts of timestamps without a zone, of years that pyarrow can spell."""
    import pyarrow
    from pyarrow import compute

    texts = moments.cast(pyarrow.string())
    if moments.type.unit != "s":  # it has a fraction
        texts = compute.ascii_rtrim(compute.ascii_rtrim(texts, "0"), ".")
    if zone:
        return compute.binary_join_element_wise(texts, zone, "")
    midnight = compute.ends_with(texts, " 00:00:00")
    return compute.if_else(midnight, compute.utf8_slice_codeunits(texts, 0, 10), texts)


def numbers(column: pyarrow.Array) -> np.ndarray:
    """Return the numbers of a column, (n,) float64; NaN where a value is missing.

    Raises:
        DataCorrupt: a value is no number
    """
    import pyarrow
    from pyarrow import types

    column = _plain(column)
    if _is_text(column.type):
        values = distinct(column)
        try:
            known = np.array([number_of(each) for each in values.texts], np.float64)
        except InvalidValue as error:
            raise DataCorrupt(error.message) from None
        spelled: np.ndarray = known[values.places]
        return spelled
    if not (types.is_boolean(column.type) or types.is_null(column.type)):
        if kind_of(column.type) != "number":
            raise DataCorrupt(f"values of type {column.type} are no numbers")
        if types.is_decimal(column.type):
            column = column.cast("string")  # a text is rounded correctly
    found: np.ndarray = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return found


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    return any(of(kind) for of in (types.is_string, types.is_large_string, types.is_string_view))


def _plain(column: pyarrow.Array) -> pyarrow.Array:
    """Return the column without dictionary or run-end encoding, in a type that can be encoded."""
    import pyarrow
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_run_end_encoded(column.type):
        column = compute.run_end_decode(column)
    if types.is_string_view(column.type):
        column = column.cast("string")
    if types.is_decimal(column.type) and column.type.bit_width < 128:
        column = column.cast(pyarrow.decimal128(column.type.precision, column.type.scale))
    return column
