"""`shoal run`, and the roles of a cluster on several machines."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from shoal.apps.script_job import ScriptRun, continued_script
from shoal.cli.group import as_json, ended_by_signals, given, main, options_of, plain, trusts
from shoal.cli.ranks import is_led, ranked
from shoal.engines.options import SchedulerRole, ServerRole, WorkerRole
from shoal.runs.job_file import converted

if TYPE_CHECKING:
    from shoal.engines.launchers.ps_lite import Part

_file = click.Path(exists=True, dir_okay=False)
_script = click.argument("script", type=_file)
_args = click.argument("args", nargs=-1, type=click.UNPROCESSED)
_PASSES_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@main.command(
    context_settings=_PASSES_ON, short_help="run your own script on a cluster here", cleans=True
)
@options_of(ScriptRun)
@ranked(plays_parts=True)
@trusts
@as_json
@click.argument("script", type=_file, required=False)
@_args
def run(
    script: str | None,
    args: tuple[str, ...],
    ranks: dict[str, Any],
    part: Part | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run your own training script as the workers: `shoal run --workers 4 train.py --lr 0.1`.

    In the script, `shoal.init()` joins the cluster. Servers import the script too where a table
    names an access method or a handler that they do not know: what trains has to be under
    `if __name__ == "__main__":` then.

    A script has a loop of its own, so that some options need its help. With --on-worker-loss
    replace and --slow-workers backup a worker's script begins again: its loop has to begin at
    `context.client.clock`, or to take its batches from `shoal.leases`. With `shoal.leases`,
    --on-worker-loss drop has the others do the batches of a failed worker.

    --strategy, --set and --staleness are used by each shoal.Optimizer for which the script names no
    strategy, or this one: what the script says of its optimizer goes before them. Batches are the
    script's own. What the script records with `shoal.log` is drawn by `shoal report`.

    With ps-lite's variables (DMLC_ROLE and others) this is one process of a cluster, the scheduler,
    a server or a worker that runs SCRIPT. Options that none of these has are refused.

    --resume continues a run: with its script and its options, but for those that are given again.

    \b
    shoal run --workers 4 --strategy diloco --set tau=20 train.py --lr 0.1
    shoal run --resume shoal-runs/train-20261122-160000 --workers 2
    """
    from shoal.apps.script import ScriptApplication, show_summary
    from shoal.runs.run import run_here

    if part is not None:
        _play(part, script, args)
        return
    asked = plain(given(), ScriptRun)
    if "resume" in asked:
        command = [script, *args] if script else []
        says = partial(click.echo, err=True)
        path, words, how = continued_script(command, asked, says)
    elif script:
        path, words, how = Path(script), [*args], converted(asked, ScriptRun)
    else:
        raise click.UsageError("Missing argument 'SCRIPT'.")
    with ended_by_signals():
        summary = run_here(ScriptApplication(path, words, how), **ranks)
    if is_led(ranks):
        return
    if as_json:
        click.echo(json.dumps(summary))
    else:
        show_summary(Console(stderr=True), summary)


def _play(part: Part, script: str | None, args: tuple[str, ...]) -> None:
    """Be this process's part in a cluster that ps-lite's variables describe."""
    from shoal.apps.ps_lite import become

    flags = {name: value for name, value in given().items() if name not in ("script", "args")}
    asked = {**flags, **plain(flags, ScriptRun)}

    if script is None:
        raise click.UsageError("Missing argument 'SCRIPT'.")
    for name in part.unknown:
        click.echo(f"warning: {name} has no effect: Shoal knows no such variable", err=True)
    become(part, script, list(args), asked, os.environ.get("SHOAL_TOKEN", ""))


@main.command(short_help="be the scheduler of a cluster on several machines")
@options_of(SchedulerRole, required=("workers", "servers"))
@trusts
def scheduler(**options: Any) -> None:
    """Be the scheduler of a cluster on several machines."""
    from shoal.apps.roles import become_scheduler

    become_scheduler(converted(options, SchedulerRole))


@main.command(short_help="be a server of a cluster on several machines")
@options_of(ServerRole, required=("scheduler",))
@trusts
def server(**options: Any) -> None:
    """Be a server of a cluster on several machines."""
    from shoal.apps.roles import become_server

    become_server(converted(options, ServerRole))


@main.command(context_settings=_PASSES_ON, short_help="be a worker that runs your script")
@options_of(WorkerRole, required=("scheduler",))
@trusts
@_script
@_args
def worker(script: str, args: tuple[str, ...], **options: Any) -> None:
    """Be a worker of a cluster on several machines: runs SCRIPT, which calls `shoal.init()`.

    SCRIPT may be the file of a training job, as for `shoal train`: then this is the worker --rank
    of that job.

    \b
    shoal worker --scheduler tcp://10.0.0.1:4000 train.py --lr 0.1
    shoal worker --scheduler tcp://10.0.0.1:4000 --rank 1 job.toml
    """
    role = converted(plain(options, WorkerRole), WorkerRole)
    if not script.endswith(".toml"):
        from shoal.apps.script import become_worker

        become_worker(script, list(args), role)
        return
    from shoal.apps.train.by_hand import become_job_worker

    if args:
        raise click.UsageError(f"{script} is the file of a job, which takes no arguments")
    folder, result = become_job_worker(Path(script), role, os.environ)
    click.echo(f"accuracy {result['accuracy']:.4f}, loss {result['loss']:.4f}")
    click.echo(f"run: {folder.path}")
