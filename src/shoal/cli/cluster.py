"""`shoal run`, and the roles of a cluster on several machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from shoal.cli.group import ended_by_signals, main

_imports = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="a module or file that servers import: it defines access methods",
)


_token = click.option(
    "--token", envvar="SHOAL_TOKEN", default="", help="shared secret; or SHOAL_TOKEN"
)
_scheduler = click.option("--scheduler", required=True, help="its address, tcp://HOST:PORT")
_replicas = click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="servers that have a copy of each row: one more than may die",
)
_slow_workers = click.option(
    "--slow-workers",
    type=click.Choice(["wait", "drop"]),
    default="wait",
    show_default=True,
    help="what becomes of one that the others wait for more than half of the time",
)
_checkpoint_every = click.option(
    "--checkpoint-every", type=click.IntRange(0), default=0, help="clocks between checkpoints"
)
_checkpoint_every_s = click.option(
    "--checkpoint-every-s",
    type=click.FloatRange(0),
    default=0.0,
    help="seconds between checkpoints",
)
_keep_checkpoints = click.option(
    "--keep-checkpoints",
    type=click.IntRange(0),
    default=0,
    help="how many checkpoints are kept, the last ones; 0 for all",
)
_resume = click.option(
    "--resume", default="", metavar="RUN", help="go on with the run in this folder"
)
_resume_at = click.option(
    "--resume-at",
    type=click.IntRange(-1),
    default=-1,
    help="from its checkpoint of this clock; the last one where it is not given",
)
_init_timeout = click.option(
    "--init-timeout", type=float, default=60.0, show_default=True, help="seconds to join within"
)


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--servers", type=click.IntRange(0), default=1, show_default=True)
@_replicas
@_slow_workers
@click.option(
    "--on-worker-loss",
    type=click.Choice(["stop", "drop"]),
    default="stop",
    show_default=True,
    help="where one is killed: end the run, or go on without it",
)
@_checkpoint_every
@_checkpoint_every_s
@_keep_checkpoints
@_resume
@_resume_at
@click.option("--out", default="shoal-runs", show_default=True, help="where run folders go")
@click.option("--title", default="", help="names the run's folder")
@_imports
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    out: str,
    imports: tuple[str, ...],
    script: str,
    args: tuple[str, ...],
    **how: Any,
) -> None:
    """Run your own training script as the workers: `shoal run --workers 4 train.py --lr 0.1`.

    In the script, `shoal.init()` joins the cluster.
    """
    from shoal.apps.script import ScriptRun, run_script
    from shoal.factories import importable

    found = [importable(each) for each in imports]
    asked = ScriptRun(out=Path(out), imports=found, **how)
    with ended_by_signals():
        folder = run_script(Path(script), list(args), asked)
    click.echo(f"run: {folder}", err=True)


@main.command()
@click.option("--listen", required=True, help="tcp://HOST:PORT or unix:///PATH")
@click.option("--workers", type=click.IntRange(1), required=True)
@click.option("--servers", type=click.IntRange(0), required=True)
@_replicas
@click.option("--elastic", is_flag=True, help="workers may come and go while the run goes on")
@_slow_workers
@click.option(
    "--silence-s",
    type=click.FloatRange(3.0),
    default=10.0,
    show_default=True,
    help="after which a member is taken for dead; longer for one whose heartbeats come late",
)
@click.option(
    "--alone-s",
    type=click.FloatRange(0.0),
    default=15.0,
    show_default=True,
    help="... and for a server that has rows which nobody else has",
)
@_checkpoint_every_s
@click.option("--join-timeout", type=float, default=120.0, show_default=True, help="seconds")
@click.option("--state", default="", help="a file to restart from after a crash")
@_token
def scheduler(
    listen: str,
    workers: int,
    servers: int,
    replicas: int,
    elastic: bool,
    slow_workers: str,
    silence_s: float,
    alone_s: float,
    checkpoint_every_s: float,
    join_timeout: float,
    state: str,
    token: str,
) -> None:
    """Be the scheduler of a cluster on several machines."""
    from shoal.engines.roles import run_scheduler
    from shoal.protocol.scheduler.journal import SLOW_SHARE

    run_scheduler(
        listen,
        servers,
        workers,
        join_timeout,
        token,
        state,
        replicas=replicas,
        elastic=elastic,
        slow_share=SLOW_SHARE[slow_workers],
        silence_s=silence_s,
        alone_s=alone_s,
        checkpoint_s=checkpoint_every_s,
    )


@main.command()
@_scheduler
@click.option("--listen", default="", help="own address; found by itself where it is not given")
@click.option(
    "--advertise", default="", help="address that others use, where it differs; port 0: the own one"
)
@click.option("--interface", default="", help="network interface to listen on")
@click.option("--rank", type=int, default=-1, help="the rank wished for")
@click.option(
    "--host-label",
    default="",
    metavar="NAME",
    help="what may die together with it, a host or a rack  [its host's name]",
)
@click.option(
    "--out",
    default="",
    help="where the run's folder goes, which gets checkpoints; all servers share it",
)
@_checkpoint_every
@_keep_checkpoints
@_resume
@_resume_at
@_init_timeout
@_token
@_imports
def server(
    scheduler: str,
    listen: str,
    advertise: str,
    interface: str,
    rank: int,
    host_label: str,
    out: str,
    checkpoint_every: int,
    keep_checkpoints: int,
    resume: str,
    resume_at: int,
    init_timeout: float,
    token: str,
    imports: tuple[str, ...],
) -> None:
    """Be a server of a cluster on several machines."""
    from shoal.apps.train.resume import begun_with, resumed_at
    from shoal.engines.roles import own_address, run_server

    if not listen and scheduler.startswith("unix://"):
        listen = f"{scheduler.removesuffix('.sock')}-server-{os.getpid()}.sock"
    listen = listen or own_address(scheduler, interface)
    if checkpoint_every and not out:
        raise click.UsageError("--checkpoint-every needs --out: a folder that all servers share")
    passed = resumed_at(resume, resume_at)
    run_server(
        scheduler,
        listen,
        rank,
        advertise,
        init_timeout,
        token,
        imports=imports,
        host=host_label,
        init=begun_with(resume, passed),
        out=out,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        passed=passed,
    )


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--scheduler", required=True, help="its address, tcp://HOST:PORT; or a run's folder, here"
)
@click.option("--rank", type=int, default=-1, help="the rank wished for")
@click.option(
    "--group", default="", help="attach to a run of others, with clocks and a ledger of one's own"
)
@click.option(
    "--group-size",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="workers that make the group complete",
)
@click.option(
    "--namespace",
    default=None,
    help="where its tables are: the group's name if not given; '' for the first group's",
)
@_resume
@_resume_at
@_init_timeout
@_token
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def worker(
    scheduler: str,
    script: str,
    args: tuple[str, ...],
    resume: str,
    resume_at: int,
    init_timeout: float,
    **who: Any,
) -> None:
    """Be a worker of a cluster on several machines: runs SCRIPT, which calls `shoal.init()`."""
    from shoal.apps.script import become_worker
    from shoal.apps.train.resume import resumed_at

    if who["group"] and resume:
        raise click.UsageError("--resume is the first group's: checkpoints have its tables alone")
    passed = resumed_at(resume, resume_at)
    begun = resume, passed
    become_worker(
        script, list(args), begun, scheduler=scheduler, init_timeout_s=init_timeout, **who
    )
