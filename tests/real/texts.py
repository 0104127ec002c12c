"""What Shoal says to people, as the tests of real processes expect it: the texts of texts.toml.

A table of that file is of one test file, and a key names a situation. A text is plain, with {name}
for what the test fills in. In `pattern`, which is for `match=` and `re.search`, "..." is whatever a
line has there, and a list has texts of which any will do.
"""

import re
import tomllib
from pathlib import Path

TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text())


def text(key, **fields):
    """The text of "table.key", with its fields filled in."""
    table, _, name = key.partition(".")
    return TEXTS[table][name].format(**fields)


def pattern(key, **fields):
    """The same as a regular expression."""
    table, _, name = key.partition(".")
    found = TEXTS[table][name]
    any_of = [
        ".*".join(re.escape(part.format(**fields)) for part in each.split("..."))
        for each in ([found] if isinstance(found, str) else found)
    ]
    return "|".join(any_of)
