"""Figures as files: CSV for other programs, SVG for papers. The page needs neither."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from shoal.errors import InvalidValue
from shoal.extras import require
from shoal.reports.figures import Figure, Trace
from shoal.storage.files import make_folder, write_whole

AXIS_TITLES = {
    "step": "steps of a worker",
    "seconds": "training time (s)",
    "bytes": "bytes through the workers' links",
}
COLORS = (  # of cells, as the page has them
    *("#0b62c4", "#d1480b", "#14803c", "#8a3fb8", "#b07800"),
    *("#c2185b", "#0a7f8c", "#6b5b4b", "#5560d6", "#5d6b78"),
)
DASHES = ("-", "--", ":", "-.")
INCHES = (6.4, 4.0)
LOG_FROM = 50.0  # greatest value over least one, from which the y axis is logarithmic
Row = dict[str, Any]  # column -> value


def write_csv(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write a CSV file for each figure, NAME.csv, with all of its points; return the paths.

    Raises:
        InvalidValue: a file cannot be written
    """
    texts = {}
    for figure in figures:
        rows = [row for trace in figure.traces for row in _rows(figure, trace)]
        text = StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
        texts[f"{figure.name}.csv"] = text.getvalue()
    return _written(texts, folder)


def write_svg(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write an SVG file for each figure, NAME.svg, and return the paths.

    A learning curve has a file for each x axis: NAME-step.svg, NAME-seconds.svg, NAME-bytes.svg.

    Raises:
        PackageMissing: matplotlib is not installed
        InvalidValue: a file cannot be written
    """
    require("matplotlib", "--svg")
    texts = {}
    for figure in figures:
        for against in _axes_of(figure) or ("",):
            name = f"{figure.name}-{against}" if against else figure.name
            texts[f"{name}.svg"] = _drawn(figure, against)
    return _written(texts, folder)


def _written(texts: dict[str, str], folder: Path) -> list[Path]:
    try:
        make_folder(folder)
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise InvalidValue(f"no figures can be written to {folder}: {error.strerror}") from None
    return [folder / name for name in texts]


def _axes_of(figure: Figure) -> list[str]:
    """Return the x axes of a learning curve; none for other figures."""
    return list(
        dict.fromkeys(axis for trace in figure.traces for axis in trace["meta"].get("x", ()))
    )


def _rows(figure: Figure, trace: Trace) -> Iterator[Row]:
    """Yield the points of a line, or the bars of a trace."""
    meta, cell = trace["meta"], {"cell": trace["name"]}
    value = figure.y or figure.name
    if "x" not in meta:
        label = figure.x or "worker"
        texts = trace.get("text") or (["mean"] * len(trace["y"]) if not figure.x else trace["x"])
        for text, y in zip(texts, trace["y"], strict=True):
            yield {**cell, label: text, value: y}
        return
    for against, xs in meta["x"].items():
        ys = meta["y"][against]
        for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
            bounds = {name: meta[name][against][at] for name in ("least", "most") if name in meta}
            yield {**cell, "against": against, "x": x, value: y, **bounds}


def _drawn(figure: Figure, against: str) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import EngFormatter, PercentFormatter

    text = StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "shoal"}):
        canvas = Canvas(figsize=INCHES, layout="constrained")
        axes = canvas.subplots()
        bars = [each for each in figure.traces if each.get("type") == "bar"]
        for trace in figure.traces:
            _draw(axes, trace, against, bars, grouped=bool(figure.x))
        axes.set_title(figure.title)
        axes.set_xlabel(AXIS_TITLES[against] if against else figure.x)
        axes.set_ylabel(figure.y or figure.title.lower())
        axes.grid(alpha=0.3)
        if against == "bytes":
            axes.xaxis.set_major_formatter(EngFormatter("B"))
        elif not against and not figure.x:  # names of cells
            axes.tick_params("x", rotation=20)
        if figure.percent:
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        elif against and 0 < LOG_FROM * axes.dataLim.ymin < axes.dataLim.ymax:
            axes.set_yscale("log")
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small")
        canvas.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _draw(axes: Any, trace: Trace, against: str, bars: list[Trace], grouped: bool) -> None:
    """Draw a line with its band, points, or bars.

    grouped:  whether the bars of several cells stand side by side, at each number
    """
    meta = trace["meta"]
    look = {"color": COLORS[meta["cell"] % len(COLORS)]}
    if trace.get("type") == "bar":
        width = 0.8 / len(bars) if grouped else 0.8
        offset = (bars.index(trace) - (len(bars) - 1) / 2) * width if grouped else 0.0
        places = [x + offset for x in trace["x"]] if grouped else trace["x"]
        axes.bar(places, trace["y"], width, label=trace["name"] if grouped else None, **look)
    elif meta.get("ink"):
        axes.plot(trace["x"], trace["y"], "o", color="black", alpha=0.55, markersize=4)
    else:
        x, y = (meta["x"][against], meta["y"][against]) if against else (trace["x"], trace["y"])
        marker = "o" if "markers" in trace["mode"] else ""
        dash = DASHES[meta["cell"] // len(COLORS) % len(DASHES)]
        axes.plot(x, y, dash, marker=marker, markersize=4, label=trace["name"], **look)
        if against and "least" in meta:
            axes.fill_between(x, meta["least"][against], meta["most"][against], alpha=0.2, **look)
