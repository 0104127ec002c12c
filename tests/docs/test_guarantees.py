"""Guarantees: every line names what shows it, and everything that the page names exists."""

import ast
import json
import re

import pytest
from run_blocks import ROOT

from shoal.cli import main
from shoal.simulation.faults.schedule import FAULT_NAMES
from tests.tools.losses import table

PAGE = (ROOT / "docs/guarantees.md").read_text()
SIMULATION = ROOT / "src/shoal/simulation"
PROMISED = ("Reads", "Pushes", "Faults", "Data", "Groups", "Checkpoints", "Files")
PLANTED = json.loads((ROOT / "tests/simulation/planted/pins.json").read_text()).keys()
OPTIONS = {name for param in main.commands["chaos"].params for name in param.opts}


def checkers() -> set[str]:
    """The names of all checkers; of errors too, which `simulate` reports under names of its own."""
    text = "".join(path.read_text() for path in SIMULATION.rglob("*.py"))
    named = set(re.findall(r'violated\(\s*"([a-z ]+)"', text))
    return named | set(re.findall(r'checker, violation = "(\w+)"', text))


CHECKERS = checkers()


def lines_of(page: str) -> dict[str, list[str]]:
    """By heading: its bullets, each with the lines that continue it, and the rows of its tables."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        heading, _, text = section.partition("\n")
        bullets = re.findall(r"^\* .*(?:\n  .*)*", text, re.M)
        rows = [row for table in re.findall(r"(?:^\|.*\n)+", text, re.M) for row in cells(table)]
        found[heading] = bullets + rows
    return found


def cells(table: str) -> list[str]:
    return table.strip().split("\n")[2:]


def evidence_of(line: str) -> str:
    """What a line names as shown by; empty if it says nothing of that."""
    if line.startswith("|"):
        return line.rstrip(" |").rpartition(" | ")[2]
    return line.partition("*Shown by*")[2] or line.partition("*Not tested.*")[1]


def is_test(name: str) -> bool:
    """Whether `tests/...py`, or `tests/...py::test_...`, is there."""
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        return False
    tree = ast.walk(ast.parse((ROOT / path).read_text()))
    return not test or test in {each.name for each in tree if isinstance(each, ast.FunctionDef)}


def problem_of(name: str) -> str:
    """Return why a name in backticks is no evidence; empty if it is."""
    if name.startswith("tests/"):
        return "" if is_test(name) else f"there is no {name}"
    if name.startswith("shoal chaos "):
        _, _, option, faults, *more = name.split()
        wrong = [each for each in faults.split(",") if each not in FAULT_NAMES]
        wrong += {option, *more} - OPTIONS
        return f"{wrong} in {name} are unknown" if wrong else ""
    known = name in CHECKERS or name in PLANTED
    return "" if known else f"{name!r} is no checker and no planted bug that is caught"


LINES = lines_of(PAGE.partition("## What checks this")[0])


def test_the_page_has_the_sections_that_promise_something():
    assert set(PROMISED) <= LINES.keys()
    assert all(len(LINES[heading]) >= 3 for heading in PROMISED)


@pytest.mark.parametrize("heading", LINES)
def test_every_line_names_what_shows_it(heading):
    for line in LINES[heading]:
        evidence = evidence_of(line)
        named = [each for each in re.findall(r"`([^`]+)`", evidence) if not problem_of(each)]
        assert named or (evidence == "*Not tested.*" and heading not in PROMISED), line


@pytest.mark.parametrize("heading", LINES)
def test_everything_that_is_named_exists(heading):
    for line in LINES[heading]:
        shown = re.split(r"; |\(", evidence_of(line))[0]  # what follows says what is not tested
        for name in re.findall(r"`([^`]+)`", shown):
            assert not problem_of(name), line


def test_the_matrix_of_losses_is_what_its_tool_expects():
    assert table() in PAGE


def test_all_checkers_are_listed():
    table = PAGE.partition("## What checks this")[2].partition("The faults")[0]
    listed = [
        name
        for row in cells(table[table.index("|") :])
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == CHECKERS


def test_all_faults_that_are_named_exist():
    named = re.findall(r"[a-z]+-(?:server|worker|scheduler)\b", "".join(re.findall(r"`.*?`", PAGE)))
    names = set(named) - {"on-worker"}  # of --on-worker-loss
    assert {"kill-server", "stop-worker"} <= names <= set(FAULT_NAMES)


@pytest.mark.parametrize(
    "wrong",
    [
        "tests/none.py",
        "tests/docs/test_guarantees.py::test_none",
        "never",
        "no_bug",
        "shoal chaos --faults kill-cat",
        "shoal chaos --fault kill-server",
    ],
)
def test_wrong_names_are_found(wrong):
    assert problem_of(wrong)


def test_right_names_and_lines_are_found():
    assert not problem_of("shoal chaos --faults kill-server --early")
    assert not problem_of("tests/docs/test_guarantees.py::test_right_names_and_lines_are_found")
    assert lines_of("## A\n* one\\\n  two\n* three\n\n| a | b |\n|---|---|\n| c | `d` |\n") == {
        "A": ["* one\\\n  two", "* three", "| c | `d` |"]
    }
    assert evidence_of("* one\\\n  *Shown by* `x`.") == " `x`."
    assert evidence_of("| c | `d` |") == "`d`"
    assert not evidence_of("* one")
