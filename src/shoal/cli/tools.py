"""`shoal simulate`, `bench` and `list`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from shoal.cli.group import EXIT_FAILED, ended_by_signals, main, options_of
from shoal.cli.training import job_values
from shoal.jobs.spec import JobSpec, from_mapping

# ---------------------------------------------------------------------------- simulate


@main.command()
@click.option("--seed", type=int, default=0, show_default=True, help="the first seed")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=None, help="processes  [one a core]")
@click.option("--trace", is_flag=True, help="print the conversation of each seed")
@click.option(
    "--menu",
    default="",
    help="what goes wrong, by turns, as for `shoal chaos`: kill-server,stop-worker-1@4 (a step is "
    "a clock)  [what each seed draws]",
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
def simulate(
    seed: int, seeds: int, jobs: int | None, trace: bool, menu: str, as_json: bool
) -> None:
    """Run seeded clusters with faults in virtual time, with every checker watching."""
    from shoal.apps.simulate import run_seeds

    console = Console(stderr=as_json)
    report = run_seeds(
        seed, seeds, jobs or os.cpu_count() or 1, trace, console, menu.split(",") if menu else ()
    )
    if as_json:
        click.echo(json.dumps(report))
    if report["violations"]:
        sys.exit(EXIT_FAILED)


@main.command(short_help="kill a job's processes, and see that nothing is lost")
@click.argument("job", metavar="DATA|JOB.toml", required=False)
@click.option("--kills", "faults", type=click.IntRange(1), default=10, show_default=True)
@click.option(
    "--menu",
    default="kill-server,kill-worker,kill-scheduler",
    show_default=True,
    help="what is done, by turns: kill, stop, restart, slow or partition, and a role; perhaps a "
    "rank, and a step: stop-worker-1@40. Or random: drawn from --seed",
)
@click.option("--early", is_flag=True, help="strike before rows have all their replicas again")
@options_of(JobSpec, leave_out=("layers", "data", "on_worker_loss"))
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
def chaos(
    job: str | None, faults: int, menu: str, early: bool, as_json: bool, **flags: Any
) -> None:
    """Train twice: undisturbed, and while processes are killed with SIGKILL, one after the other.

    They may also be stopped for a second, told to end (SIGTERM), and, as root, have links that are
    slow or cut for two seconds: then each is in a network namespace of its own.

    Every worker also pushes 1 to keys of its own, and writes down what it sends and what is
    acknowledged; a prober pushes to all servers all the time. At the end: what was lost, what was
    counted twice, and how long nobody could push.

    \b
    shoal chaos digits --kills 6
    shoal chaos mnist --kills 50 --strategy ssp --staleness 2
    shoal chaos digits --menu kill-server,stop-server
    shoal chaos digits --menu kill-server-1@20,restart-server@40,kill-worker-0@60
    sudo shoal chaos digits --menu slow-server,partition-server,partition-worker
    """
    from shoal.apps.chaos.command import UNLAWFUL, run_chaos, show_report
    from shoal.data.places import search_path

    values: dict[str, Any] = {"servers": 3, "workers": 3, "replicas": 2}
    values.update(job_values(job, flags))
    spec = from_mapping(values)
    folders = search_path(Path(spec.data_dir) if spec.data_dir else None, os.environ)
    console = Console(stderr=as_json)
    with ended_by_signals():
        report = run_chaos(spec, faults, menu.split(","), folders, console, early)
    if as_json:
        click.echo(json.dumps(report))
    else:
        show_report(console, report)
    if any(report.get(each) for each in UNLAWFUL):
        sys.exit(EXIT_FAILED)


@main.command(short_help="who waits for whom in a run, and since when")
@click.argument("run", metavar="RUN|ADDRESS")
@click.option("--token", envvar="SHOAL_TOKEN", default="", help="shared secret; or SHOAL_TOKEN")
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
def why(run: str, token: str, as_json: bool) -> None:
    """Ask the run in folder RUN, or whose scheduler is at ADDRESS, who waits for whom.

    Each line is a request or a barrier that waits: on which rows and clock, for whom, and since
    when. Below are the workers that the others had to wait for lately.

    \b
    shoal why shoal-runs/mnist-20260101-120000
    shoal why tcp://10.0.0.1:4000 --token ...
    """
    from shoal.apps.why import explain, show

    found = explain(run, token)
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(Console(), found)


# ---------------------------------------------------------------------------- bench, list


@main.command()
@click.argument("run", type=click.Path(file_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "text"]),
    default="safetensors",
    show_default=True,
    help="one file, or a text file per table",
)
@click.option("--out", default="", help="the file, or the folder of text files")
def export(run: str, form: str, out: str) -> None:
    """Write the tables of the run in folder RUN, sparse ones with their keys."""
    from shoal.apps.export import export as export_run

    for path in export_run(Path(run), form, Path(out) if out else None):
        click.echo(path)


@main.command()
@click.argument("run", type=click.Path(file_okay=False))
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--out", default="", help="where predictions go  [standard output]")
@click.option("--servers", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
def predict(run: str, file: str, out: str, servers: int, as_json: bool) -> None:
    """Write the chance of label 1 of each row of FILE, a line each.

    RUN is the folder of a `shoal train ctr`. Figures, of FILE's labels, go to standard error, or
    to standard output with --json.

    \b
    shoal predict shoal-runs/ctr-lr-20260101-120000 test.libsvm > chances.txt
    """
    from shoal.apps.ctr.predicting import predict as predict_rows

    console = Console(stderr=True)
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="shoal-predict-") as folder:
        path = Path(out) if out else Path(folder) / "predictions.txt"
        with console.status("predicting"):
            figures = predict_rows(Path(run), Path(file), path, servers)
        if not out:
            with path.open() as lines:
                shutil.copyfileobj(lines, sys.stdout)
    if as_json:
        click.echo(json.dumps({"figures": figures, "out": out}))
    else:
        known = {name: value for name, value in figures.items() if value is not None}
        console.print(", ".join(f"{name} {value:.4f}" for name, value in known.items()))


SUITES = [
    "wire",
    "dense",
    "sparse",
    "train",
    "allreduce",
    "word2vec",
    "ctr",
    "moving",
    "stragglers",
]


@main.command()
@click.argument("suite", type=click.Choice(SUITES))
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
@click.option(
    "--rounds", type=click.IntRange(1), help="batches  [25; 7 of train, 3 of word2vec and ctr]"
)
@click.option("--replicas", type=click.IntRange(1), default=1, help="dense, moving: of each row")
@click.option("--plot", default="", help="a picture of the rows: FILE.png, .svg or .pdf")
def bench(suite: str, as_json: bool, rounds: int | None, replicas: int, plot: str) -> None:
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
    """
    from shoal.apps.bench.command import run_suite, show_rows
    from shoal.apps.bench.plot import plot_rows
    from shoal.data.places import search_path

    console = Console(stderr=as_json)
    report = run_suite(suite, rounds, console, search_path(None, os.environ), replicas)
    show_rows(console, report)
    if plot:
        plot_rows(report, Path(plot))
    if as_json:
        click.echo(json.dumps(report))


@main.command("list")
@click.argument("what", type=click.Choice(["strategies", "tables", "data"]))
def list_(what: str) -> None:
    """What can be named, with options and defaults."""
    from shoal.apps.listing import rows_of

    columns, rows = rows_of(what)
    table = Table(*columns, box=None, padding=(0, 2), header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
