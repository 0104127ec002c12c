"""Figures of compared runs, as Plotly takes them: plain dictionaries, without colours.

The page gives each trace the colour of its cell's number (`meta.cell`), for light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from shoal.reports.columns import time_to
from shoal.reports.comparison import CellRuns
from shoal.reports.curves import Curves, Point
from shoal.runs.grid import names_of

Trace = dict[str, Any]
AXES_X = ("step", "seconds", "bytes")  # that a learning curve is drawn against
SWEPT_LEAST = 3  # values of a numeric axis, for a figure against it
STALENESS_MOST = 40  # bars


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        name: the name of the figure's element and of its files.
        title: the title.
        traces: the traces as Plotly takes them; of a learning curve, `meta.x` and `meta.y` have the
            values for each x axis, and `meta.least` and `meta.most` those of a band around it.
        x, y: the titles of the axes; no `x` where the reader chooses it.
        note: the note on how the values come from the events.
        percent: whether values are shares.
        category: whether the values on the x axis are at equal distances.
        bars: Plotly's `barmode`, of bars.
    """

    name: str
    title: str
    traces: list[Trace]
    y: str
    note: str
    x: str = ""
    percent: bool = False
    category: bool = False
    bars: str = ""


def figures_of(cells: Sequence[CellRuns], threshold: float) -> list[Figure]:
    """Return all figures for which these runs have values."""
    made = [
        _learning_curve(cells, "accuracy", lambda curves, _: curves.accuracy),
        _learning_curve(cells, "loss", _losses),
        _learning_curve(cells, "test_loss", lambda curves, _: curves.test_loss),
        _idle(cells),
        _staleness(cells),
        *_sweeps(cells, threshold),
    ]
    found = [figure for figure in made if figure.traces]
    return found + _logged(cells, {figure.name for figure in found})


COURSES = {
    "accuracy": (
        "Test accuracy",
        "Accuracy on the test data, from eval events of the worker of lowest rank.",
    ),
    "loss": (
        "Training loss",
        "Mean loss of the batches of all workers, from step events: against steps, over steps of "
        "like number; against time and bytes, over equal numbers of samples.",
    ),
    "test_loss": (
        "Test loss",
        "Loss on the test data, from eval events of the worker of lowest rank.",
    ),
}


def _losses(curves: Curves, axis: str) -> list[Point]:
    return curves.loss_by_step if axis == "step" else curves.loss


def _learning_curve(
    cells: Sequence[CellRuns], name: str, points_of: Callable[[Curves, str], list[Point]]
) -> Figure:
    title, note = COURSES[name]
    traces: list[Trace] = []
    drawn = [{axis: _means(cell, axis, points_of) for axis in AXES_X} for cell in cells]
    axes = [axis for axis in AXES_X if axis == "step" or any(_moves(each[axis]) for each in drawn)]
    for number, cell in enumerate(cells):
        lines = {axis: drawn[number][axis] for axis in axes}
        length = max(map(len, lines.values()))
        if not length:
            continue
        mode = "lines+markers" if length < POINTS_MARKED else "lines"
        meta = {"cell": number, **_values(lines, band=len(cell.curves) > 1)}
        traces.append({"name": cell.name, "legendgroup": cell.name, "mode": mode, "meta": meta})
    seeds = max((len(cell.runs) for cell in cells), default=0)
    if seeds > 1:
        note += f" Lines are means of {seeds} seeds, bands reach from the least to the greatest."
    return Figure(name, title, traces, "", note, percent=name == "accuracy")


POINTS_LOGGED = 500  # of what a script has recorded
NAMES_DRAWN, NAME_LENGTH = 100, 80
POINTS_MARKED = 25  # markers on longer curves would hide them


@dataclass(frozen=True)
class _Mean:
    """A point of a line: the mean of the runs of all seeds, and the least and greatest of them."""

    x: float
    y: float
    least: float
    most: float


def _moves(line: Sequence[_Mean]) -> bool:
    """Return whether a line has more than one place: some events count no bytes."""
    return len({mean.x for mean in line}) > 1 or len(line) == 1


def _values(lines: Mapping[str, Sequence[_Mean]], band: bool) -> dict[str, dict[str, list[float]]]:
    """Return a line as `meta` of its trace has it: by the name of the values, and by x axis."""
    return {
        name: {axis: [getattr(mean, name) for mean in line] for axis, line in lines.items()}
        for name in (("x", "y", "least", "most") if band else ("x", "y"))
    }


def _means(
    cell: CellRuns, axis: str, points_of: Callable[[Curves, str], list[Point]]
) -> list[_Mean]:
    """Return a cell's line against an axis, from left to right; points are finite."""
    drawn = [points_of(curves, axis) for curves in cell.curves.values()]
    found = []
    for points in zip(*filter(None, drawn), strict=False):
        values = [point.value for point in points]
        if all(map(isfinite, values)):
            x = fmean(getattr(point, axis) for point in points)
            found.append(_Mean(x, fmean(values), min(values), max(values)))
    return sorted(found, key=lambda mean: mean.x)


def _logged(cells: Sequence[CellRuns], taken: set[str]) -> list[Figure]:
    """Return a figure for each name that scripts have recorded.

    taken:  the names of other figures' elements
    """
    logged = [curves.logged for cell in cells for curves in cell.curves.values()]
    found = []
    for title in list(dict.fromkeys(name for each in logged for name in each))[:NAMES_DRAWN]:
        traces = [
            trace
            for number, cell in enumerate(cells)
            if (trace := _logged_line(cell, number, title))["meta"]["x"]["step"]
        ]
        plain = "".join(c if c.isalnum() else "-" for c in title)[:NAME_LENGTH]
        names = (plain, *(f"{plain}-{number}" for number in range(2, NAMES_DRAWN + 9)))
        name = next(each for each in names if each.lower() not in taken)
        taken.add(name.lower())
        note = (
            "Recorded by shoal.log, from logged events: means of the workers that have recorded "
            "it, with a band from the least to the greatest."
        )
        if traces:
            found.append(Figure(name, title, traces, "", note))
    return found


def _logged_line(cell: CellRuns, number: int, name: str) -> Trace:
    points = [
        point
        for curves in cell.curves.values()
        for point in curves.logged.get(name, ())
        if isfinite(point.value)
    ]
    lines = {axis: _grouped(points, axis) for axis in ("step", "seconds")}
    several = any(mean.least < mean.most for mean in lines["step"])
    meta = {"cell": number, **_values(lines, band=several)}
    mode = "lines+markers" if len(lines["step"]) < POINTS_MARKED else "lines"
    return {"name": cell.name, "legendgroup": cell.name, "mode": mode, "meta": meta}


def _grouped(points: Sequence[Point], axis: str) -> list[_Mean]:
    """Return means of points at like places of an axis, at most POINTS_LOGGED + 1 of them."""
    at = [float(getattr(point, axis)) for point in points]
    first, span = min(at, default=0.0), max(at, default=0.0) - min(at, default=0.0)
    few = len({*at}) <= POINTS_LOGGED
    groups: dict[float, list[int]] = {}
    for number, x in enumerate(at):
        place = x if few else float(int((x - first) / span * POINTS_LOGGED))
        groups.setdefault(place, []).append(number)
    means = []
    for _, group in sorted(groups.items()):
        values = [points[number].value for number in group]
        x = fmean(at[number] for number in group)
        means.append(_Mean(x, fmean(values), min(values), max(values)))
    return means


def _idle(cells: Sequence[CellRuns]) -> Figure:
    """Return the figure with a bar for each cell, and a point for each worker of each seed."""
    traces: list[Trace] = []
    for number, cell in enumerate(cells):
        shares = [
            (share, f"worker {rank}, seed {seed}")
            for seed, curves in cell.curves.items()
            for rank, share in curves.idle.items()
        ]
        if not shares:
            continue
        meta = {"cell": number}
        values = [share for share, _ in shares]
        traces.append(
            {"type": "bar", "name": cell.name, "x": [cell.name], "y": [fmean(values)], "meta": meta}
        )
        traces.append(
            {
                "mode": "markers",
                "name": cell.name,
                "x": [cell.name] * len(values),
                "y": values,
                "text": [text for _, text in shares],
                "meta": {**meta, "ink": True},
                "showlegend": False,
            }
        )
    note = (
        "Share of its time that a worker has waited for its requests (idle_s of its last end "
        "or step event). Bars are means; each point is a worker."
    )
    return Figure("idle", "Idle time", traces, "share of time", note, percent=True, bars="group")


def _staleness(cells: Sequence[CellRuns]) -> Figure:
    traces: list[Trace] = []
    for number, cell in enumerate(cells):
        counts: dict[int, int] = {}
        for curves in cell.curves.values():
            for clocks, count in curves.staleness.items():
                shown = min(clocks, STALENESS_MOST)
                counts[shown] = counts.get(shown, 0) + count
        if counts.keys() - {0}:
            whole = sum(counts.values())
            clocks_behind = sorted(counts)
            shares = [counts[clocks] / whole for clocks in clocks_behind]
            bars = {"type": "bar", "x": clocks_behind, "y": shares}
            traces.append({**bars, "name": cell.name, "meta": {"cell": number}})
    note = (
        "By how many clocks the slowest known worker was behind, at each step (staleness of "
        "step events). Cells whose steps are all at 0 are left out."
    )
    title, x = "Staleness", "clocks behind"
    return Figure(
        "staleness", title, traces, "share of steps", note, x=x, percent=True, bars="group"
    )


@dataclass(frozen=True)
class _Measure:
    """A figure of a run that is drawn against an axis; None where a run does not have it."""

    name: str
    title: str
    y: str
    value: Callable[[Curves, float], float | None]
    percent: bool = True


MEASURES = (
    _Measure(
        "time",
        "Time to an accuracy of {threshold:.1%} against {axis}",
        "seconds",
        lambda curves, threshold: time_to(curves, threshold) if threshold else None,
        percent=False,
    ),
    _Measure(
        "idle",
        "Idle time against {axis}",
        "idle share",
        lambda curves, _: fmean(curves.idle.values()) if curves.idle else None,
    ),
    _Measure(
        "final",
        "Final accuracy against {axis}",
        "final test accuracy",
        lambda curves, _: curves.accuracy[-1].value if curves.accuracy else None,
    ),
)


def _sweeps(cells: Sequence[CellRuns], threshold: float) -> list[Figure]:
    """Return figures against each numeric axis that has enough values."""
    found = []
    for axis in dict.fromkeys(axis for cell in cells for axis in cell.values):
        lines = _lines(cells, axis)
        if len({x for line in lines.values() for x, _ in line}) < SWEPT_LEAST:
            continue
        label = axis.removeprefix("set.").partition(",")[0]
        for measure in MEASURES:
            traces = [
                {"name": others, "mode": "lines+markers", "meta": {"cell": first}, **points}
                for others, line in lines.items()
                for first in (next(n for n, cell in enumerate(cells) if cell is line[0][1]),)
                if (points := _points(line, measure, threshold))
            ]
            found.append(
                Figure(
                    f"{measure.name}-{''.join(c if c.isalnum() else '-' for c in axis)}",
                    measure.title.format(axis=label, threshold=threshold),
                    traces,
                    measure.y,
                    "Means over the seeds; the table has their spread.",
                    x=label,
                    percent=measure.percent,
                    category=True,
                )
            )
    return found


Line = list[tuple[float, CellRuns]]  # the value on an axis, and the cell that has it


def _points(line: Line, measure: _Measure, threshold: float) -> Trace:
    """Return the means of a measure along an axis; nothing if they are too few."""
    values = []
    for x, cell in sorted(line, key=lambda each: each[0]):
        found = [measure.value(curves, threshold) for curves in cell.curves.values()]
        if measured := [value for value in found if value is not None]:
            values.append((f"{x:g}", fmean(measured)))
    if len(values) < SWEPT_LEAST:
        return {}
    return {"x": [x for x, _ in values], "y": [y for _, y in values]}


def _lines(cells: Sequence[CellRuns], axis: str) -> dict[str, Line]:
    """Return the cells with a number on an axis, by their values on the other axes."""
    lines: dict[str, Line] = {}
    for cell in cells:
        value = cell.values.get(axis)
        if cell.runs and isinstance(value, int | float) and not isinstance(value, bool):
            lines.setdefault(_without(cell, axis), []).append((float(value), cell))
    return lines


def _without(cell: CellRuns, axis: str) -> str:
    names = names_of(axis)
    return " ".join(word for word in cell.name.split() if word.partition("=")[0] not in names)
