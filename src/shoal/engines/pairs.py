"""NAME=VALUE: settings and options as words, on a command line and in environment variables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.errors import InvalidValue


def pairs_of(words: Iterable[str], where: str) -> dict[str, str]:
    """Return the texts of NAME=VALUE words, by name.

    Args:
        words: the words, such as "tau=16".
        where: the flag or variable that has the words, for errors.

    Raises:
        InvalidValue: a word without "=".

    >>> pairs_of(["tau=16", "merge=median"], "--set")
    {'tau': '16', 'merge': 'median'}
    """
    pairs: dict[str, str] = {}
    for each in words:
        name, found, value = each.partition("=")
        if not found:
            raise InvalidValue(f"{where}: {each!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def value_of(text: str) -> Any:
    """Decode a value as JSON; any other text is a string.

    >>> value_of("0.5"), value_of("[0.9, 0.95]"), value_of("median")
    (0.5, [0.9, 0.95], 'median')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def values_of(words: Iterable[str], where: str) -> dict[str, Any]:
    """Return the values of NAME=VALUE words, by name; arguments and errors as for `pairs_of`."""
    return {name: value_of(text) for name, text in pairs_of(words, where).items()}


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Return the words from which `values_of` makes these values.

    >>> words_of({"tau": 16, "merge": "median", "betas": [0.9, 0.95], "name": "16"})
    ['tau=16', 'merge=median', 'betas=[0.9,0.95]', 'name="16"']
    """
    return [f"{name}={_text_of(value)}" for name, value in values.items()]


def _text_of(value: Any) -> str:
    if isinstance(value, str) and value_of(value) == value:
        return value
    return json.dumps(value, separators=(",", ":"))
