"""The page of a run or of a comparison: one file, which needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from shoal.errors import InvalidValue
from shoal.extras import require
from shoal.reports.codecs import codec_figures
from shoal.reports.columns import TABLE_NOTES, Column
from shoal.reports.comparison import CellRuns, ComparedRuns
from shoal.reports.events import Run
from shoal.reports.figures import Figure, figures_of
from shoal.reports.numbers import significant
from shoal.runs.grid import Comparison, label_of, names_of, strategy_label
from shoal.runs.job_file import SCRIPT
from shoal.storage.files import write_whole

Row = Mapping[str, Any]
NUMBERS = ("first", "last", "least", "greatest")  # of each name that a script has recorded


def packages() -> tuple[ModuleType, ModuleType]:
    """Import plotly's offline part and jinja2.

    Raises:
        PackageMissing: one of them is not installed
    """
    what = "the page of a report"
    return require("plotly.offline", what), require("jinja2", what)


AXES = (("step", "steps"), ("seconds", "time"), ("bytes", "bytes"))
SPREAD = "Means over the seeds, ± their standard deviation; the best of each column is bold."
LOGGED = (
    "The last number is that of the worker of lowest rank that has recorded it; the least and the "
    "greatest are of all workers."
)
CODECS = (
    "Of a push: means over those that were measured, one between two evaluations of each worker. "
    "The error is relative to the values with what was left out before."
)


@dataclass(frozen=True)
class Page:
    """The content of a page, with its figures."""

    title: str
    compared: ComparedRuns
    facts: list[str]
    commands: list[tuple[str, str]]
    settings: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def figures(self) -> list[Figure]:
        """The figures of the page."""
        found = figures_of(self.compared.cells, self.compared.threshold())
        if self.compared.comparison.application:  # their events have no evaluations and no waits
            return [figure for figure in found if figure.name == "loss"]
        return found

    def write(self, path: Path) -> None:
        """Write the page to a file."""
        cells, figures = self.compared.cells, self.figures
        rows = self.compared.table()
        logged = rows[0].get("logged") if len(rows) == 1 else None
        drawn = json.dumps([asdict(each) for each in figures]).replace("<", "\\u003c")
        plotly, jinja2 = packages()
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("shoal.reports", "."),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
        )
        used = {
            axis
            for figure in figures
            for each in figure.traces
            for axis in each["meta"].get("x", ())
        }
        text = environment.get_template("page.html").render(
            page=self,
            figures=figures,
            drawn=drawn,
            tables=[
                _table_of_logged(logged) if logged else _table_of(self.compared, rows),
                *_tables_of_codecs(cells),
            ],
            rows=rows,
            axes=[(name, label) for name, label in AXES if name in used],
            numbers={cell.name: number for number, cell in enumerate(cells)},
            plotly=plotly.get_plotlyjs(),
        )
        try:
            write_whole(path, text)
        except OSError as error:
            raise InvalidValue(f"no page can be written to {path}: {error.strerror}") from None


def page_of_comparison(compared: ComparedRuns) -> Page:
    """Return the page of a comparison."""
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
    if not warnings and runs and not comparison.application:
        facts.append("All runs of a seed and a model began with the same weights, bit for bit.")
    if unlike := compared.unlike_samples():
        facts.append(unlike)
    if missing := len(compared.cells) * comparison.seeds - runs:
        have = "1 run has" if missing == 1 else f"{missing} runs have"
        warnings.append(f"{have} not ended: shoal compare --resume {path}")
    return Page(
        str(comparison.job.get("title", ""))
        or f"{label_of(comparison.source)} by {', '.join(varied) or 'seed'}",
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
    """Return the page of one run.

    job:  the job in the run's folder; {} for a script that was started without `shoal run`

    Raises:
        InvalidValue: the run is of an application whose events have no such figures.
    """
    application = job.get("application", "")
    if application not in ("", SCRIPT):
        raise InvalidValue(
            f"{run.path} is a run of `shoal train {application}`, whose events do not have "
            "what a report draws; its summary.json has its figures"
        )
    is_script = application == SCRIPT or not job
    name = "script" if is_script else strategy_label(str(job.get("strategy", "run")))
    compared = ComparedRuns(run.path, Comparison(), [CellRuns(name, {}, {0: run})])
    workers = _count(len(run.steps.keys() | run.logged.keys()), "worker")
    simulated = bool(run.summary.get("simulated"))
    where = "simulated cluster and clock" if simulated else "real processes"
    warnings = [] if run.summary or not job else [_unended(run)]
    if is_script and not run.logged:
        warnings.append("It has recorded no figures: call shoal.log in the script.")
    again = job.get("command", "") if is_script else f"shoal train {run.path}/job.toml"
    return Page(
        str(job.get("title", "")) or (_script_of(run, job) if is_script else _title(job, name)),
        compared,
        [f"{'A script' if is_script else f'Strategy {name}'}, {workers}, {where}."],
        [
            ("the same run again", again),
            ("this page again", f"shoal report {run.path}"),
            ("its figures as JSON", f"shoal report {run.path} --json"),
        ],
        _flat(job),
        warnings,
    )


def _title(job: Mapping[str, Any], strategy: str) -> str:
    return f"{label_of(job.get('data', 'a run'))}: {strategy}"


def _script_of(run: Run, job: Mapping[str, Any]) -> str:
    """Return the name of a script, or of its run's folder where the run does not name it."""
    return label_of(next(iter(job.get("script", [])), run.path.absolute()))


def _unended(run: Run) -> str:
    endings = [event["reason"] for event in run.events if event["kind"] == "ending"]
    return f"This run has not ended: {endings[-1]}" if endings else "This run has not ended."


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@dataclass(frozen=True)
class _Table:
    """The page's table.

    Attributes:
        lines: the lines, each with a name and its values as text: (value, spread, whether it is
            the best).
    """

    heading: str
    columns: list[str]
    lines: list[dict[str, Any]]
    note: str


def _table_of(compared: ComparedRuns, rows: Sequence[Row]) -> _Table:
    """Return a table with a line for each cell, without columns in which none has a value."""
    known, threshold = compared.columns, compared.threshold()
    of = compared.comparison.application
    columns = [each for each in known if any(row[each.name] is not None for row in rows)]
    return _Table(
        "cell" if len(rows) > 1 else "run",
        [each.title.format(threshold=threshold) for each in columns],
        [{"name": row["cell"], "shown": _shown(row, rows, columns)} for row in rows],
        " ".join(filter(None, (SPREAD if len(rows) > 1 else "", TABLE_NOTES[of]))),
    )


def _shown(row: Row, rows: Sequence[Row], columns: Sequence[Column]) -> list[tuple[str, str, bool]]:
    found = []
    for column in columns:
        value, spread = row[column.name], row.get(f"{column.name}_sd")
        values = [each[column.name] for each in rows if each[column.name] is not None]
        best = column.best is not None and len({*values}) > 1 and value == column.best(values)
        text = "" if value is None else column.shown(value)
        said = "" if spread is None else column.shown(spread)
        found.append((text, f"± {said}" if said not in ("", column.shown(0.0)) else "", best))
    return found


def _table_of_logged(logged: Mapping[str, Row]) -> _Table:
    """Return a table with a line for each name that a script has recorded."""
    lines = []
    for name, each in logged.items():
        numbers = ("" if each[what] is None else significant(each[what]) for what in NUMBERS)
        lines.append(
            {
                "name": name,
                "shown": [(text, "", False) for text in (*numbers, f"{each['count']:,}")],
            }
        )
    return _Table("recorded", [*NUMBERS, "calls"], lines, LOGGED)


def _tables_of_codecs(cells: Sequence[CellRuns]) -> Iterator[_Table]:
    """Yield a table with a line for each layer that a codec encodes, if it is of one run."""
    runs = [run for cell in cells for run in cell.runs.values()]
    if len(runs) != 1:
        return
    lines = []
    for (_, layer, codec), each in codec_figures(runs[0].events).items():
        raw, encoded = each["raw_bytes"], each["encoded_bytes"]
        shown = (
            codec,
            f"{raw:,.0f}",
            f"{encoded:,.0f}",
            f"{raw / encoded:.1f}",
            f"{each['error']:.2%}",
        )
        lines.append({"name": layer or "all", "shown": [(text, "", False) for text in shown]})
    titles = ["codec", "bytes", "encoded", "fewer by", "relative error"]
    yield _Table("layer", titles, lines, CODECS)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings by dotted names, without empty ones."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value not in ("", [], None):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found[prefix + name] = shown
    return found
