"""Words that the prose avoids: riddles, and second names of what the field has a word for."""

import ast
import re
from pathlib import Path

import pytest

import shoal

ROOT = Path(shoal.__file__).parent
REPOSITORY = Path(__file__).parents[2]
BETTER = {  # pattern: what to say instead
    r"models? of clicks": "click-through-rate model",
    r"vectors of words": "word embeddings",
    r"somebody else": "name the member: the sender, another user",
    r"\bparked\b": "waiting",
    r"(?<!slow )\blearners?\b": "model; syncing replica",
    r"\brestless\b|\brelentless\b": "say what happens: rows move, faults are constant",
    r"\bbears? (a|no|the) (loss|worker)": "survives, tolerates",
    r"\bits? word\b|\btheir word\b": "name the message",
    r"chance of label": "click probability",
    r"\bgreetings? of a stranger": "connection of an unknown node",
    r"as it (likes|pleases)": "say what it does",
    r"\bwho(m)?ever\b": "the user, the caller",
}
PROSE = [
    *(REPOSITORY / "docs").rglob("*.md"),
    *REPOSITORY.glob("*.md"),
]


def texts_of(path: Path) -> list[tuple[int, str]]:
    """The lines of a page, or the texts of a module: docstrings, errors and help."""
    if path.suffix == ".md":
        return list(enumerate(path.read_text().splitlines(), 1))
    tree = ast.parse(path.read_text())
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]


def found_in(text: str) -> list[str]:
    text = " ".join(text.split())
    return [
        f"{match.group()!r}: better {better}"
        for pattern, better in BETTER.items()
        if (match := re.search(pattern, text, re.IGNORECASE))
    ]


@pytest.mark.parametrize(
    "path",
    [*sorted(ROOT.rglob("*.py")), *PROSE],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_prose_is_without_words_that_have_better_ones(path):
    if "decisions" in path.parts or "_build" in path.parts:
        return  # records of their day; built pages
    problems = [f"{line}: {told}" for line, text in texts_of(path) for told in found_in(text)]
    assert not problems, f"{path}\n" + "\n".join(problems)


def test_such_a_word_is_found():
    assert found_in("a pull that is parked") == ["'parked': better waiting"]
    assert found_in("Train a model\n    of clicks")
    assert not found_in("Train a click-through-rate model.")
