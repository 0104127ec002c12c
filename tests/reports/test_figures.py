"""Figures of runs: lines from left to right on every axis, with a band where there are seeds."""

from itertools import pairwise
from pathlib import Path

import pytest

from shoal.reports.comparison import CellRuns
from shoal.reports.events import Run
from shoal.reports.figures import AXES_X, figures_of


def event(kind, rank, t, **fields):
    return {"t": t, "kind": kind, "node": f"worker-{rank}", **fields}


def events_of(shift=0.0):
    """Two workers of unlike speed; worker 0 is replaced, and begins its second step again."""
    found = [event("begin", rank, 0.0, batches=9) for rank in (0, 1)]
    for rank, pace in ((0, 1.0), (1, 3.0)):
        for number in range(1, 7):
            moved = {"bytes_sent": 10 * number, "bytes_received": 0, "idle_s": 0.1 * number}
            fields = {"step": number, "epoch": 0, "samples": 8, "staleness": 0.0, **moved}
            found.append(event("step", rank, pace * number, loss=9.0 - number + shift, **fields))
    for t, number in ((1.1, 1), (2.1, 2), (8.0, 1), (9.0, 2)):
        fields = {"step": number, "epoch": 0, "loss": 1.0, "seconds": 0.01}
        found.append(event("eval", 0, t, accuracy=0.1 * number + shift, **fields))
    return [*found, event("begin", 0, 7.0, batches=9)]


def run_of(events):
    return Run(Path("run"), {}, {}, {}, events)


@pytest.fixture(params=[1, 2], ids=["one seed", "two seeds"])
def figures(request):
    runs = {seed: run_of(events_of(0.01 * seed)) for seed in range(request.param)}
    return {figure.name: figure for figure in figures_of([CellRuns("asgd", {}, runs)], 0.5)}


def test_no_line_runs_backwards(figures):
    for name in ("accuracy", "loss", "test_loss"):
        (line,) = figures[name].traces
        for axis in AXES_X:
            x, y = line["meta"]["x"][axis], line["meta"]["y"][axis]
            assert len(x) == len(y) > 1
            assert all(one <= other for one, other in pairwise(x)), (name, axis)


def test_losses_against_steps_have_a_point_for_each_step(figures):
    (line,) = figures["loss"].traces
    assert line["meta"]["x"]["step"] == [1, 2, 3, 4, 5, 6]
    assert line["meta"]["y"]["step"] == pytest.approx([8, 7, 6, 5, 4, 3], abs=0.01)


def test_a_band_reaches_from_the_least_seed_to_the_greatest():
    cell = CellRuns("asgd", {}, {seed: run_of(events_of(0.2 * seed)) for seed in (0, 1)})
    meta = figures_of([cell], 0.5)[0].traces[0]["meta"]
    assert meta["least"]["step"][0] == pytest.approx(0.1)
    assert meta["most"]["step"][0] == pytest.approx(0.3)
    assert meta["y"]["step"][0] == pytest.approx(0.2)


def test_runs_without_events_have_no_figures():
    assert figures_of([CellRuns("sync", {}, {0: run_of([])}), CellRuns("asgd", {}, {})], 0.0) == []
