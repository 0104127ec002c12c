"""Guarantees: every section names what shows it, and everything that the page names exists."""

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
DEATHS = "When a member is considered dead"
PROMISED = ("Reads", "Pushes", "Faults", DEATHS, "Data", "Groups", "Checkpoints", "Files")
PLANTED = json.loads((ROOT / "tests/simulation/planted/pins.json").read_text()).keys()
OPTIONS = {name for param in main.commands["chaos"].params for name in param.opts}


def checkers() -> set[str]:
    """The names of all checkers; of errors too, which `simulate` reports under names of its own."""
    text = "".join(path.read_text() for path in SIMULATION.rglob("*.py"))
    named = set(re.findall(r'violated\(\s*"([a-z ]+)"', text))
    return named | set(re.findall(r'checker, violation = "(\w+)"', text))


CHECKERS = checkers()


def parts_of(page: str) -> dict[str, tuple[str, dict[str, str]]]:
    """By heading of level 2: the text before its sections, and the text of each section."""
    found = {}
    for part in re.split(r"^## ", page, flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        before, *sections = re.split(r"^### ", text, flags=re.M)
        by_name = [section.partition("\n")[::2] for section in sections]
        assert len({name for name, _ in by_name}) == len(by_name), (
            f"two sections of one name: {heading}"
        )
        found[heading] = before, dict(by_name)
    return found


def tables_of(text: str) -> list[str]:
    return re.findall(r"(?:^\|.*\n)+", text, re.M)


def cells(table: str) -> list[str]:
    return table.strip().split("\n")[2:]


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


def problem_of_evidence(text: str, *, may_lack: bool = False) -> str:
    """Return why a text is no evidence; empty if it is.

    Evidence is names in backticks, with remarks in parentheses, and then what is not tested.
    """
    text = " ".join(text.split())
    if text == "Not tested." and may_lack:
        return ""
    shown = re.sub(r"\s\([^)]*\)", "", text.partition("Not tested:")[0])
    names = re.findall(r"`([^`]+)`", shown)
    if not names:
        return "names nothing that shows it"
    if more := re.sub(r"`[^`]+`|[,.\s]", "", shown):
        return f"has more than names: {more}"
    return "; ".join(filter(None, map(problem_of, names)))


def problem_of_tables(text: str) -> str:
    """Return which row of a table names no evidence in its last column; empty if there is none."""
    for each in tables_of(text):
        if not re.match(r"\|.*\| shown by \|\n", each):
            return f"a table does not say what shows it: {each}"
        for row in cells(each):
            if why := problem_of_evidence(row.rstrip(" |").rpartition(" | ")[2]):
                return f"{row}: {why}"
    return ""


def problem_of_section(text: str, *, promised: bool) -> str:
    """Return how a section differs from promise, bound and evidence; empty if it does not."""
    before, *parts = re.split(r"^\*\*(\w+)\.\*\*", text, flags=re.M)
    labels, texts = parts[::2], [part.strip() for part in parts[1::2]]
    allowed = [["Promise", "Evidence"], ["Promise", "Bound", "Evidence"]]
    if labels not in (allowed if promised else [*allowed, ["Bound", "Evidence"]]):
        return f"has the parts {labels}"
    if before.strip() or not all(texts):
        return "has text without a label, or a label without text"
    why = problem_of_evidence(texts[-1], may_lack=not promised)
    return why or problem_of_tables("\n".join(texts) + "\n")


def problem_of_intro(text: str) -> str:
    """Return what is promised between a heading and its first section; empty if nothing is."""
    if bullet := re.search(r"^ *[*-] .*", text, re.M):
        return f"is in no section: {bullet[0]}"
    return problem_of_tables(text)


PARTS = parts_of(PAGE.partition("## What checks this")[0])
SECTIONS = [(heading, name) for heading, (_, sections) in PARTS.items() for name in sections]


def test_the_page_has_the_headings_that_promise_something():
    assert set(PROMISED) <= PARTS.keys()
    assert all(len(PARTS[heading][1]) >= 3 for heading in PROMISED)


@pytest.mark.parametrize("heading", PARTS)
def test_nothing_is_promised_before_the_sections(heading):
    before, sections = PARTS[heading]
    assert not problem_of_intro(before)
    assert sections or tables_of(before)


@pytest.mark.parametrize(("heading", "name"), SECTIONS)
def test_every_section_names_what_shows_it_and_that_exists(heading, name):
    assert not problem_of_section(PARTS[heading][1][name], promised=heading in PROMISED)


def test_links_within_the_page_lead_to_headings():
    headings = re.findall(r"^#+ (.*)", PAGE, re.M)
    anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= set(anchors)


def test_the_matrix_of_losses_is_what_its_tool_expects():
    assert table() in PAGE


def test_all_checkers_are_listed():
    (table,) = tables_of(PAGE.partition("### Checkers\n")[2])
    listed = [name for row in cells(table) for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
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


def test_right_names_and_sections_are_found():
    assert not problem_of("shoal chaos --faults kill-server --early")
    assert not problem_of("tests/docs/test_guarantees.py::test_right_names_and_sections_are_found")
    page = "## A\none\n### B\n\ntwo\n\n### C\nthree\n## D\n| a |\n"
    assert parts_of(page) == {
        "A": ("one\n", {"B": "\ntwo\n\n", "C": "three\n"}),
        "D": ("| a |\n", {}),
    }


BOUND = "**Promise.** It holds.\n\n**Bound.** It stops.\n\n**Evidence.** "
TABLE = "| a | shown by |\n|---|---|\n| b | `lost` |\n"


@pytest.mark.parametrize(
    "right",
    [
        "**Promise.** It holds.\n\n**Evidence.** `lost`.",
        BOUND + "`lost` (of `any`, in part),\n`torn`. Not tested: that `save()` ends.",
        f"**Promise.** It holds:\n\n{TABLE}\n**Evidence.** `lost`.",
    ],
)
def test_a_right_section_has_no_problem(right):
    assert not problem_of_section(right, promised=True)


@pytest.mark.parametrize(
    "wrong",
    [
        "**Promise.** It holds.",
        "**Promise.** It holds.\n\n**Bound.** It stops.",
        "**Bound.** It stops.\n\n**Evidence.** `lost`.",
        "**Evidence.** `lost`.",
        "**Promise.** It holds.\n\n**Promise.** It too.\n\n**Evidence.** `lost`.",
        "**Promise.**\n\n**Evidence.** `lost`.",
        "It holds.\n\n**Promise.** It holds.\n\n**Evidence.** `lost`.",
        f"**Promise.** It holds.\n\n{TABLE.replace('shown by', 'c')}\n**Evidence.** `lost`.",
        f"**Promise.** It holds.\n\n{TABLE.replace('`lost`', 'c')}\n**Evidence.** `lost`.",
        BOUND,
        BOUND + "Not tested.",
        BOUND + "Not tested: `lost`.",
        BOUND + "(of `lost`).",
        BOUND + "lost.",
        BOUND + "`lost`, `never`.",
        BOUND + "`lost` (in part), `never`.",
        BOUND + "`lost`; `torn` if it is torn.",
    ],
)
def test_a_wrong_section_is_found(wrong):
    assert problem_of_section(wrong, promised=True)


def test_what_stops_may_be_a_bound_that_is_not_tested():
    assert not problem_of_section(
        "**Bound.** It stops.\n\n**Evidence.** Not tested.", promised=False
    )
    assert problem_of_section("**Bound.** It stops.", promised=False)


def test_promises_before_the_sections_are_found():
    assert problem_of_intro("* It holds.\n")
    assert problem_of_intro(TABLE.replace("`lost`", "`never`"))
    assert not problem_of_intro(f"In short:\n\n{TABLE}")
