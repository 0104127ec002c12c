"""The page of a run or of a comparison: one file, which needs no network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from shoal.errors import InvalidValue
from shoal.jobs.comparison import Comparison, label_of, names_of, strategy_label
from shoal.reports.comparison import CellRuns, ComparedRuns
from shoal.reports.events import Run
from shoal.reports.figures import Figure, figures_of
from shoal.reports.numbers import decimal_bytes, percent, seconds, significant
from shoal.storage.files import write_whole

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the page's table.

    Attributes:
        best: which of the values is the best, `min` or `max`; None if neither is.
    """

    name: str
    title: str
    shown: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None


COLUMNS = (
    Column("accuracy", "test accuracy", percent, max),
    Column("loss", "test loss", significant, min),
    Column("time_to", "time to accuracy {threshold:.1%}", seconds, min),
    Column("seconds", "training time", seconds, min),
    Column("bytes", "bytes", decimal_bytes, min),
    Column("idle", "idle", percent, min),
    Column("staleness", "staleness", significant, None),
)


@dataclass(frozen=True)
class Page:
    """What a page says, beside its figures."""

    title: str
    compared: ComparedRuns
    facts: list[str]
    commands: list[tuple[str, str]]
    settings: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def figures(self) -> list[Figure]:
        """Its figures."""
        return figures_of(self.compared.cells, self.compared.threshold())

    def write(self, path: Path) -> None:
        """Write it."""
        cells, figures = self.compared.cells, self.figures
        threshold = self.compared.threshold()
        rows = self.compared.table()
        drawn = json.dumps([asdict(each) for each in figures]).replace("<", "\\u003c")
        environment = Environment(
            loader=PackageLoader("shoal.reports", "."), autoescape=True, undefined=StrictUndefined
        )
        text = environment.get_template("page.html").render(
            page=self,
            figures=figures,
            drawn=drawn,
            columns=[each.title.format(threshold=threshold) for each in COLUMNS],
            rows=[_cells_of(row, rows) for row in rows],
            numbers={cell.name: number for number, cell in enumerate(cells)},
            plotly=get_plotlyjs(),
        )
        try:
            write_whole(path, text)
        except OSError as error:
            raise InvalidValue(f"no page can be written to {path}: {error.strerror}") from None


def page_of_comparison(compared: ComparedRuns) -> Page:
    """The page of a comparison."""
    comparison, path = compared.comparison, compared.path
    axes = list(dict.fromkeys(axis for cell in compared.cells for axis in cell.values))
    varied = [
        names_of(axis)[0]
        for axis in axes
        if len({str(cell.values[axis]) for cell in compared.cells if axis in cell.values}) > 1
    ]
    runs = sum(len(cell.runs) for cell in compared.cells)
    cells, seeds = _count(len(compared.cells), "cell"), _count(comparison.seeds, "seed")
    facts = [
        f"{cells}, {seeds} each: {_count(runs, 'run')}.",
        "Simulated cluster and clock, real models and data."
        if comparison.simulated
        else "Real processes on one machine.",
    ]
    warnings = compared.unlike_weights()
    if not warnings and runs:
        facts.append("All runs of a seed and a model began with the same weights, bit for bit.")
    if unlike := compared.unlike_samples():
        facts.append(unlike)
    if missing := len(compared.cells) * comparison.seeds - runs:
        have = "1 run has" if missing == 1 else f"{missing} runs have"
        warnings.append(f"{have} not ended: shoal compare --resume {path}")
    return Page(
        str(comparison.job.get("title", ""))
        or f"{label_of(comparison.job.get('data', 'digits'))} by {', '.join(varied) or 'seed'}",
        compared,
        facts,
        [
            ("the same runs again", f"shoal compare {path}/comparison.toml"),
            ("this page again", f"shoal report {path}"),
            ("its table as JSON", f"shoal report {path} --json"),
        ],
        _flat(msgspec.to_builtins(comparison)),
        warnings,
    )


def page_of_run(run: Run, job: Mapping[str, Any]) -> Page:
    """The page of one run.

    Raises:
        InvalidValue: it is of an application whose events have no such figures.
    """
    if "application" in job:
        raise InvalidValue(
            f"{run.path} is a run of `shoal train {job['application']}`, whose events do not have "
            "what a report draws; its summary.json has its figures"
        )
    name = strategy_label(str(job.get("strategy", "run")))
    compared = ComparedRuns(run.path, Comparison(), [CellRuns(name, {}, {0: run})])
    workers = _count(len(run.steps), "worker")
    simulated = bool(run.summary.get("simulated"))
    where = "simulated cluster and clock" if simulated else "real processes"
    endings = [event["reason"] for event in run.events if event["kind"] == "ending"]
    unended = f"This run has not ended: {endings[-1]}" if endings else "This run has not ended."
    return Page(
        str(job.get("title", "")) or f"{label_of(job.get('data', 'a run'))}: {name}",
        compared,
        [f"Strategy {name}, {workers}, {where}."],
        [
            ("the same run again", f"shoal train {run.path}/job.toml"),
            ("this page again", f"shoal report {run.path}"),
            ("its figures as JSON", f"shoal report {run.path} --json"),
        ],
        _flat(job),
        [] if run.summary else [unended],
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _cells_of(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """A row of the table as text: (value, its spread, whether it is the best)."""
    found = []
    for column in COLUMNS:
        value, spread = row[column.name], row.get(f"{column.name}_sd")
        values = [each[column.name] for each in rows if each[column.name] is not None]
        best = column.best is not None and len({*values}) > 1 and value == column.best(values)
        text = "" if value is None else column.shown(value)
        said = "" if spread is None else column.shown(spread)
        found.append((text, f"± {said}" if said not in ("", column.shown(0.0)) else "", best))
    return {"cell": row["cell"], "values": found, "run_dirs": row["run_dirs"]}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names, without what is empty."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value not in ("", [], None):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found[prefix + name] = shown
    return found
