"""The rule that gives a value of a named column its key: see `key`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np

from shoal.errors import InvalidValue
from shoal.keys import hash_of

DIGITS_MOST = 1000  # bound of the digits of a number

MISSING = ("", "NA", "N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "?")
WORDS: dict[str, str | None] = {
    **dict.fromkeys(MISSING),
    "True": "true",
    "TRUE": "true",
    "False": "false",
    "FALSE": "false",
    "-0": "0",
}
WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")
SCIENTIFIC = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+[eE][+-]?|[eE][+-])[0-9]{1,3}"  # 1e5 may be a code
)
INSTANT = re.compile(
    r"([0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01]))[ T]"
    r"((?:[01][0-9]|2[0-3]):[0-5][0-9])(?:(:[0-5][0-9])(?:\.([0-9]+))?)?"
    r"(?: ?(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2})?)?))?"
)
SIGNED = re.compile("[eE][+-]")
CLOCK = re.compile(r"([0-9]{2}:[0-9]{2}:[0-9]{2})\.([0-9]+)")
NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf(?:inity)?",
    re.IGNORECASE,
)

ZERO, NEGATIVE = 1 << 20, 1 << 21  # the bucket of 0; the offset of the buckets of negative numbers
SIZES = range(4 * -1074, 4 * 1024 + 1)  # buckets of positive numbers


def key(column: str, value: object, *, numeric: bool = False, hash_bits: int = 0) -> int | None:
    """Compute the key of a value of a named column: the row that it has in a model's tables.

    A value has the same key whether it is read from CSV or Parquet, or comes from a DataFrame or a
    dictionary. The key of value v in column c is

        key(c, v) = first 8 bytes, little-endian, of BLAKE2b(c ‖ 0x00 ‖ text(v))

    where ‖ concatenates; both texts are in UTF-8 and in normal form NFC. In a column of categories
    text(v) is

        missing          nothing: None, NaN, NaT and NA have no key
        bool             true or false
        integer          the decimal digits
        float            the digits of the integer, if v is one: 7.0 -> 7; else the shortest decimal
                         that reads back as v, without an exponent: 1e-05 -> 0.00001. A float of 16
                         or 32 bits is replaced by its shortest decimal first
        Decimal          the decimal digits without trailing zeros: 1.50 -> 1.5
        date, datetime   2026-01-31, also at midnight; else 2026-01-31 12:30:00.5, without trailing
                         zeros of the fraction. With a time zone: in UTC, 2026-01-31 11:30:00Z
        time             12:30:00.5, without trailing zeros of the fraction
        text             the text without blanks at its ends

    Files of text spell values in several ways. Therefore some texts count as the value that they
    spell:

        missing          "", NA, N/A, <NA>, NaN, nan, NaT, null, NULL, None, ?
        bool             True, TRUE, true, False, FALSE, false
        integer          with a fraction of zeros: 7.0
        float            with an exponent that has a sign or follows a fraction: 1e-05, 1.25E7
        datetime         in ISO 8601: 2026-01-31T12:30:00.500+01:00, 2026-01-31 00:00:00
        time             with a fraction: 12:30:00.500000

    All other texts are themselves: 007, +7, 1e5 and 1.10 are not 7, 100000 and 1.1. So a program
    that reads 007 as the number 7 before it hands the value over gives it another key. The number 1
    and True differ, and so do a datetime with a time zone and one without.

    In a column of numbers text(v) is the number of the bucket of v, b = ⌊4 log₂ abs(v)⌋ for v > 0,
    b + 2²¹ for v < 0 and 2²⁰ for 0: buckets are about a fifth wide, whatever the unit.

    With `hash_bits` the key is the upper bits of the SplitMix64 hash of this key.

    Args:
        column: the column's name.
        value: a text, bool, int, float, Decimal, date, datetime or time; a scalar of numpy or
            pandas of one of these types; or a missing value.
        numeric: whether the run uses the column as numbers (`--numeric`).
        hash_bits: the run's `--hash-bits`; 0 for none.

    Returns:
        The key, below 2⁶⁴ or 2 to the power of `hash_bits`; None if the value is missing, or is a
        number of a column of numbers and not finite.

    Raises:
        InvalidValue: a value of another type (bytes, lists, durations), a text that is not Unicode,
            a value that is no number in a column of numbers, or `hash_bits` out of its range.

    Example:
        >>> import shoal
        >>> shoal.ctr.key("flag", True) == shoal.ctr.key("flag", "TRUE")
        True
        >>> shoal.ctr.key("zip", 7) == shoal.ctr.key("zip", 7.0) == shoal.ctr.key("zip", "7")
        True
        >>> shoal.ctr.key("zip", "007") == shoal.ctr.key("zip", 7)
        False
        >>> shoal.ctr.key("zip", float("nan")) is None
        True
        >>> key = shoal.ctr.key
        >>> key("price", 100, numeric=True) == key("price", "101.5", numeric=True)
        True

    References:
        Weinberger et al. 2009, Feature hashing for large scale multitask learning.
    """
    if not isinstance(column, str):
        raise InvalidValue(f"a column's name is a text, not {type(column).__name__}")
    if isinstance(hash_bits, bool) or not isinstance(hash_bits, int) or not 0 <= hash_bits < 64:
        raise InvalidValue(f"hash_bits is {hash_bits!r}, and has to be in 0..63")
    if numeric:
        numbers, there = buckets(np.array([number_of(value)]))
        text = str(numbers[0]) if there[0] else None
    else:
        text = text_of(value)
    if text is None:
        return None
    found = int(keys_of(column, [text])[0])
    return hash_of(found) >> (64 - hash_bits) if hash_bits else found


def keys_of(column: str, texts: Iterable[str]) -> np.ndarray:
    """Return the keys of texts that `text_of` has returned, (n,) uint64."""
    return joined(digests_of(column, texts))


def digests_of(column: str, texts: Iterable[str]) -> list[bytes]:
    """Return the keys of texts as bytes.

    Raises:
        InvalidValue: a text is not Unicode
    """
    found = []
    try:
        start = blake2b(unicodedata.normalize("NFC", column).encode() + b"\0", digest_size=8)
        for text in texts:
            each = start.copy()
            each.update(text.encode())
            found.append(each.digest())
    except UnicodeEncodeError as error:
        raise InvalidValue(
            f"{error.object!r} is not Unicode: it has half of a surrogate pair"
        ) from None
    return found


def joined(digests: list[bytes]) -> np.ndarray:
    """Convert the bytes of keys to keys, (n,) uint64."""
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


# ---------------------------------------------------------------------------- categories


def text_of(value: Any) -> str | None:
    """Return the key's text of a category, as `key` defines it; None if it is missing.

    Raises:
        InvalidValue: as in `key`
    """
    if isinstance(value, str):
        return text_of_text(value)
    if value is None or is_missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.timedelta64):  # numpy counts it as an integer
        raise _no_category(value)
    if isinstance(value, int | np.integer):
        if int(value).bit_length() > 3 * DIGITS_MOST:
            raise InvalidValue(f"an integer of more than {DIGITS_MOST} digits is no category")
        return str(int(value))
    if isinstance(value, float | np.floating):
        wide = isinstance(value, float) or value.dtype.itemsize > 4
        return text_of_float(float(value) if wide else float(str(value)))
    if isinstance(value, Decimal):
        return _text_of_decimal(value)
    if isinstance(value, datetime):
        return text_of_text(value.isoformat(" "))
    if isinstance(value, date | time):
        return text_of_text(value.isoformat())
    if isinstance(value, np.datetime64):
        return texts_of_times(np.array([value]))[0] or None
    raise _no_category(value)


def _no_category(value: object) -> InvalidValue:
    return InvalidValue(
        f"a value of type {type(value).__name__} is no category: give a text, a number, a truth "
        "value, a date or a time"
    )


def is_missing(value: Any) -> bool:
    """Return whether a value that is no text is NaN, NaT or NA."""
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64 | date):
        return bool(value != value)  # pandas' NaT is a datetime
    return type(value).__name__ == "NAType"  # a type of pandas, which may be missing


def text_of_text(text: str) -> str | None:
    """Return the key's text of a text; None if it stands for a missing value."""
    text = text.strip()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).strip()
    if text in WORDS:
        return WORDS[text]
    if text[0] not in "-0123456789" or text.isdigit():
        return text
    if ":" in text:
        if text[13:14] == ":" and (found := INSTANT.fullmatch(text)):
            return _text_of_instant(found)
        if text[2:3] == ":" and (found := CLOCK.fullmatch(text)):
            fraction = found[2].rstrip("0")
            return f"{found[1]}.{fraction}" if fraction else found[1]
    elif SIGNED.search(text) or "." in text:
        if found := WHOLE.fullmatch(text):
            return "0" if found[1] == "-0" else found[1]
        if SCIENTIFIC.fullmatch(text):
            number = float(text)
            return text if np.isinf(number) else text_of_float(number)
    return text


def meanings(texts: list[str]) -> list[str]:
    """Apply `text_of_text` to each text; "" where a value is missing."""
    return [
        text
        if text.isascii() and text.isalnum() and text not in WORDS
        else text_of_text(text) or ""
        for text in texts
    ]


def text_of_float(number: float) -> str | None:
    """Return the key's text of a float of 64 bits; None for NaN."""
    if number != number:
        return None
    if number.is_integer():
        return str(int(number))
    text = repr(number)
    return format(Decimal(text), "f") if "e" in text else text


def texts_of_times(times: np.ndarray, zone: str = "") -> list[str]:
    """Return the key's text of each datetime64; "" for NaT.

    zone: "Z" for times in UTC, "" for times without a zone
    """
    unit = np.datetime_data(times.dtype)[0]
    if unit in ("generic", "Y", "M", "W"):
        times = times.astype("datetime64[D]")
    seconds = times.astype("datetime64[s]")
    days = seconds.astype("datetime64[D]")
    texts: list[str]
    if unit in ("generic", "Y", "M", "W", "D"):
        texts = np.datetime_as_string(days).tolist()
    elif unit in ("h", "m", "s") or (times == seconds).all():
        texts = [each.replace("T", " ") + zone for each in np.datetime_as_string(seconds).tolist()]
    else:
        spelled = np.datetime_as_string(times).tolist()
        texts = [each.replace("T", " ").rstrip("0").rstrip(".") + zone for each in spelled]
    if not zone:
        for at in np.flatnonzero(times == days):
            texts[at] = str(days[at])
    for at in np.flatnonzero(np.isnat(times)):
        texts[at] = ""
    return texts


def _text_of_decimal(value: Decimal) -> str | None:
    if not value.is_finite():
        return "-inf" if value < 0 else "inf"
    if not value:
        return "0"
    if abs(value.adjusted()) > DIGITS_MOST or len(value.as_tuple().digits) > DIGITS_MOST:
        raise InvalidValue(f"a Decimal of more than {DIGITS_MOST} digits is no category")
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text_of_instant(found: re.Match[str]) -> str:
    """Return the key's text of a datetime; the text itself if the datetime does not exist."""
    day, clock, zone = found[1], found[2] + (found[3] or ":00"), found[5] or ""
    fraction = (found[4] or "").rstrip("0")
    if zone[:1] in ("+", "-"):
        digits = zone[1:].replace(":", "").ljust(6, "0")
        hours, minutes, seconds = (int(digits[at : at + 2]) for at in (0, 2, 4))
        away = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        try:
            moment = datetime.fromisoformat(f"{day} {clock}")
            moment = moment - away if zone[0] == "+" else moment + away
        except (ValueError, OverflowError):
            return found[0]
        day, clock = moment.isoformat(" ").split()
    if not (zone or fraction) and clock == "00:00:00":
        return day
    return f"{day} {clock}{'.' if fraction else ''}{fraction}{'Z' if zone else ''}"


# ---------------------------------------------------------------------------- numbers


def number_of(value: Any) -> float:
    """Convert a value of a column of numbers to float; NaN if it is missing.

    Raises:
        InvalidValue: the value is not a number
    """
    if value is None or (not isinstance(value, str) and is_missing(value)):
        return float("nan")
    numbers = bool | int | float | Decimal | np.bool_ | np.integer | np.floating
    if isinstance(value, np.timedelta64):  # numpy counts it as an integer
        raise InvalidValue(f"{value!r} is no number")
    if isinstance(value, numbers):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else -float("inf")
    text = text_of_text(value) if isinstance(value, str) else ""
    if text is None:
        return float("nan")
    if text in ("true", "false"):
        return float(text == "true")
    if not NUMBER.fullmatch(text):
        raise InvalidValue(f"{value!r:.40} is no number")
    return float(text)


def buckets(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bucket of each number, (n,) int64, and a mask of the finite numbers."""
    there = np.isfinite(numbers)
    sizes = np.abs(np.where(there & (numbers != 0), numbers, 1.0))
    found = np.floor(4 * np.log2(sizes)).astype(np.int64)
    found[numbers == 0] = ZERO
    found[there & (numbers < 0)] += NEGATIVE
    return found, there


def all_buckets() -> list[int]:
    """Return every bucket of finite float64 numbers."""
    return [ZERO, *SIZES, *(NEGATIVE + size for size in SIZES)]


def bounds_of(bucket: int) -> tuple[float, float]:
    """Return the lower and the upper bound of a bucket's numbers."""
    if bucket == ZERO:
        return 0.0, 0.0
    size = bucket - NEGATIVE if bucket > ZERO else bucket
    with np.errstate(over="ignore"):
        low, high = np.exp2(np.array([size, size + 1]) / 4).tolist()
    low = min(low, float(np.finfo(np.float64).max))  # its logarithm is rounded up
    return (-high, -low) if bucket > ZERO else (low, high)
