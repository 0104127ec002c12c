"""The commands `simulate`, `chaos`, `bench` and `list` of `shoal`, and the tools for a run.

These are `why`, `checkpoint`, `export`, `predict` and `similar`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from shoal.apps.bench.suites import SUITES
from shoal.apps.ctr.spec import Format
from shoal.cli.group import (
    EXIT_FAILED,
    as_json,
    ended_by_signals,
    given,
    main,
    option,
    options_of,
    tell,
    tls_options,
    token_options,
    trusts,
)
from shoal.cli.training import job_values
from shoal.errors import UsageError
from shoal.extras import require
from shoal.runs.job import JobSpec, from_mapping

CHAOS: dict[str, Any] = {"servers": 3, "workers": 3, "replicas": 2}  # defaults of its own


@main.command(short_help="run seeded clusters with faults in virtual time")
@option("--seed", type=int, default=0, help="first seed")
@option("--seeds", type=click.IntRange(1), default=1, help="number of seeds")
@option("--jobs", type=click.IntRange(1), help="processes; one for each core if not given")
@option("--trace", is_flag=True, help="print the conversation of each seed")
@option(
    "--faults",
    metavar="FAULT,...",
    default="",
    help="schedule of faults to inject in turn, as for `shoal chaos`: kill-server,stop-worker-1@4 "
    "(at clock 4); faults drawn from each seed if not given",
)
@as_json
def simulate(
    seed: int, seeds: int, jobs: int | None, trace: bool, faults: str, as_json: bool
) -> None:
    """Run seeded clusters with faults in virtual time, with every checker watching."""
    from shoal.apps.simulate import run_seeds

    console = Console(stderr=as_json)
    schedule = faults.split(",") if faults else ()
    report = run_seeds(seed, seeds, jobs or os.cpu_count() or 1, trace, console, schedule)
    if as_json:
        click.echo(json.dumps(report))
    if report["violations"]:
        sys.exit(EXIT_FAILED)


@main.command(short_help="inject faults into a job, and check that nothing is lost", cleans=True)
@click.argument("job", metavar="DATA|JOB.toml", required=False)
@option(
    "--kills",
    type=click.IntRange(1),
    default=10,
    section="Faults",
    help="number of faults to inject, whatever their kind; not used if each fault names a step",
)
@option(
    "--faults",
    metavar="FAULT,...",
    default="kill-server,kill-worker,kill-scheduler",
    section="Faults",
    help="faults to inject in turn: kill, exit, stop, restart, fill, slow or partition; then "
    "a role; if wanted a rank, a step and a duration, as in stop-worker-1@40:12s; or random, drawn "
    "from --seed, a tenth of them longer than the failure timeout",
)
@option(
    "--early",
    is_flag=True,
    section="Faults",
    help="inject the next fault before all rows have all their replicas again",
)
@options_of(JobSpec, leave_out=("layers", "on_worker_loss"), **CHAOS)
@trusts
@as_json
@tls_options
def chaos(
    job: str | None,
    kills: int,
    faults: str,
    early: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train twice: undisturbed, and while faults are injected into the processes, one at a time.

    A fault kills a process (SIGKILL), has it end with an error (exit), stops it for a second
    (SIGSTOP), ends it in order (restart: SIGTERM), or leaves its disk no room for two seconds
    (fill). As root it may also slow or cut the link of a process for two seconds; each
    process is in a network namespace of its own then. One that lasts may have another duration:
    after the failure timeout its process is declared dead, and it comes back after that.

    Every worker also pushes 1 to keys of its own, and logs which pushes it has sent and which were
    acknowledged; a prober pushes to all servers all the time. The report says which updates were
    lost or applied twice, and how long pushes were unavailable. The command fails if an update was
    lost, or a fault could not be injected.

    \b
    shoal chaos digits --kills 6
    shoal chaos mnist --kills 50 --strategy ssp --staleness 2
    shoal chaos digits --faults kill-server,stop-server,stop-server:12s
    shoal chaos digits --faults kill-server-1@20,restart-server@40,kill-worker-0@60
    sudo shoal chaos digits --faults slow-server,partition-server,partition-worker
    """
    from shoal.apps.chaos.command import UNLAWFUL, run_chaos, show_report
    from shoal.data.places import search_path

    spec = from_mapping({**CHAOS, **job_values(job, given())})
    folders = search_path(Path(spec.data_dir) if spec.data_dir else None, os.environ)
    console = Console(stderr=as_json)
    with ended_by_signals():
        report = run_chaos(spec, kills, faults.split(","), folders, console, early)
    tell(as_json, report, show_report)
    if any(report.get(each) for each in (*UNLAWFUL, "missing")):
        sys.exit(EXIT_FAILED)


@main.command(short_help="show who waits for whom in a run")
@click.argument("run", metavar="RUN|ADDRESS")
@token_options
@as_json
def why(run: str, token: str, as_json: bool) -> None:
    """Ask the run in folder RUN, or whose scheduler is at ADDRESS, who waits for whom.

    Each line is a request or a barrier that waits: on which rows and clock, for whom, and since
    when. Below are the workers that the others had to wait for lately.

    \b
    shoal why shoal-runs/mnist-20260101-120000
    shoal why tcp://10.0.0.1:4000 --token ...
    """
    from shoal.apps.why import explain, show

    tell(as_json, explain(run, token), show)


@main.command(short_help="have a run write a checkpoint now")
@click.argument("run", metavar="RUN|ADDRESS")
@option(
    "--timeout-s",
    type=click.FloatRange(0),
    default=60.0,
    help="seconds to wait until the checkpoint is complete",
)
@token_options
@as_json
def checkpoint(run: str, timeout_s: float, token: str, as_json: bool) -> None:
    """Have the run in folder RUN, or whose scheduler is at ADDRESS, write a checkpoint now.

    Training continues: the checkpoint is taken at a clock (step) a few ahead, and the command waits
    until all of it is on the disk. The servers need a folder: that of the run, or --out where they
    were started by hand.

    \b
    shoal checkpoint shoal-runs/mnist-20260101-120000
    shoal train --resume shoal-runs/mnist-20260101-120000
    """
    from shoal.apps.checkpoint import save, show

    with Console(stderr=True).status("asks for a checkpoint") as status:
        found = save(run, token, timeout_s, status.update)
    tell(as_json, found, show)


@main.command(short_help="write a run's tables to files")
@click.argument("run", type=click.Path(file_okay=False))
@option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "text"]),
    default="safetensors",
    help="one .safetensors file, or a text file for each table",
)
@option("--out", default="", help="file, or folder of text files; in the run's folder if not given")
def export(run: str, form: str, out: str) -> None:
    """Write the tables of the run in folder RUN, sparse ones with their keys.

    For a model of `shoal train ctr` on CSV or Parquet, a CSV file beside them lists the column and
    the value of the keys.
    """
    from shoal.apps.export import export as export_run

    for path in export_run(Path(run), form, Path(out) if out else None):
        click.echo(path)


@main.command(short_help="predict with a model of `shoal train ctr`", cleans=True)
@click.argument("run", type=click.Path(file_okay=False))
@click.argument("file", type=click.Path())
@option("--out", default="", help="file for the predictions; standard output if not given")
@option(
    "--format",
    "form",
    type=click.Choice(get_args(Format)),
    default="auto",
    help="format of FILE: that of the run, or one with the same keys",
)
@option("--unlabelled", is_flag=True, help="lines have no label; found out of all but dummy")
@as_json
def predict(run: str, file: str, out: str, form: Format, unlabelled: bool, as_json: bool) -> None:
    """Predict the click probability of each row of FILE, one per line.

    RUN is the folder of a `shoal train ctr`, under way or ended. FILE is a file, a folder of files
    or a pattern, with the columns that the run was trained on; its rows need no label. Figures, of
    FILE's labels, go to standard error. With --json all is one object on standard output.

    \b
    shoal predict shoal-runs/ctr-lr-20260101-120000 test.libsvm > chances.txt
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from shoal.apps.ctr.predicting import predict as predict_rows

    console = Console(stderr=True)
    shown = SpinnerColumn(), TextColumn("{task.completed:,} rows predicted")
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="shoal-predict-") as folder:
        path = Path(out) if out else Path(folder) / "predictions.txt"
        with Progress(*shown, console=console, transient=True) as bar:
            done = partial(bar.advance, bar.add_task("", total=None))
            figures = predict_rows(Path(run), Path(file), path, form, unlabelled, done)
        if not out and not as_json:
            with path.open() as lines:
                shutil.copyfileobj(lines, sys.stdout)
        chances = {}
        if as_json and not out:
            chances["chances"] = [*map(float, path.read_text().split())]
    if as_json:
        click.echo(json.dumps({"figures": figures, "out": out, **chances}))
    else:
        known = {name: value for name, value in figures.items() if value is not None}
        if known:
            console.print(", ".join(f"{name} {value:.4f}" for name, value in known.items()))


@main.command(short_help="words near a word, of a `shoal train word2vec`")
@click.argument("run", type=click.Path(file_okay=False))
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@option("--minus", multiple=True, metavar="WORD", help="word to subtract; may be repeated")
@option("--count", type=click.IntRange(1), default=10, help="nearest words")
@as_json
def similar(
    run: str, words: tuple[str, ...], minus: tuple[str, ...], count: int, as_json: bool
) -> None:
    """Print the words whose vectors are nearest to WORD, or to the sum of several.

    RUN is the folder of a `shoal train word2vec`, under way or ended.

    \b
    shoal similar shoal-runs/word2vec-skipgram-20260101-120000 king
    shoal similar RUN king woman --minus man
    """
    from shoal.apps.word2vec.vectors import Vectors

    found = Vectors.load(run).similar(*words, minus=minus, count=count)
    if as_json:
        click.echo(json.dumps([{"word": word, "cosine": cosine} for word, cosine in found]))
        return
    table = Table("word", "cosine", box=None)
    for word, cosine in found:
        table.add_row(word, f"{cosine:.4f}")
    Console().print(table)


@main.command(short_help="measure Shoal beside its ceilings")
@click.argument("suite", type=click.Choice(list(SUITES)))
@option(
    "--rounds",
    type=click.IntRange(1),
    help="batches of measurements; 25 if not given, 7 for train, 3 for word2vec and ctr",
)
@option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    help="servers that have a copy of each row; dense, moving",
)
@option(
    "--transport",
    type=click.Choice(["unix", "tcp", "tls"]),
    help="what wire and dense measure; unix and tcp if not given; tls needs no --tls",
)
@option("--link", default="", help="codecs: which of them pay on such a link, as 100Mbit or local")
@option("--model", default="", help="with --link: the model; that of the data if not given")
@option("--data", default="", help="with --link: the data set; cifar10 if found, else digits")
@option("--plot", default="", help="file for a picture of the rows: .png, .svg or .pdf")
@as_json
@tls_options
def bench(
    suite: str,
    as_json: bool,
    rounds: int | None,
    replicas: int,
    transport: str | None,
    link: str,
    model: str,
    data: str,
    plot: str,
) -> None:
    """Measure Shoal beside its ceilings, in one run.

    \b
    wire       small and large exchanges beside a bare socket
    dense      whole tables of 1 and 64 MiB beside memory and sockets
    sparse     rows by key beside the bare kernels in one process
    train      steps of two workers beside torch's DDP over gloo
    allreduce  sums of two processes beside gloo's
    word2vec   skip-gram beside gensim (pip install 'shoal[bench]'); on the text of SHOAL_DATA
    moving     what a server that joins, and one that leaves, cost those who push
    stragglers workers that are slow by turns, and one that always is
    ctr        logistic regression and its kin beside scikit-learn; on the rows of SHOAL_DATA
    codecs     64 MiB encoded and decoded by one thread, beside a copy and operations of torch;
               with --link the samples a second of a model with each of them, in simulated time
    """
    from shoal.apps.bench.command import run_suite, show_rows
    from shoal.apps.bench.plot import plot_rows
    from shoal.data.places import search_path

    if plot:
        require("matplotlib", "--plot")  # not after the measurement
    console = Console(stderr=as_json)
    if (model or data) and not link:
        raise UsageError("--model and --data are for --link, such as --link 100Mbit")
    on_link = {"link": link, "model": model, "data": data} if link else None
    dirs = search_path(None, os.environ)
    report = run_suite(suite, rounds, console, dirs, replicas, transport, on_link)
    show_rows(console, report)
    if advice := report.get("advice"):
        console.print(f"pays on {link}: {advice}", highlight=False)
    if plot:
        plot_rows(report, Path(plot))
    if as_json:
        click.echo(json.dumps(report))


@main.command("list", short_help="list strategies, access methods, data sets or codecs")
@click.argument("what", type=click.Choice(["strategies", "tables", "data", "codecs"]))
@click.argument("name", default="")
@as_json
def list_(what: str, name: str, as_json: bool) -> None:
    """List what can be named, with options and defaults; or one of it, by NAME.

    \b
    shoal list strategies diloco
    shoal list strategies mine.py:Mine
    shoal list codecs
    """
    from shoal.apps.listing import records_of, rows_of

    if as_json:
        click.echo(json.dumps({what: records_of(what, name)}))
        return
    columns, rows = rows_of(what, name)
    table = Table(*columns, box=None, padding=(0, 2), header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
