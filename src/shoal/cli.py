"""The `shoal` command.

Only this file, the agent and `shoal.init()` read environment variables, and a flag always wins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from rich.console import Console
from rich.table import Table

from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import ShoalError, UsageError
from shoal.jobs.spec import JobSpec, converted, from_mapping, load_job

F = TypeVar("F", bound=Callable[..., Any])

EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


class Shoal(click.Group):
    """Turns typed errors into one readable message and an exit status.

    `train` and the name of an application is a command of its own.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        both = " ".join(args[:2])
        command = self.commands.get(both)
        if command is not None:
            return both, command, args[2:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _complain(error)
            ctx.exit(EXIT_USAGE)
        except ShoalError as error:
            _complain(error)
            ctx.exit(EXIT_FAILED)
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted: every process of the run has been ended")
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=Shoal, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal")
def main() -> None:
    """Train PyTorch models through a parameter server.

    Start with:  shoal train digits --workers 2 --servers 2
    """


def _complain(error: ShoalError) -> None:
    name = type(error).__name__
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"[bold red]{name}[/]: ", end="", markup=True
    )
    click.echo(str(error), err=True)


# ---------------------------------------------------------------------------- train


def _options_of(schema: type[Any], leave_out: tuple[str, ...]) -> Callable[[F], F]:
    """A flag for every field of a schema that a flag can carry, in the schema's order."""

    def decorate(command: F) -> F:
        return _with_options(command, schema, leave_out)

    return decorate


def _with_options(command: F, schema: type[Any], leave_out: tuple[str, ...]) -> F:
    hints = get_type_hints(schema, include_extras=True)
    defaults = schema()
    for name in reversed(schema.__struct_fields__):
        if name in leave_out:
            continue
        kind, meta = get_args(hints[name])
        default = getattr(defaults, name)
        flag = f"--{name.replace('_', '-')}"
        shown = str(default) if default != "" else ""
        options: dict[str, Any] = {"default": None, "help": meta.description}
        if name == "optimizer_options":
            flag, options["multiple"], options["metavar"] = "--optimizer-option", True, "NAME=VALUE"
        elif get_origin(kind) is not None:
            options["type"] = click.Choice(list(get_args(kind)))
        else:
            options["type"] = kind
        if shown and name != "optimizer_options":
            options["help"] += f"  [{shown}]"
        command = click.option(flag, name, **options)(command)
    return command


@main.command(short_help="train a model on this machine")
@click.argument("job", metavar="DATA|JOB.toml", required=False)
@_options_of(JobSpec, leave_out=("layers", "data"))
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
@click.option("--next-steps", is_flag=True, hidden=True)
def train(job: str | None, as_json: bool, next_steps: bool, **flags: Any) -> None:
    """Train on a data set by name (digits, mnist, cifar10, csv:PATH), or as JOB.toml says.

    Flags override the file. A scheduler, servers and workers start as processes of this machine;
    what they leave behind is in a folder under --out.

    \b
    shoal train digits --workers 2 --servers 2
    shoal train mnist --strategy ssp --staleness 2 --epochs 3
    shoal train csv:wine.csv.gz --model mlp --lr 0.05
    """
    from shoal.apps.places import search_path
    from shoal.apps.train import run_job
    from shoal.reports.events import load_run
    from shoal.reports.live import Live, show_summary
    from shoal.runtime.metrics import process_started_at

    started_at = process_started_at()
    values = load_job(Path(job)) if job and job.endswith(".toml") else {}
    if job and not job.endswith(".toml"):
        values["data"] = job
    values.update({name: v for name, v in flags.items() if v is not None and v != ()})
    if flags.get("optimizer_options"):
        values["optimizer_options"] = _pairs(flags["optimizer_options"])
    spec = from_mapping(values)
    explicit = Path(spec.data_dir) if spec.data_dir else None
    folders = search_path(explicit, os.environ)
    console = Console(stderr=as_json)
    with _ended_by_signals():
        summary = run_job(
            spec,
            folders,
            lambda folder: Live(console, folder.events, spec.workers, spec.epochs),
            started_at,
        )
    if not as_json:
        losses = load_run(summary["run_dir"]).steps.get(0, {}).get("loss", [])
        show_summary(console, summary, losses)
        if next_steps:
            _show_next_steps(summary)
    else:
        click.echo(json.dumps(summary))


@main.command("train ctr", short_help="train a model of clicks on sparse features")
@click.argument("train", metavar="[TRAIN]", required=False, default="")
@_options_of(CtrSpec, leave_out=("train",))
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
def train_ctr(as_json: bool, **flags: Any) -> None:
    """Train a model of clicks on rows of sparse features: TRAIN, or a sample made from the seed.

    The weights live on servers, in sparse tables: a key has one once it is seen.

    \b
    shoal train ctr
    shoal train ctr train.libsvm --test test.libsvm --l1 1 --epochs 3
    shoal train ctr criteo.txt.gz --model fm --hash-bits 24
    """
    from shoal.apps.ctr.command import run_ctr, show_summary
    from shoal.runtime.metrics import process_started_at

    started_at = process_started_at()
    spec = converted({name: v for name, v in flags.items() if v is not None}, CtrSpec)
    console = Console(stderr=as_json)
    with _ended_by_signals():
        summary = run_ctr(spec, console, started_at)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        show_summary(console, summary)


def _show_next_steps(summary: Mapping[str, Any]) -> None:
    run = summary["run_dir"]
    click.echo(
        f"""
Where to look:  {run}/  (summary.json, workers/*/eval.csv, logs/, model.safetensors)

Next:
  .venv/bin/shoal train digits --strategy ssp --staleness 2    another consistency
  .venv/bin/shoal simulate --seeds 20                          the same cluster, with faults
  .venv/bin/shoal bench wire                                   what the wire can do here"""
    )


def _pairs(given: tuple[str, ...]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for each in given:
        name, found, value = each.partition("=")
        if not found:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--optimizer-option")
        try:
            pairs[name] = json.loads(value)
        except ValueError:
            pairs[name] = value
    return pairs


@contextmanager
def _ended_by_signals() -> Any:
    """Let SIGTERM clean up as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---------------------------------------------------------------------------- run

_imports = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="a module or file that servers import: it defines access methods",
)


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--servers", type=click.IntRange(0), default=1, show_default=True)
@click.option("--out", default="shoal-runs", show_default=True, help="where run folders go")
@click.option("--title", default="", help="names the run's folder")
@_imports
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    workers: int,
    servers: int,
    out: str,
    title: str,
    imports: tuple[str, ...],
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run your own training script as the workers: `shoal run --workers 4 train.py --lr 0.1`.

    In the script, `shoal.init()` joins the cluster.
    """
    from shoal.apps.script import run_script
    from shoal.runtime.imports import importable

    found = [importable(each) for each in imports]
    with _ended_by_signals():
        folder = run_script(Path(script), list(args), workers, servers, Path(out), title, found)
    click.echo(f"run: {folder}", err=True)


# ---------------------------------------------------------------------------- roles

_token = click.option(
    "--token", envvar="SHOAL_TOKEN", default="", help="shared secret; or SHOAL_TOKEN"
)
_scheduler = click.option("--scheduler", required=True, help="its address, tcp://HOST:PORT")
_init_timeout = click.option(
    "--init-timeout", type=float, default=60.0, show_default=True, help="seconds to join within"
)


@main.command()
@click.option("--listen", required=True, help="tcp://HOST:PORT or unix:///PATH")
@click.option("--workers", type=click.IntRange(1), required=True)
@click.option("--servers", type=click.IntRange(0), required=True)
@click.option("--join-timeout", type=float, default=120.0, show_default=True, help="seconds")
@click.option("--state", default="", help="a file to restart from after a crash")
@_token
def scheduler(
    listen: str, workers: int, servers: int, join_timeout: float, state: str, token: str
) -> None:
    """Be the scheduler of a cluster on several machines."""
    from shoal.engines.roles import run_scheduler

    run_scheduler(listen, servers, workers, join_timeout, token, state)


@main.command()
@_scheduler
@click.option("--listen", default="", help="own address; found by itself where it is not given")
@click.option(
    "--advertise", default="", help="address that others use, where it differs; port 0: the own one"
)
@click.option("--interface", default="", help="network interface to listen on")
@click.option("--rank", type=int, default=-1, help="the rank wished for")
@_init_timeout
@_token
@_imports
def server(
    scheduler: str,
    listen: str,
    advertise: str,
    interface: str,
    rank: int,
    init_timeout: float,
    token: str,
    imports: tuple[str, ...],
) -> None:
    """Be a server of a cluster on several machines."""
    from shoal.engines.roles import own_address, run_server

    if not listen and scheduler.startswith("unix://"):
        listen = f"{scheduler.removesuffix('.sock')}-server-{os.getpid()}.sock"
    listen = listen or own_address(scheduler, interface)
    run_server(scheduler, listen, rank, advertise, init_timeout, token, imports=imports)


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_scheduler
@click.option("--rank", type=int, default=-1, help="the rank wished for")
@_init_timeout
@_token
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def worker(
    scheduler: str,
    rank: int,
    init_timeout: float,
    token: str,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Be a worker of a cluster on several machines: runs SCRIPT, which calls `shoal.init()`."""
    from shoal.apps.script import become_worker

    become_worker(scheduler, script, list(args), rank, init_timeout, token)


# ---------------------------------------------------------------------------- simulate


@main.command()
@click.option("--seed", type=int, default=0, show_default=True, help="the first seed")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=None, help="processes  [one a core]")
@click.option("--trace", is_flag=True, help="print the conversation of each seed")
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
def simulate(seed: int, seeds: int, jobs: int | None, trace: bool, as_json: bool) -> None:
    """Run seeded clusters with faults in virtual time, with every checker watching."""
    from shoal.apps.simulate import run_seeds

    console = Console(stderr=as_json)
    report = run_seeds(seed, seeds, jobs or os.cpu_count() or 1, trace, console)
    if as_json:
        click.echo(json.dumps(report))
    if report["violations"]:
        sys.exit(EXIT_FAILED)


# ---------------------------------------------------------------------------- bench, list


@main.command()
@click.argument("suite", type=click.Choice(["wire", "dense", "sparse", "train", "allreduce"]))
@click.option("--json", "as_json", is_flag=True, help="one JSON object as the last line")
@click.option("--rounds", type=click.IntRange(3), default=25, show_default=True, help="batches")
def bench(suite: str, as_json: bool, rounds: int) -> None:
    """Measure Shoal beside its ceilings, in one run.

    \b
    wire    small and large exchanges beside a bare socket
    dense   whole tables of 1 and 64 MiB beside memory and sockets
    sparse  rows by key beside the bare kernels in one process
    """
    from shoal.apps.bench.suites import run_suite, show_rows

    console = Console(stderr=as_json)
    report = run_suite(suite, rounds, console)
    show_rows(console, report)
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


if __name__ == "__main__":
    main()
