"""The contract with torch: every feature trains as with torch's optimizers, or is refused by name.

The table in docs/reference/training-loops.md is made of what this test finds, by
`pytest tests/real/test_contract.py --rewrite-transcripts`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("contract")]  # they share runs

SCRIPT = Path(__file__).parent / "contract_with_torch/main.py"
PAGE = Path(__file__).parents[2] / "docs/reference/training-loops.md"
RUNS = [
    ("sync", 1),
    ("allreduce", 1),
    ("asgd", 1),
    ("diloco", 1),
    ("sync", 2),
    ("allreduce", 2),
    ("diloco", 2),
]
COLUMNS = ("sync", "allreduce", "asgd", "diloco")
NEAR = 1e-6


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What torch's optimizers end with."""
    return run("", 1, tmp_path_factory.mktemp("plain"))[0]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By strategy and number of workers, what each worker ends with."""
    folder = tmp_path_factory.mktemp("contract")
    return {(strategy, workers): run(strategy, workers, folder) for strategy, workers in RUNS}


def run(strategy, workers, folder):
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *filter(None, [strategy])]
    if workers > 1:
        options = ["--workers", str(workers), "--servers", "2", "--output", "all"]
        command = [sys.executable, "-m", "shoal", "run", *options, str(SCRIPT), strategy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = [line.split("FOUND ", 1)[1] for line in done.stdout.splitlines() if "FOUND " in line]
    ranks = dict(map(json.loads, told))
    assert sorted(ranks) == list(range(workers))
    return [ranks[rank] for rank in range(workers)]


def outcome(expected, values):
    """What became of a feature: "as torch", the refusal, or how it differs."""
    if isinstance(values, str):
        fails_too = isinstance(expected, str) and not values.startswith("refused: ")
        return "as torch" if fails_too else values
    if isinstance(expected, str) or len(values) != len(expected):
        return f"differs: {str(expected)[:100]}"
    gap = max(abs(one - other) for one, other in zip(values, expected, strict=True))
    return "as torch" if gap <= NEAR else f"differs by {gap}"


@pytest.mark.parametrize("where", RUNS, ids=lambda where: f"{where[0]}-{where[1]}")
def test_every_feature_is_as_in_torch_or_refused_by_name(plain, found, where):
    for values in found[where]:
        told = {name: outcome(plain[name], values[name]) for name in plain}
        right = "as torch", "refused: "
        assert {n: each for n, each in told.items() if not each.startswith(right)} == {}


def test_torch_takes_what_the_contract_is_about(plain):
    failed = {name: told for name, told in plain.items() if isinstance(told, str)}
    assert list(failed) == ["expanded_parameter"], failed
    assert len(plain) >= 35


def test_refusals_are_few_and_say_what_to_do(found):
    refused = {
        name
        for ranks in found.values()
        for values in ranks
        for name, each in values.items()
        if isinstance(each, str)
    }
    assert len(refused) <= 10, refused


def test_the_table_in_the_documentation_is_what_was_found(plain, found, request):
    lines = ["| the loop has | " + " | ".join(COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    refusals = {}
    for name in plain:
        cells = []
        for strategy in COLUMNS:
            told = outcome(plain[name], found[strategy, 1][0][name])
            if told != "as torch":
                refusals[name] = told.removeprefix("refused: ")
                told = "refused"
            cells.append(told)
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |")
    told = [f"* {name.replace('_', ' ')}: {each}" for name, each in refusals.items()]
    table = "\n".join([*lines, "", "The refusals say:", "", *told])
    before, _, after = PAGE.read_text().partition("<!-- found -->\n")
    old, end, rest = after.partition("\n<!-- /found -->")
    if request.config.getoption("--rewrite-transcripts"):
        PAGE.write_text(f"{before}<!-- found -->\n{table}{end}{rest}")
        old = table
    assert old == table
