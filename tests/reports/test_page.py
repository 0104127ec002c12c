"""What a page says of a run: its title is a name, not a path."""

from pathlib import Path

import pytest

from shoal.errors import InvalidValue
from shoal.reports.comparison import ComparedRuns
from shoal.reports.events import Run
from shoal.reports.page import page_of_comparison, page_of_run
from shoal.runs.grid import Comparison

RUN = Run(Path("/runs/wine-20260101-120000"), {"accuracy": 1.0}, {}, {}, [])


@pytest.mark.parametrize(
    ("job", "title"),
    [
        ({"data": "digits", "strategy": "sync"}, "digits: sync"),
        ({"data": "csv:/data/of/wine.csv.gz", "strategy": "sync"}, "wine.csv.gz: sync"),
        ({"data": "/mine/own.py:load", "strategy": "/mine/own.py:Mine"}, "own.py:load: Mine"),
        ({"data": "package.own:load", "strategy": "asgd"}, "package.own:load: asgd"),
        ({"data": "digits", "strategy": "sync", "title": "first try"}, "first try"),
    ],
)
def test_the_title_of_a_run_is_a_name(job, title):
    assert page_of_run(RUN, job).title == title


SCRIPT = {"application": "script", "script": ["/mine/train.py", "--lr"], "command": "shoal run x"}


@pytest.mark.parametrize(
    ("job", "title"),
    [(SCRIPT, "train.py"), ({**SCRIPT, "title": "first"}, "first"), ({}, "wine-20260101-120000")],
)
def test_the_title_of_a_scripts_run_is_its_name(job, title):
    page = page_of_run(RUN, job)
    assert page.title == title
    assert dict(page.commands)["the same run again"] == job.get("command", "")


def test_a_run_of_another_application_has_no_page():
    with pytest.raises(InvalidValue, match="a run of `shoal train ctr`"):
        page_of_run(RUN, {"application": "ctr"})


@pytest.mark.parametrize(
    ("job", "title"),
    [
        ({"data": "/data/wine.csv"}, "wine.csv by seed"),
        ({}, "digits by seed"),
        ({"data": "digits", "title": "all of them"}, "all of them"),
    ],
)
def test_the_title_of_a_comparison_is_a_name(job, title):
    assert page_of_comparison(ComparedRuns(Path("c"), Comparison(job=job), [])).title == title
