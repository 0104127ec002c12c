"""`shoal compare`: the runs of a grid of jobs, which can be continued, and their report."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shoal import factories
from shoal.apps.codec_times import codecs_of, measured_times
from shoal.apps.compare.applications import application_of, check_fields
from shoal.apps.compare.runs import (
    check_limited,
    measured,
    on_processes,
    run_of,
    simulated,
)
from shoal.apps.train.checks import check_inputs, check_job
from shoal.data.places import search_path
from shoal.errors import InvalidValue, UnknownName
from shoal.reports.comparison import ComparedRuns, load_comparison, read_comparison
from shoal.reports.live import progress_console, show_comparison
from shoal.reports.page import packages, page_of_comparison
from shoal.runs.grid import Cell, Comparison, comparison_from, dump_comparison
from shoal.runs.job import JobSpec
from shoal.runs.simulated_time import check_simulated
from shoal.runs.trust import trusting
from shoal.storage.comparison_folder import ComparisonFolder


def begin_comparison(
    comparison: Comparison, data_dirs: Sequence[Path], out: Path, title: str
) -> ComparisonFolder:
    """Check every cell, measure a batch for simulated time, and make the comparison's folder.

    Raises:
        ShoalError: a cell is wrong; no folder is made then
    """
    packages()  # those of the page that is written at the end
    cells = comparison.cells()
    if comparison.application:
        _check_application(comparison, cells, out)
    else:
        comparison = _checked(comparison, cells, data_dirs, out)
    folder = ComparisonFolder.create(out, title)
    folder.write_comparison(dump_comparison(comparison))
    return folder


def _check_application(comparison: Comparison, cells: Sequence[Cell], out: Path) -> None:
    """Check the options of every cell, and the data of the first."""
    check_fields(comparison)
    seed, quiet = comparison.seeds_of()[0], Console(quiet=True)
    for cell in cells:
        try:
            application = application_of(comparison.application, cell, seed, out, ())
            application.check()
        except (InvalidValue, UnknownName) as error:
            raise type(error)(f"cell {cell.name!r}: {error.message}") from None
        if cell is cells[0]:
            application.begin_at(0)
            application.prepare(quiet)


def _checked(
    comparison: Comparison, cells: Sequence[Cell], data_dirs: Sequence[Path], out: Path
) -> Comparison:
    """Check the jobs of all cells; return the comparison with the seconds of a batch."""
    seen: list[JobSpec] = []
    for cell in cells:
        try:
            job = cell.job(comparison.seeds_of()[0], str(out))
            check_job(job)
            if comparison.simulated:
                check_simulated(job, comparison.simulation)
            elif cell.bandwidth:
                check_limited(job)
        except (InvalidValue, UnknownName) as error:
            raise type(error)(f"cell {cell.name!r}: {error.message}") from None
        plain: dict[str, Any] = {"strategy": "sync", "staleness": 0, "apply_at": "arrival"}
        job = job.resolved  # before the strategy is replaced
        inputs = msgspec.structs.replace(job, **plain, set={}) if job.uses_servers else job
        if inputs not in seen:
            seen.append(inputs)
            check_inputs(job, data_dirs)
    if comparison.simulated and not comparison.simulation.batch_s:
        seconds = measured(cells, data_dirs, comparison.measured)
        comparison = msgspec.structs.replace(comparison, measured=seconds)
    if comparison.simulated and not comparison.simulation.batch_s:
        used = {str(each): each for cell in cells for each in codecs_of(cell.job(0, ""))}
        left = [used[name] for name in used if name not in comparison.codecs]
        times = {**comparison.codecs, **measured_times(left)}
        comparison = msgspec.structs.replace(comparison, codecs=times)
    return comparison


def run_comparison(
    folder: ComparisonFolder,
    comparison: Comparison,
    data_dirs: Sequence[Path],
    console: Console,
    jobs: int = 0,
) -> dict[str, str]:
    """Run the runs that have not ended, and return the errors of those that failed, by name.

    Args:
        folder: the comparison's folder.
        comparison: the comparison in that folder.
        data_dirs: the folders to search for data sets.
        console: the console that shows progress.
        jobs: the number of simulated runs at a time; 0: as many as there are cores.

    Raises:
        KeyboardInterrupt: the text says how to go on.
    """
    packages()  # of the page that is written at the end
    cells = comparison.cells()
    folder.write_cells([(cell.name, cell.folder, dict(cell.values)) for cell in cells])
    runs = [
        run_of(comparison, folder, cell, seed) for seed in comparison.seeds_of() for cell in cells
    ]
    left = [run for run in runs if folder.ended(run.cell.folder, run.seed) is None]
    running = (
        simulated(left, data_dirs, jobs or os.cpu_count() or 1)
        if comparison.simulated
        else on_processes(left, data_dirs)
    )
    failed = {}
    with _bar(console) as bar, closing(running):
        shown = bar.add_task("comparing", total=len(runs), completed=len(runs) - len(left), run="")
        try:
            for name, error in running:
                if error:
                    failed[name] = error
                bar.update(shown, advance=1, run=name)
        except KeyboardInterrupt as interrupt:
            hint = f"go on with: shoal compare --resume {folder.path}"
            raise type(interrupt)(hint) from None
    return failed


def finish_comparison(
    folder: ComparisonFolder, failed: Mapping[str, str], console: Console | None
) -> dict[str, Any]:
    """Write the report of the runs that have ended, show it on a console, and return a summary."""
    compared = load_comparison(folder.path)
    page_of_comparison(compared).write(folder.report)
    table = compared.table()
    if console is not None:
        show_comparison(console, compared.columns, table)
        if unlike := compared.unlike_samples():
            console.print(unlike, soft_wrap=True, highlight=False)
        for name, error in failed.items():
            console.print("[bold red]failed[/] ", end="")
            console.print(f"{name}: {error}", highlight=False, markup=False, soft_wrap=True)
        if failed:
            console.print(f"try these again: shoal compare --resume {folder.path}", soft_wrap=True)
        console.print(f"report  {folder.report}", soft_wrap=True, highlight=False)
    return {
        "comparison": str(folder.path),
        "report": str(folder.report),
        "table": table,
        "failed": dict(failed),
    }


def compare(
    *,
    data: Callable[..., Any] | str = "digits",
    model: Callable[..., Any] | str | Sequence[Any] = "",
    data_dirs: Sequence[str | Path] = (),
    out: str | Path = "shoal-runs",
    title: str = "",
    jobs: int = 0,
    trust: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> ComparedRuns:
    """Train with every combination of some options, and draw a report.

    A list of values is an axis. An axis that a strategy does not have is left out for it. All runs
    of a seed begin with the same weights. The report is `report.html` in the comparison's folder.

    Args:
        data: a data set's name, or a function, as `shoal.train` takes it.
        model: the models' names or functions, as `shoal.train` takes them.
        data_dirs: the folders to search for named data sets.
        out: the folder in which the comparison's folder is made.
        title: the name of the comparison's folder.
        jobs: the number of simulated runs at a time; 0: as many as there are cores.
        trust: whether to continue from the files of another user, as for `shoal.train`.
        progress: whether to show a bar; None: on a terminal and in a notebook.
        options: the fields of a job, such as strategy, workers, epochs, lr, and `set` with the
            strategies' settings; `seeds`; `bandwidth` (Mbit/s); `simulated`, with `batch_s`,
            `pace` (a list: how many times as long each worker takes), `turn`, `jitter` and
            `latency_ms`; `strategies`, with the fields of each strategy's cells only.

    Returns:
        The comparison's records; its `table` has a row for each combination.

    Raises:
        InvalidValue: a value out of its range, an axis that no strategy has, or a run that failed.
        UnknownName: an unknown option, axis, model, data set or strategy.
        DataMissing: the data set is in none of the folders.
        NotImportable: a function that other processes cannot import.

    Example:
        >>> found = shoal.compare(  # doctest: +SKIP
        ...     data="digits", strategy=["sync", "easgd"], set={"tau": [4, 16]}, seeds=3
        ... )
        >>> [(row["cell"], row["accuracy"]) for row in found.table()]  # doctest: +SKIP
    """
    factories.refuse_while_importing("shoal.compare()")
    if jobs < 0:
        raise InvalidValue(f"jobs: a number of processes, or 0 for one a core, not {jobs}")
    models = [model or ""] if callable(model) or isinstance(model, str | None) else list(model)
    named = [each if isinstance(each, str) else factories.name_of(each) for each in models]
    values = {name: value for name, value in options.items() if value is not None}
    values["data"] = str(data) if isinstance(data, str | Path) else factories.name_of(data)
    if named != [""]:
        values["model"] = named
    if "application" in values:
        raise InvalidValue(
            "shoal.compare compares training jobs; for others: shoal compare "
            f"{values['application']}"
        )
    wanted = comparison_from({}, values)
    folders = search_path(None, {})
    places = [data_dirs] if isinstance(data_dirs, str | Path) else data_dirs
    folders = [*(Path(each).absolute() for each in places), *folders]
    folder = begin_comparison(wanted, folders, Path(out), title or title_of(wanted))
    console = progress_console(progress)
    with trusting(trust):
        failed = run_comparison(folder, read_comparison(folder), folders, console, jobs)
    finish_comparison(folder, failed, None)
    if failed:
        raise InvalidValue(
            "; ".join(f"{name}: {error}" for name, error in failed.items())
            + f"; go on with: shoal compare --resume {folder.path}"
        )
    return load_comparison(folder.path)


def title_of(comparison: Comparison) -> str:
    """Return the name of a comparison's folder."""
    data = comparison.application or Path(comparison.source).name.partition(".")[0]
    return str(comparison.job.get("title", "")) or f"compare-{data}"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[run]}"),
        console=console,
    )
