"""`shoal compare` and `shoal report`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
from rich.console import Console

from shoal.cli.group import (
    EXIT_FAILED,
    EXIT_USAGE,
    F,
    as_json,
    ended_by_signals,
    given,
    main,
    option,
    options_of,
    plain,
    tls_options,
    trusts,
)
from shoal.engines.pairs import pairs_of, value_of, values_of
from shoal.errors import UsageError
from shoal.extras import require
from shoal.runs.application import compared
from shoal.runs.grid import AXES, Comparison, comparison_from, comparison_of
from shoal.runs.job import JobSpec
from shoal.runs.job_file import load_job
from shoal.runs.options import RunOptions
from shoal.runs.simulated_time import SimulatedTime
from shoal.runs.trust import check_job_file, check_run
from shoal.storage.comparison_folder import ComparisonFolder
from shoal.storage.run_folder import RunFolder

ONE_RUN = (  # fields of a job that are options of a single run
    *("layers", "title", "out", "resume", "resume_at", "on_worker_loss", "slow_workers"),
    *("on_timeout", "checkpoint_every", "checkpoint_every_s", "keep_checkpoints"),
)


OF_ALL_CELLS = ("seed", "init", "memory")  # options of an application that are no axes


@main.command(short_help="compare strategies, with a report of figures", cleans=True)
@click.argument("comparison", metavar="[DATA|GRID.toml]", required=False)
@options_of(Comparison)
@option("--bandwidth", metavar="VALUE,...", section="Comparison", help="Mbit/s of every process's link: simulated, or by namespaces of the network (needs root); 0: no limit")  # noqa: E501  # fmt: skip
@option("--jobs", type=click.IntRange(1), section="Comparison", help="simulated runs at a time; one for each core if not given")  # noqa: E501  # fmt: skip
@option("--resume", metavar="FOLDER", section="Comparison", help="go on with a comparison: only its runs that have not ended")  # noqa: E501  # fmt: skip
@option("--title", default="", section="Output", help="name of the comparison's folder")
@option("--out", default="shoal-runs", section="Output", help="where the folder is made")
@options_of(SimulatedTime)
@options_of(JobSpec, leave_out=ONE_RUN, lists=AXES)
@trusts
@as_json
@tls_options
def compare(
    comparison: str | None,
    jobs: int | None,
    resume: str | None,
    title: str,
    out: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Train on one data set with every combination of the values given, and draw a report.

    Options with several values (--strategy easgd,bmuf --set tau=4,16) are axes; one that a strategy
    does not have is left out for it. All runs of a seed begin with the same weights.

    \b
    shoal compare digits --strategy sync,asgd,easgd --seeds 3
    shoal compare mnist --strategy ssp --staleness 0,1,2,4 --simulated --pace 1,1,1,4 --workers 4
    shoal compare mnist --strategy sync,diloco --bandwidth 10,100,1000 --simulated
    """
    from shoal.apps.compare.command import begin_comparison, title_of
    from shoal.data.places import search_path
    from shoal.reports.comparison import read_comparison

    console = Console(stderr=as_json)
    if resume:
        others = given().keys() - {"resume", "jobs", "as_json"}
        if others:
            flags = ", ".join(sorted(f"--{each.replace('_', '-')}" for each in others))
            raise click.UsageError(f"--resume goes on as before: leave out {flags}")
        folder = ComparisonFolder(Path(resume))
        wanted = read_comparison(folder)
        check_run(folder.path)
        _check_code(folder.comparison, wanted)
        folders = search_path(_data_dir(wanted), os.environ)
    elif not given().keys() - {"as_json"}:
        click.echo(click.get_current_context().get_help())
        raise click.exceptions.Exit(EXIT_USAGE)
    else:
        wanted = _comparison(comparison, given())
        folders = search_path(_data_dir(wanted), os.environ)
        if "out" not in given():
            out = str(wanted.job.get("out", out))
        with console.status("checking every cell"):
            folder = begin_comparison(wanted, folders, Path(out), title or title_of(wanted))
    _carry_out(folder, folders, console, jobs or 0, as_json)


def _carry_out(
    folder: ComparisonFolder,
    data_dirs: Sequence[Path],
    console: Console,
    jobs: int,
    as_json: bool,
) -> None:
    """Do the runs of a comparison that have not ended, and report."""
    from shoal.apps.compare.command import finish_comparison, run_comparison
    from shoal.reports.comparison import read_comparison

    with ended_by_signals():
        wanted = read_comparison(folder)
        failed = run_comparison(folder, wanted, data_dirs, console, jobs)
    report = finish_comparison(folder, failed, None if as_json else console)
    if as_json:
        click.echo(json.dumps(report))
    if failed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _axes_of(schema: type[RunOptions]) -> tuple[str, ...]:
    """Return the options of an application that have one value, of which a comparison takes many.

    >>> schema = compared("word2vec").schema
    >>> [each for each in _axes_of(schema) if each in ("dim", "texts", "seed", "model")]
    ['model', 'dim']
    """
    found = []
    for name, hint in get_type_hints(schema, include_extras=True).items():
        if get_origin(hint) is Annotated and name not in OF_ALL_CELLS:
            section = get_args(hint)[1].extra["section"]
            if section in ("Model", "Training", "Cluster"):
                found.append(name)
    order = schema.__struct_fields__
    return tuple(sorted(found, key=order.index))


def _application_options(name: str) -> Callable[[F], F]:
    """Declare the options of a comparison of an application's runs; its data are an argument."""
    kind = compared(name)
    schema = kind.schema

    def decorate(command: F) -> F:
        for each in reversed(
            (
                options_of(Comparison, leave_out=("simulated",)),
                options_of(schema, leave_out=(*ONE_RUN, kind.data), lists=_axes_of(schema)),
                option("--title", default="", section="Output", help="name of the folder"),
                option("--out", default="shoal-runs", section="Output", help="its parent"),
                as_json,
            )
        ):
            command = each(command)
        return command

    return decorate


@main.command("compare ctr", short_help="compare options of `train ctr`", cleans=True)
@click.argument("train", metavar="[TRAIN]", required=False, default="")
@_application_options("ctr")
@tls_options
def compare_ctr(train: str, **options: Any) -> None:
    """Train click-through-rate models with every combination of values, and draw a report.

    \b
    shoal compare ctr clicks.csv --label clicked --model lr,fm --lr 0.1,0.2 --test test.csv
    shoal compare ctr --strategy asgd,sync --workers 1,2,4 --seeds 3
    """
    _compare_application("ctr", {"train": train} if train else {})


@main.command("compare word2vec", short_help="compare options of `train word2vec`", cleans=True)
@click.argument("texts", metavar="[TEXT...]", nargs=-1)
@_application_options("word2vec")
@tls_options
def compare_word2vec(texts: tuple[str, ...], **options: Any) -> None:
    """Train word embeddings with every combination of the values given, and draw a report.

    \b
    shoal compare word2vec novels.tar.gz --analogies questions-words.txt --dim 50,100,200
    """
    _compare_application("word2vec", {"texts": [*texts]} if texts else {})


def _compare_application(name: str, job: dict[str, Any]) -> None:
    """Compare runs of an application: the options that were given, some with several values."""
    from shoal.apps.compare.command import begin_comparison, title_of

    schema = compared(name).schema
    flags, axes = given(), _axes_of(schema)
    asked = plain({each: flags[each] for each in schema.__struct_fields__ if each in flags}, schema)
    asked = {each: value for each, value in asked.items() if each not in ("title", "out")}
    grid = {each: _values(value) for each, value in asked.items() if each in axes}
    job |= {each: value for each, value in asked.items() if each not in axes and each not in job}
    found = {"application": name, "job": job, "grid": grid, "seeds": flags.get("seeds", 1)}
    wanted = comparison_of(found)
    console = Console(stderr=bool(flags.get("as_json")))
    title, out = flags.get("title") or title_of(wanted), flags.get("out", "shoal-runs")
    with console.status("checking every cell"):
        folder = begin_comparison(wanted, (), Path(out), title)
    _carry_out(folder, (), console, 0, bool(flags.get("as_json")))


@main.command(short_help="draw the figures of a run or of a comparison")
@click.argument("folder", metavar="RUN|COMPARISON", type=click.Path(path_type=Path))
@option("--out", type=click.Path(dir_okay=False, path_type=Path), help="the page; report.html in the folder if not given")  # noqa: E501  # fmt: skip
@option("--csv", "csv_to", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="write the points of each figure there as well, NAME.csv")  # noqa: E501  # fmt: skip
@option("--svg", "svg_to", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="draw each figure there as well, NAME.svg (needs matplotlib)")  # noqa: E501  # fmt: skip
@option("--open", "opens", is_flag=True, help="show the page in a browser")
@as_json
def report(
    folder: Path,
    out: Path | None,
    csv_to: Path | None,
    svg_to: Path | None,
    opens: bool,
    as_json: bool,
) -> None:
    """Write a page of figures: one file, which needs no network and can be sent to others.

    \b
    shoal report shoal-runs/digits-20261122-160000
    shoal report shoal-runs/compare-mnist-20261122-160000 --json
    shoal report shoal-runs/compare-mnist-20261122-160000 --svg figures --csv figures
    """
    from shoal.reports.comparison import load_comparison
    from shoal.reports.events import load_run
    from shoal.reports.exports import write_csv, write_svg
    from shoal.reports.page import packages, page_of_comparison, page_of_run
    from shoal.runs.job_file import load_run_job

    packages()  # before anything is written
    if svg_to:
        require("matplotlib", "--svg")
    if ComparisonFolder(folder).comparison.is_file():
        page = page_of_comparison(load_comparison(folder))
    else:
        run = load_run(folder)
        page = page_of_run(run, load_run_job(folder) if RunFolder(folder).job.exists() else {})
    path = out or ComparisonFolder(folder).report
    files = write_svg(page.figures, svg_to) if svg_to else []
    files += write_csv(page.figures, csv_to) if csv_to else []
    page.write(path)
    if as_json:
        table, names = page.compared.table(), [str(each) for each in files]
        found = {"report": str(path), "figures": names, "table": table, "warnings": page.warnings}
        click.echo(json.dumps(found))
    else:
        for each in (path, *files):
            click.echo(each)
    if opens:
        click.launch(str(path))


def _comparison(source: str | None, flags: Mapping[str, Any]) -> Comparison:
    """Return the comparison of a file or a data set and the flags that were given."""
    file: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if source and source.endswith(".toml"):
        file = load_job(Path(source), "comparison file")
    elif source:
        if "data" in flags:
            raise click.UsageError(f"give {source} or --data {flags['data']}, not both")
        options["data"] = source
    for name, value in flags.items():
        if name == "set":
            pairs = pairs_of(value, "--set")
            options["set"] = {each: _values(text) for each, text in pairs.items()}
        elif name == "optimizer_options":
            options[name] = values_of(value, "--optimizer-option")
        elif name in AXES:
            options[name] = _values(value)
        elif any(name in each.__struct_fields__ for each in (Comparison, SimulatedTime, JobSpec)):
            options[name] = value
    for name in ("title", "out"):
        options.pop(name, None)
    wanted = comparison_from(file, options)
    if file:
        _check_code(Path(str(source)), wanted)
    return wanted


def _check_code(path: Path, wanted: Comparison) -> None:
    for values in wanted.code():
        check_job_file(path, values)


def _data_dir(wanted: Comparison) -> Path | None:
    folder = wanted.job.get("data_dir", "")
    if not isinstance(folder, str):
        raise UsageError(f"data_dir: expected `str`, got {folder!r}")
    return Path(folder) if folder else None


def _values(text: str) -> list[Any]:
    """Return the values of an axis, which have commas between them.

    >>> _values("1,4,0.5"), _values("sync,ssp")
    ([1, 4, 0.5], ['sync', 'ssp'])
    """
    return [value_of(each) for each in text.split(",") if each]
