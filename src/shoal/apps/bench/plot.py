"""A suite's rows as bars: ours, its ceiling and its peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.apps.bench.rows import Row
from shoal.errors import InvalidValue
from shoal.extras import require

BAR = 0.26  # as a part of a row's height
COLORS = {"value": "#1f77b4", "ceiling": "#c7c7c7", "peer": "#ff7f0e"}


def plot_rows(report: dict[str, Any], path: Path) -> None:
    """Write a picture of a report, in the format of the name's ending (.png, .svg, .pdf).

    Raises:
        PackageMissing: matplotlib is not installed
        InvalidValue: the file cannot be written, or its format is unknown
    """
    Figure = require("matplotlib.figure", "--plot").Figure
    units = list(dict.fromkeys((row["unit"], row["better"]) for row in report["rows"]))
    panels = [[row for row in report["rows"] if row["unit"] == unit] for unit, _ in units]
    heights = [len(panel) for panel in panels]
    figure = Figure(figsize=(9, 1.2 + 0.7 * sum(heights) + 0.6 * len(units)), layout="constrained")
    axes = figure.subplots(len(units), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, panel, (unit, better) in zip(axes, panels, units, strict=True):
        _draw(axis, panel)
        axis.set_xlabel(f"{unit} ({better} is better)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    box = report["machine"]
    figure.suptitle(f"shoal bench {report['suite']}: {box['cores']} cores, torch {box['torch']}")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{path} cannot be written: {error}") from None


def _draw(axis: Any, rows: list[Row]) -> None:
    """Draw three bars a row, the first row on top."""
    names = {row["peer_name"] for row in rows if row.get("peer") is not None}
    labels = {"value": "shoal", "ceiling": "ceiling", "peer": ", ".join(sorted(names)) or "peer"}
    for number, (key, color) in enumerate(COLORS.items()):
        shown = [(at, row[key]) for at, row in enumerate(rows) if row.get(key) is not None]
        if shown:
            places, values = zip(*shown, strict=True)
            offsets = [place + (number - 1) * BAR for place in places]
            bars = axis.barh(offsets, values, BAR, color=color, label=labels[key])
            axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axis.invert_yaxis()
    axis.margins(x=0.12)
