"""The texts of tests/real/texts.toml, and the tests of real processes, are of each other."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.real.texts import TEXTS

REAL = Path(__file__).parent / "real"
FILES = sorted(REAL.glob("test_*.py"))


@cache
def tree_of(path):
    return ast.parse(path.read_text())


def table_of(path):
    return path.stem.removeprefix("test_")


def keys_of(path):
    """The first argument of each call of `text` and `pattern`: a literal, or None."""
    calls = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))
    return [
        each.args[0].value if isinstance(each.args[0], ast.Constant) else None
        for each in calls
        if isinstance(each.func, ast.Name) and each.func.id in ("text", "pattern")
    ]


@pytest.mark.parametrize("path", FILES, ids=table_of)
def test_a_file_uses_the_texts_of_its_table_and_no_others(path):
    table = table_of(path)
    assert {*keys_of(path)} == {f"{table}.{name}" for name in TEXTS.get(table, {})}


def test_every_table_has_its_file():
    assert TEXTS.keys() <= {table_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=table_of)
def test_what_an_error_says_is_not_in_the_test(path):
    found = [
        node.value.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.keyword)
        and node.arg == "match"
        and isinstance(node.value, ast.Constant | ast.JoinedStr)
    ]
    assert not found
