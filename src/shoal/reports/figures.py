"""Figures of compared runs, as Plotly takes them: plain dictionaries, without colours.

The page gives each trace the colour of its cell's number (`meta.cell`), for light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from shoal.jobs.comparison import names_of
from shoal.reports.comparison import CellRuns, time_to
from shoal.reports.curves import Curves, Point

Trace = dict[str, Any]
AXES_X = ("step", "seconds", "bytes")  # that a learning curve is drawn against
SWEPT_LEAST = 3  # values of a numeric axis, for a figure against it
STALENESS_MOST = 40  # bars


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        name: of its element.
        title: what it shows.
        traces: as Plotly takes them; of a learning curve, `meta.x` has the values of each x axis.
        x, y: titles of the axes; no `x` where the reader chooses it.
        note: how its values come from the events.
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
    """All figures that these runs have something to show in."""
    made = [
        _learning_curve(cells, "accuracy", lambda curves: curves.accuracy),
        _learning_curve(cells, "loss", lambda curves: curves.loss),
        _learning_curve(cells, "test_loss", lambda curves: curves.test_loss),
        _idle(cells),
        _staleness(cells),
        *_sweeps(cells, threshold),
    ]
    return [figure for figure in made if figure.traces]


COURSES = {
    "accuracy": (
        "Test accuracy",
        "Accuracy on the test data, from eval events of the worker of lowest rank.",
    ),
    "loss": (
        "Training loss",
        "Mean loss of the batches of all workers, from step events, over equal numbers of samples.",
    ),
    "test_loss": (
        "Test loss",
        "Loss on the test data, from eval events of the worker of lowest rank.",
    ),
}


def _learning_curve(
    cells: Sequence[CellRuns], name: str, points_of: Callable[[Curves], list[Point]]
) -> Figure:
    title, note = COURSES[name]
    traces: list[Trace] = []
    for number, cell in enumerate(cells):
        drawn = [points_of(curves) for curves in cell.curves.values()]
        points = list(zip(*(each for each in drawn if each), strict=False))
        points = [each for each in points if all(isfinite(point.value) for point in each)]
        if not points:
            continue
        means = {x: [fmean(getattr(p, x) for p in each) for each in points] for x in AXES_X}
        common = {"legendgroup": cell.name, "meta": {"cell": number, "x": means}}
        if len(drawn) > 1:
            edges = [*map(_greatest, points), *map(_least, reversed(points))]
            there_and_back = {x: values + values[::-1] for x, values in means.items()}
            band = {**common, "meta": {"cell": number, "x": there_and_back, "band": True}}
            traces.append(
                {**band, "y": edges, "fill": "toself", "hoverinfo": "skip", "showlegend": False}
            )
        mode = "lines+markers" if len(points) < POINTS_MARKED else "lines"
        values = [fmean(point.value for point in each) for each in points]
        traces.append({**common, "name": cell.name, "y": values, "mode": mode})
    seeds = max((len(cell.runs) for cell in cells), default=0)
    if seeds > 1:
        note += f" Lines are means of {seeds} seeds, bands reach from the least to the greatest."
    return Figure(name, title, traces, "", note, percent=name == "accuracy")


POINTS_MARKED = 25  # markers on longer curves would hide them


def _least(points: Sequence[Point]) -> float:
    return min(point.value for point in points)


def _greatest(points: Sequence[Point]) -> float:
    return max(point.value for point in points)


def _idle(cells: Sequence[CellRuns]) -> Figure:
    """A bar for each cell; a point for each worker of each seed."""
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
        *("time", "Time to an accuracy of {threshold:.1%} against {axis}", "seconds"),
        lambda curves, threshold: time_to(curves, threshold) if threshold else None,
        percent=False,
    ),
    _Measure(
        *("idle", "Idle time against {axis}", "idle share"),
        lambda curves, _: fmean(curves.idle.values()) if curves.idle else None,
    ),
    _Measure(
        *("final", "Final accuracy against {axis}", "final test accuracy"),
        lambda curves, _: curves.accuracy[-1].value if curves.accuracy else None,
    ),
)


def _sweeps(cells: Sequence[CellRuns], threshold: float) -> list[Figure]:
    """Figures against each numeric axis that has enough values."""
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
    """The means of a measure along an axis; nothing for too few."""
    values = []
    for x, cell in sorted(line, key=lambda each: each[0]):
        found = [measure.value(curves, threshold) for curves in cell.curves.values()]
        if measured := [value for value in found if value is not None]:
            values.append((f"{x:g}", fmean(measured)))
    if len(values) < SWEPT_LEAST:
        return {}
    return {"x": [x for x, _ in values], "y": [y for _, y in values]}


def _lines(cells: Sequence[CellRuns], axis: str) -> dict[str, Line]:
    """The cells with a number on an axis, by their values on the others."""
    lines: dict[str, Line] = {}
    for cell in cells:
        value = cell.values.get(axis)
        if cell.runs and isinstance(value, int | float) and not isinstance(value, bool):
            lines.setdefault(_without(cell, axis), []).append((float(value), cell))
    return lines


def _without(cell: CellRuns, axis: str) -> str:
    names = names_of(axis)
    return " ".join(word for word in cell.name.split() if word.partition("=")[0] not in names)
