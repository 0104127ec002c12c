"""A comparison as tables, from the event logs of its runs alone.

>>> comparison = load_comparison("shoal-runs/compare-mnist-20260101-120000")  # doctest: +SKIP
>>> [(row["cell"], row["accuracy"]) for row in comparison.table()]            # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from shoal.errors import DataCorrupt, DataMissing, ShoalError
from shoal.reports.columns import COLUMNS_OF, Column
from shoal.reports.curves import Curves, curves_of
from shoal.reports.events import Run, load_run
from shoal.reports.logged import logged_summary
from shoal.runs.grid import WEIGHTS, Comparison, comparison_of
from shoal.runs.job_file import load_job
from shoal.storage.comparison_folder import ComparisonFolder

THRESHOLD_STEP = 0.005  # thresholds are multiples of it
SAMPLES_ALIKE = 0.02  # share by which runs' samples may differ: the last batches of epochs
ROUNDING = 1e-6  # so that a multiple that was reached exactly counts


@dataclass(frozen=True)
class CellRuns:
    """The runs of one cell of a comparison.

    Attributes:
        name: the strategy, and the values that differ between cells.
        values: the values of the cell, by axis.
        runs: the runs that have ended, by seed.

    Example:
        >>> CellRuns("ssp staleness=2", {"strategy": "ssp", "staleness": 2}, {}).curves
        {}
    """

    name: str
    values: Mapping[str, Any]
    runs: Mapping[int, Run]

    @cached_property
    def curves(self) -> dict[int, Curves]:
        """The learning curves of the runs, by seed."""
        return {seed: curves_of(run.events) for seed, run in self.runs.items()}


@dataclass(frozen=True)
class ComparedRuns:
    """The records of a comparison, as `load_comparison` reads them.

    Attributes:
        path: the comparison's folder.
        comparison: the job, the axes along which it varies, and the seeds.
        cells: the cells in the order of the axes, also those without a run that has ended.

    Example:
        >>> ComparedRuns(Path("shoal-runs/compare"), Comparison(), [])
        ComparedRuns('shoal-runs/compare', 0 of 0 runs)
    """

    path: Path
    comparison: Comparison
    cells: list[CellRuns]

    def __repr__(self) -> str:
        ended = sum(len(cell.runs) for cell in self.cells)
        whole = len(self.cells) * self.comparison.seeds
        return f"ComparedRuns({str(self.path)!r}, {ended} of {whole} runs)"

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table that are figures of runs."""
        return COLUMNS_OF[self.comparison.application]

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each cell with runs: means over seeds, with their standard deviations.

        Columns: cell; the axes; runs; accuracy, loss (on test data, of the final parameters),
        time_to (seconds until the accuracy was `threshold`), seconds (of training), bytes (through
        the workers' links), idle (share of the workers' time) and staleness (clocks, mean over
        steps), each with a column NAME_sd, which is None for one run, and both are None where a
        value is not finite; threshold, the highest multiple of 0.005 that the accuracy of all runs
        has reached; and run_dirs, the folders of the runs. A figure that no run has is None. Runs
        of scripts have `logged`, by name: count, first, last, least and greatest. Runs of `ctr` and
        `word2vec` have the figures of their summaries instead: `reports.columns.COLUMNS_OF`.
        """
        threshold = self.threshold()
        return [_row(cell, self.columns, threshold) for cell in self.cells if cell.runs]

    def threshold(self) -> float:
        """Return the highest multiple of 0.005 that the accuracy of all runs has reached."""
        best = [
            max((point.value for point in curves.accuracy), default=0.0)
            for cell in self.cells
            for curves in cell.curves.values()
        ]
        steps = floor(min(best, default=0.0) / THRESHOLD_STEP + ROUNDING)
        return round(steps * THRESHOLD_STEP, 3)

    def unlike_samples(self) -> str:
        """Return a sentence on cells that trained on unlike numbers of samples; "" if none did.

        The first run of each cell counts.
        """
        if self.comparison.application:  # their events do not have all samples
            return ""
        trained = {
            cell.name: sum(sum(steps["samples"]) for steps in run.steps.values())
            for cell in self.cells
            for run in list(cell.runs.values())[:1]
        }
        if not trained or max(trained.values()) <= (1 + SAMPLES_ALIKE) * min(trained.values()):
            return ""
        few, most = (choose(trained, key=trained.__getitem__) for choose in (min, max))
        return (
            f"Runs have trained on unlike numbers of samples: {few} on {trained[few]:,}, "
            f"{most} on {trained[most]:,}."
        )

    def unlike_weights(self) -> list[str]:
        """Return the differences where runs of one seed and model began with unlike weights."""
        seen: dict[tuple[int, str], tuple[str, str]] = {}  # by seed and what makes the weights
        found = []
        for cell in self.cells:
            for seed, curves in cell.curves.items():
                key = seed, str([cell.values.get(field) for field in WEIGHTS])
                name, weights = seen.setdefault(key, (cell.name, curves.weights))
                if weights != curves.weights:
                    found.append(f"seed {seed}: {cell.name} and {name} began with unlike weights")
        return found


def load_comparison(path: str | Path) -> ComparedRuns:
    """Read the records that a comparison has left in its folder, as far as it has come.

    Args:
        path: the comparison's folder, such as shoal-runs/compare-mnist-20260101-120000.

    Returns:
        The comparison: its cells, with the runs that have ended.

    Raises:
        DataMissing: there is no comparison in that folder.
        DataCorrupt: a file is damaged.
        UnknownFormat: another version of Shoal has written it.

    Example:
        >>> found = shoal.reports.load_comparison("shoal-runs/compare-mnist")  # doctest: +SKIP
        >>> [(row["cell"], row["accuracy"]) for row in found.table()]  # doctest: +SKIP
    """
    folder = ComparisonFolder(Path(path))
    comparison = read_comparison(folder)
    cells = []
    for name, place, values in folder.read_cells():
        ended = {seed: folder.ended(place, seed) for seed in comparison.seeds_of()}
        runs = {seed: load_run(run.path) for seed, run in ended.items() if run is not None}
        cells.append(CellRuns(name, values, runs))
    return ComparedRuns(folder.path, comparison, cells)


def read_comparison(folder: ComparisonFolder) -> Comparison:
    """Return a comparison, as its folder has it.

    Raises:
        DataMissing: there is no comparison.
        DataCorrupt: the comparison cannot be read.
    """
    if not folder.comparison.is_file():
        raise DataMissing(
            f"{folder.path} is not the folder of a comparison: there is no file {folder.comparison}"
        )
    try:
        return comparison_of(load_job(folder.comparison, "comparison"))
    except ShoalError as error:
        raise DataCorrupt(f"{folder.comparison}: {error.message}") from None


def _row(cell: CellRuns, columns: Sequence[Column], threshold: float) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": cell.name, **cell.values, "runs": len(cell.runs)}
    for column in columns:
        found = [column.of(run, cell.curves[seed], threshold) for seed, run in cell.runs.items()]
        values = [value for value in found if value is not None]
        finite = bool(values) and all(isfinite(value) for value in values)
        row[column.name] = fmean(values) if finite else None
        row[f"{column.name}_sd"] = stdev(values) if finite and len(values) > 1 else None
    row["threshold"] = threshold
    row["run_dirs"] = [str(run.path) for run in cell.runs.values()]
    if logged := next((run.logged for run in cell.runs.values() if run.logged), None):
        row["logged"] = logged_summary(logged)
    return row
