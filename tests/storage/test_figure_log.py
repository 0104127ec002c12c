"""What `shoal.log` records: numbers of all kinds, whole calls or nothing, at little cost."""

import json
from fractions import Fraction
from multiprocessing import get_context
from time import perf_counter

import numpy as np
import pytest
import torch

from shoal.errors import InvalidValue
from shoal.reports.events import read_events
from shoal.storage.event_log import EventLog
from shoal.storage.figure_log import EXACT, NAMES_MOST, FigureLog
from shoal.storage.run_folder import RunFolder

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path, "run", started_at=0.0)


@pytest.fixture
def log(folder):
    log = FigureLog(folder.path, "worker-2", 2, step=7)
    yield log
    log.close()


def logged(folder):
    return [event for event in read_events(folder.events) if event["kind"] == "logged"]


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (0.25, 0.25),
        (3, 3),
        (True, 1),
        (-0.0, 0.0),
        (NAN, None),
        (INF, None),
        (-INF, None),
        (EXACT, EXACT),
        (10**30, 1e30),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(4), 4),
        (np.bool_(False), 0),
        (np.array(1.5), 1.5),
        (np.array([[2.5]]), 2.5),
        (np.float64(NAN), None),
        (torch.tensor(0.125), 0.125),
        (torch.tensor([3]), 3),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    ],
    ids=repr,
)
def test_numbers_of_all_kinds_are_recorded(value, recorded, log, folder):
    log.write({"loss": value})
    (event,) = logged(folder)
    assert event["figures"] == {"loss": recorded}
    assert (event["node"], event["rank"], event["step"]) == ("worker-2", 2, 7)
    assert event["t"] > 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("0.5", "loss is no number, but '0.5'"),
        (None, "loss is no number, but None"),
        ([0.5], r"loss is no number, but \[0.5\]"),
        (1j, "loss is no number, but 1j"),
        (np.array(1j), "loss is no number, but 1j"),
        (np.array("0.5"), "loss is no number, but '0.5'"),
        (torch.zeros(3), r"a Tensor of shape \(3,\): record its mean"),
        (np.zeros((2, 2)), r"a ndarray of shape \(2, 2\)"),
        (torch.zeros(0), r"a Tensor of shape \(0,\)"),
        (10**400, "loss is too large a number"),
        (lambda: 0.5, "loss is no number"),
    ],
    ids=lambda each: "" if isinstance(each, str) else type(each).__name__,
)
def test_what_is_no_number_is_refused_and_nothing_of_the_call_is_recorded(value, told, log, folder):
    with pytest.raises(InvalidValue, match=told):
        log.write({"accuracy": 1.0, "loss": value})
    assert logged(folder) == []
    log.write({"accuracy": 1.0})
    assert [event["step"] for event in logged(folder)] == [7]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "printable characters"),
        (" loss", "printable characters"),
        ("a\nb", "printable characters"),
        ("x" * 201, "printable characters"),
        (3, "the name of a figure is a text, not 3"),
        ("step", "give step=NUMBER"),
        ("t", "use another name"),
        ("rank", "use another name"),
        ("kind", "use another name"),
    ],
)
def test_names_that_cannot_be_columns_are_refused(name, told, log, folder):
    with pytest.raises(InvalidValue, match=told):
        log.write({"loss": 1.0, name: 2.0})
    assert logged(folder) == []


@pytest.mark.parametrize("name", ["x" * 200, "valid/loss", "верность", "a b", '"<&>"', "loss"])
def test_other_names_are_recorded_as_they_are(name, log, folder):
    log.write({name: 1})
    assert [list(event["figures"]) for event in logged(folder)] == [[name]]


@pytest.mark.parametrize("count", [0, NAMES_MOST + 1])
def test_a_call_has_a_number_of_names(count, log):
    with pytest.raises(InvalidValue, match=f"takes 1 to 1000 names .* not {count}"):
        log.write({f"name {number}": 1.0 for number in range(count)})


def test_a_step_is_one_more_than_the_last_if_it_is_not_given(log, folder):
    for step in (None, None, 3, None, np.int64(0), None, torch.tensor(40), 2**61):
        log.write({"loss": 1.0}, step)
    assert [event["step"] for event in logged(folder)] == [7, 8, 3, 4, 0, 1, 40, 2**61]


@pytest.mark.parametrize("step", [-1, 1.0, "3", 2**62, NAN, [1]], ids=repr)
def test_a_step_is_a_whole_number(step, log, folder):
    with pytest.raises(InvalidValue, match="a step is a whole number from 0 on"):
        log.write({"loss": 1.0}, step)
    assert logged(folder) == []


def test_a_line_is_on_its_way_to_the_disk_when_the_call_returns(log, folder):
    """Nothing waits in this process, which may be killed next."""
    log.write({"loss": 1.0})
    assert json.loads(folder.events.read_text().splitlines()[-1])["figures"] == {"loss": 1.0}


def test_a_call_is_cheap(log):
    """The least of many batches: whatever else the machine does."""
    loss, batches = torch.tensor(0.5), []
    for _ in range(40):
        began = perf_counter()
        for _ in range(100):
            log.write({"loss": loss, "accuracy": 0.75})
        batches.append((perf_counter() - began) / 100)
    assert min(batches) < 20e-6


def test_a_run_without_a_folder_gets_one_at_the_first_call(tmp_path, caplog):
    path = tmp_path / "shoal-runs" / "run-1"
    logs = [FigureLog(path, f"worker-{rank}", rank) for rank in (0, 1)]
    assert not path.exists()
    for log in logs:
        log.write({"loss": 1.0})
        log.close()
    assert [event["node"] for event in logged(RunFolder(path))] == ["worker-0", "worker-1"]
    assert path.stat().st_mode & 0o777 == 0o700
    assert [record.args for record in caplog.records] == [(path,)]
    assert sorted(each.name for each in path.iterdir()) == ["events.jsonl"]


def begin(path):
    FigureLog(path, "worker-0", 0).write({"loss": 1.0})


def test_workers_that_begin_a_folder_at_once_write_to_one_log(tmp_path):
    path = tmp_path / "run"
    begun = [get_context("fork").Process(target=begin, args=(path,)) for _ in range(8)]
    for process in begun:
        process.start()
    for process in begun:
        process.join()
    assert [process.exitcode for process in begun] == [0] * 8
    assert len(logged(RunFolder(path))) == 8


def test_times_are_those_of_the_runs_other_events(tmp_path):
    folder = RunFolder.create(tmp_path, "run", started_at=123.0)
    assert folder.started_at() == 123.0
    others = EventLog(folder.events, "scheduler", 123.0)
    others.write("view", view=1, reason="", whole=True, servers=1, workers=1)
    log = FigureLog(folder.path, "worker-0", 0)
    log.write({"loss": 1.0})
    view, figure = read_events(folder.events)
    assert 0 <= figure["t"] - view["t"] < 60


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    log = FigureLog(tmp_path / "file" / "run", "worker-0", 0)
    with pytest.raises(InvalidValue, match=r"shoal\.log cannot write to .*start the script where"):
        log.write({"loss": 1.0})
