"""Formats of lines: a plain parser of each, and guesses which format a file has.

The compiled parsers of `lines` leave unusual lines to the parsers of this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import inf, log
from pathlib import Path

from shoal.apps.ctr.labels import NUMBER
from shoal.apps.ctr.lines import CATEGORIES, COLUMN_BITS, INTEGERS
from shoal.apps.ctr.spec import Format
from shoal.data.readers import FLOAT32_MAX
from shoal.data.streams import lines, opened, unmarked
from shoal.errors import DataCorrupt

KEYS = 1 << 64
INTEGER, HEXADECIMAL = re.compile(r"-?[0-9]+"), re.compile(r"[0-9a-fA-F]+")
GROUP = re.compile(r"qid:[0-9]+")  # the group of rows that are ranked together
CRITEO_TABS = 30  # a line with so many tabs is tried as criteo's, which has 39

Row = tuple[float, list[int], list[float] | None]  # label as written, keys, values (None: all 1)


def guess(path: Path, skip: int = 0) -> Format:
    """Guess the format from the first line with more than a label.

    skip: the number of malformed lines that may come before it

    Raises:
        DataCorrupt: the line has none of the formats, or there is no line.
    """
    problem, found = "", False
    with opened(path) as file:
        try:
            for number, line in lines(path, file):
                row = (unmarked(path, line) if number == 1 else line).partition(b"#")[0]
                if not (fields := row.split()):
                    continue
                kind, said = _kind_of(row)
                if said:
                    problem = problem or f"line {number} is no row of {kind}: {said}"
                    if skip <= 0:
                        break
                    skip -= 1
                    continue
                found = True
                if len(fields) > 1:
                    return kind
        except OSError as error:
            raise DataCorrupt(f"{path}: {error}") from None
    if found and not problem:
        return "dummy"  # rows of labels only
    known = "neither libsvm, dummy nor criteo"
    raise DataCorrupt(f"{path}: {known} ({problem})" if problem else f"{path}: no rows")


def _kind_of(line: bytes) -> tuple[Format, str]:
    """Return the format of a line, and the problem if the line is malformed."""
    kinds: list[Format] = ["libsvm"] if b":" in line else ["dummy"]
    if b":" not in line and line.count(b"\t") >= CRITEO_TABS:
        kinds = ["criteo", "dummy"]
    problems = []
    for kind in kinds:
        try:
            PARSERS[kind](text_of(line))
        except ValueError as error:
            problems.append(str(error))
        else:
            return kind, ""
    return kinds[0], problems[0]


def text_format(path: Path) -> Format | None:
    """Guess the format from the first line with features, which may lack a label."""
    with opened(path) as file:
        for number, line in lines(path, file):
            row = (unmarked(path, line) if number == 1 else line).partition(b"#")[0]
            if b":" in row:
                return "libsvm"
            if row.count(b"\t") >= CRITEO_TABS:
                return "criteo"
            if len(row.split()) > 1:
                return "dummy"
    return None


def has_labels(lines: Iterable[bytes], kind: Format) -> bool:
    """Return whether the first line that is not blank begins with a label.

    A line of dummy always counts as labelled, because its first field may be either. Lines that are
    all blank have no labels: they are rows without features.
    """
    for line in lines:
        if kind == "criteo" and line.split():
            return line.count(b"\t") >= INTEGERS + CATEGORIES
        if fields := line.partition(b"#")[0].split():
            return b":" not in fields[0]
    return False


def without_comment(line: str) -> str:
    """Return the line up to a comment."""
    return line.partition("#")[0]


def text_of(line: bytes) -> str:
    """Decode a line and remove the line break at its end.

    Raises:
        ValueError: the line is not UTF-8, or has another line break or a zero byte; the message
            says what was expected
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        byte, at = line[error.start], error.start + 1
        raise ValueError(f"expected text in UTF-8, not byte {byte:#04x} at {at}") from None
    if "\0" in text:
        raise ValueError("expected text, not zero bytes (was the file written to its end?)")
    inside = text.removesuffix("\n").removesuffix("\r")
    if len(parts := inside.splitlines(keepends=True)) > 1:
        found = parts[0][-1]
        hint = r" (convert the file: tr '\r' '\n')" if found == "\r" else ""
        raise ValueError(
            f"expected a line that ends in a newline, and no line break {found!r} inside it{hint}"
        )
    return inside


def _label(text: str) -> float:
    if not NUMBER.fullmatch(text):
        weighted = " (weights of rows are not supported)" if ":" in text else ""
        raise ValueError(f"expected a label of 1, 0 or -1, not {text[:20]!r}{weighted}")
    return float(text)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected an index of 0 or more, not {text[:20]!r}")
    if int(text) >= KEYS:
        raise ValueError(f"expected an index below 2**64, not {text[:30]}")
    return int(text)


def _libsvm(line: str) -> Row:
    label, *fields = without_comment(line).split()
    keys, values = [], []
    for at, field in enumerate(fields):
        if at == 0 and GROUP.fullmatch(field):
            continue
        index, found, value = field.partition(":")
        keys.append(_index(index))
        number = float(value) if NUMBER.fullmatch(value) else inf
        if not found or abs(number) > FLOAT32_MAX:
            raise ValueError(f"expected index:value, not {field[:30]!r}")
        values.append(number)
    return _label(label), keys, values


def _dummy(line: str) -> Row:
    label, *fields = without_comment(line).split()
    return _label(label), [_index(field) for field in fields], None


def _criteo(line: str) -> Row:
    fields = line.split("\t")
    if len(fields) != 1 + INTEGERS + CATEGORIES:
        raise ValueError(f"expected {1 + INTEGERS + CATEGORIES} fields, not {len(fields)}")
    keys = []
    for column, field in enumerate(fields[1:]):
        if not field:
            continue
        if column < INTEGERS:
            if not INTEGER.fullmatch(field):
                raise ValueError(f"expected an integer in field {column + 1}")
            value = bucket(int(field))
        else:
            if not HEXADECIMAL.fullmatch(field):
                raise ValueError(f"expected hexadecimal digits in field {column + 1}")
            value = int(field, 16)
        keys.append(column << COLUMN_BITS | value % (1 << COLUMN_BITS))
    return _label(fields[0]), keys, None


def bucket(number: int) -> int:
    """Return a small integer as it is, a larger one by the square of its logarithm.

    >>> [bucket(each) for each in (-2, 0, 2, 3, 10, 100, 101, 1000000)]
    [-2, 0, 2, 3, 7, 23, 23, 192]
    """
    return number if number <= 2 else 2 + int(log(number) ** 2)


PARSERS: dict[str, Callable[[str], Row]] = {
    "libsvm": _libsvm,
    "dummy": _dummy,
    "criteo": _criteo,
}
