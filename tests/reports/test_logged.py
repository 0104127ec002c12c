"""What scripts have recorded, as tables and figures."""

import pytest

from shoal.reports.comparison import CellRuns
from shoal.reports.curves import curves_of
from shoal.reports.events import Run, load_run, write_tables
from shoal.reports.figures import POINTS_LOGGED, figures_of
from shoal.reports.logged import logged_summary, logged_tables
from shoal.storage.figure_log import FigureLog
from shoal.storage.run_folder import RunFolder

NAN = float("nan")


def call(rank, step, t=0.0, group="", **figures):
    node = f"{group}/worker-{rank}" if group else f"worker-{rank}"
    return {"t": t, "kind": "logged", "node": node, "rank": rank, "step": step, "figures": figures}


def figures(events):
    run = Run("run", {}, {}, {}, events)
    return figures_of([CellRuns("script", {}, {0: run})], 0.0)


def test_a_table_has_a_row_for_each_call_and_a_column_for_each_name():
    events = [
        call(1, 0, 0.5, loss=2.0),
        {"t": 0.6, "kind": "view", "node": "scheduler"},
        call(0, 0, 1.0, loss=3.0),
        call(0, 1, 2.0, loss=None, accuracy=0.5),
        call(0, 7, 3.0, group="eval", loss=1),
    ]
    found = logged_tables(events)
    assert list(found) == [0, 1]
    assert found[1] == {"t": [0.5], "step": [0], "loss": [2.0]}
    assert found[0]["step"] == [0, 1, 7]
    assert found[0]["accuracy"] == [None, 0.5, None]
    assert found[0]["eval/loss"] == [None, None, 1]
    assert found[0]["loss"] == pytest.approx([3.0, NAN, None], nan_ok=True)
    assert logged_tables([]) == {}


def test_a_summary_has_the_last_of_the_lowest_rank_and_the_least_of_all():
    events = [
        call(0, 0, loss=3.0),
        call(0, 1, loss=2.0),
        call(1, 0, loss=1.0),
        call(1, 9, odd=None),
    ]
    assert logged_summary(logged_tables(events)) == {
        "loss": {"count": 3, "first": 3.0, "last": 2.0, "least": 1.0, "greatest": 3.0},
        "odd": {"count": 1, "first": None, "last": None, "least": None, "greatest": None},
    }


def test_each_name_has_a_figure_with_the_mean_of_the_workers_at_each_step():
    events = [
        call(rank, step, step + rank, loss=8.0 - step + rank) for rank in (0, 1) for step in (0, 2)
    ]
    loss, other = figures([*events, call(1, 5, 9.0, **{"valid/accuracy": 0.5})])
    assert (loss.name, loss.title, other.name) == ("loss", "loss", "valid-accuracy")
    meta = loss.traces[0]["meta"]
    assert (meta["x"]["step"], meta["y"]["step"]) == ([0, 2], [8.5, 6.5])
    assert (meta["least"]["step"], meta["most"]["step"]) == ([8.0, 6.0], [9.0, 7.0])
    assert (meta["x"]["seconds"], meta["y"]["seconds"]) == ([0, 1, 2, 3], [8.0, 9.0, 6.0, 7.0])
    assert other.traces[0]["meta"].keys() == {"cell", "x", "y"}


def test_numbers_that_are_not_finite_are_left_out_of_curves():
    (loss,) = figures([call(0, 0, loss=1.0), call(0, 1, loss=None), call(0, 2, loss=3.0)])
    assert loss.traces[0]["meta"]["x"]["step"] == [0, 2]
    assert figures([call(0, 0, loss=None)]) == []


def test_long_curves_have_few_points_and_all_of_their_range():
    events = [call(0, step, float(step), loss=float(step)) for step in range(10_001)]
    (loss,) = figures(events)
    for axis in ("step", "seconds"):
        x, y = (loss.traces[0]["meta"][name][axis] for name in ("x", "y"))
        assert len(x) in (POINTS_LOGGED, POINTS_LOGGED + 1)
        assert x == y == sorted(x)
        assert x[0] == pytest.approx(9.5, abs=1)
        assert x[-1] > 9_980


def test_figures_have_names_of_their_own():
    """Of their elements and files, also where a file system takes two names for one."""
    names = ["a/b", "a b", "A-b", "a-b", "x" * 150, "x" * 160]
    found = figures([call(0, 0, **dict.fromkeys(names, 1.0))])
    assert [figure.title for figure in found] == names
    assert len({figure.name.lower() for figure in found}) == len(names)
    assert all(len(figure.name) < 100 for figure in found)


def test_curves_have_what_was_logged_beside_what_was_trained():
    found = curves_of([call(0, 3, 0.5, loss=1.0), call(1, 2, 0.25, loss=2.0)]).logged["loss"]
    assert [(point.step, point.seconds, point.value) for point in found] == [
        (2, 0.25, 2.0),
        (3, 0.5, 1.0),
    ]


def test_each_worker_has_a_file_of_it(tmp_path):
    folder = RunFolder.create(tmp_path, "run", started_at=0.0)
    log = FigureLog(folder.path, "worker-1", 1)
    log.write({"loss": 0.5})
    log.write({"a, b": NAN})
    write_tables(folder)
    first, *lines = (folder.worker(1) / "logged.csv").read_text().splitlines()
    assert first == 't,step,loss,"a, b"'
    assert [line.split(",")[1:] for line in lines] == [["0", "0.5", ""], ["1", "", "nan"]]
    assert not (folder.worker(1) / "train.csv").exists()
    assert repr(load_run(folder.path)) == f"Run('{folder.path}', 1 workers, {{}})"
