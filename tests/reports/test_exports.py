"""Figures as CSV and SVG files."""

import csv
import sys
from xml.etree import ElementTree

import pytest

from shoal.errors import InvalidValue, PackageMissing
from shoal.reports.exports import write_csv, write_svg
from shoal.reports.figures import Figure

AXES = ("step", "seconds", "bytes")
X = {axis: [1.0, 2.0] for axis in AXES}
COURSE = Figure(
    "loss",
    "Training loss",
    [
        {
            "name": "sync & <co>",
            "mode": "lines",
            "meta": {"cell": 0, "x": X, "y": X, "least": X, "most": X},
        },
        {"name": "asgd", "mode": "lines+markers", "meta": {"cell": 11, "x": X, "y": X}},
    ],
    "",
    "a note",
)
BARS = Figure(
    "staleness",
    "Staleness",
    [
        {"type": "bar", "name": "a", "x": [0, 2], "y": [0.25, 0.75], "meta": {"cell": 0}},
        {"type": "bar", "name": "b", "x": [0], "y": [1.0], "meta": {"cell": 1}},
    ],
    "share of steps",
    "",
    x="clocks behind",
    percent=True,
    bars="group",
)
IDLE = Figure(
    "idle",
    "Idle time",
    [
        {"type": "bar", "name": "a", "x": ["a"], "y": [0.5], "meta": {"cell": 0}},
        {
            "mode": "markers",
            "name": "a",
            "x": ["a", "a"],
            "y": [0.4, 0.6],
            "text": ["worker 0, seed 0", "worker 1, seed 0"],
            "meta": {"cell": 0, "ink": True},
        },
    ],
    "share of time",
    "",
    percent=True,
    bars="group",
)
SWEPT = Figure(
    "final-tau",
    "Final accuracy against tau",
    [
        {
            "name": "easgd",
            "mode": "lines+markers",
            "x": ["1", "4"],
            "y": [0.5, 0.75],
            "meta": {"cell": 0},
        }
    ],
    "final test accuracy",
    "",
    x="tau",
    percent=True,
    category=True,
)
ALL = [COURSE, BARS, IDLE, SWEPT]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_file_has_every_point(tmp_path):
    found = write_csv(ALL, tmp_path / "figures")
    assert [path.name for path in found] == [f"{figure.name}.csv" for figure in ALL]
    loss, staleness, idle, final = map(rows, found)
    assert len(loss) == 2 * 2 * len(AXES)
    first = {"against": "step", "x": "1.0", "loss": "1.0"}
    assert loss[0] == {"cell": "sync & <co>", **first, "least": "1.0", "most": "1.0"}
    assert loss[-1] == {
        "cell": "asgd",
        "against": "bytes",
        "x": "2.0",
        "loss": "2.0",
        "least": "",
        "most": "",
    }
    assert staleness[1] == {"cell": "a", "clocks behind": "2", "share of steps": "0.75"}
    assert idle[0] == {"cell": "a", "worker": "mean", "share of time": "0.5"}
    assert idle[2] == {"cell": "a", "worker": "worker 1, seed 0", "share of time": "0.6"}
    assert final == [
        {"cell": "easgd", "tau": "1", "final test accuracy": "0.5"},
        {"cell": "easgd", "tau": "4", "final test accuracy": "0.75"},
    ]


def test_an_svg_file_is_a_picture_with_its_title_and_cells(tmp_path):
    found = write_svg(ALL, tmp_path)
    courses = [f"loss-{axis}.svg" for axis in AXES]
    assert [path.name for path in found] == [*courses, "staleness.svg", "idle.svg", "final-tau.svg"]
    for path in found:
        tree = ElementTree.parse(path).getroot()
        assert tree.tag.endswith("svg")
    said = "".join(ElementTree.parse(found[0]).getroot().itertext())
    for text in ("Training loss", "steps of a worker", "sync & <co>", "asgd"):
        assert text in said
    again = write_svg([COURSE], tmp_path / "again")
    assert again[0].read_bytes() == found[0].read_bytes()


def test_no_figures_are_no_files(tmp_path):
    assert write_csv([], tmp_path / "none") == write_svg([], tmp_path / "none") == []


def test_without_matplotlib_what_to_install_is_said_and_nothing_is_written(tmp_path, monkeypatch):
    for name in [each for each in sys.modules if each.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PackageMissing, match=r"pip install .shoal\[reports\]"):
        write_svg(ALL, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize("write", [write_csv, write_svg])
def test_a_folder_that_cannot_be_made_is_told(write, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="no figures can be written to"):
        write(ALL, tmp_path / "file" / "figures")
