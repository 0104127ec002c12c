"""A run as it goes, on a terminal."""

import json
from io import StringIO

import pytest
from rich.console import Console

from shoal.reports.live import Live, progress_console


@pytest.fixture
def log(tmp_path):
    """Writes events of a run's log, which `log.path` names."""

    def write(kind, node, **fields):
        with log.path.open("a") as file:
            file.write(json.dumps({"t": 0.0, "kind": kind, "node": node, **fields}) + "\n")

    log = write
    log.path = tmp_path / "events.jsonl"
    return log


def shown(log, *, before=lambda: None):
    text = StringIO()
    console = Console(file=text, width=100)
    with Live(console, log.path, workers=2, epochs=3) as live:
        before()
        live.tick()
    return text.getvalue()


def test_each_worker_has_a_bar(log):
    log("begin", "worker-1", rank=1, batches=10)
    log("step", "worker-1", step=20, epoch=1, loss=0.25, samples=640)
    first, second = shown(log).strip().splitlines()
    assert "worker-0" in first
    assert "epoch   2  step     20 loss  0.2500" in second


def view(log, reason, workers):
    log("view", "scheduler", reason=reason, whole=True, servers=1, workers=workers)


@pytest.mark.parametrize(
    ("workers", "says"),
    [(1, "1 worker of another group has left"), (2, "2 workers of other groups have left")],
)
def test_who_is_waited_for_after_training_is_said(log, workers, says):
    view(log, "worker-1 joined, the first group finished", workers)
    assert f"trained; the run goes on until {says}" in shown(log)


def test_nothing_is_said_while_it_trains_or_where_nobody_is_left(log):
    view(log, "worker-1 joined", 2)
    view(log, "the first group finished", 0)
    assert "trained" not in shown(log)


def test_progress_is_shown_where_somebody_looks():
    assert not progress_console(True).quiet
    assert progress_console(False).quiet
    assert progress_console(None).quiet  # tests have no terminal
