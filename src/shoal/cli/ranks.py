"""The options of commands that may be ranks of a launcher: torchrun, mpirun or srun."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from shoal.cli.group import given, option, tls_options
from shoal.engines.launchers.world import NAMES

WORLD = "shoal.world"  # the world that says how many workers there are, in a context's `meta`


def ranked(plays_parts: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare --launcher and --rendezvous; the command gets `ranks`, the arguments of `run_here`.

    In a world of ranks, --workers is their number if it is not given.

    plays_parts:  whether the command gets `part` as well: what ps-lite's variables say, or None
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @option(
            "--launcher",
            section="Cluster",
            type=click.Choice(NAMES),
            default="auto",
            envvar="SHOAL_LAUNCHER",
            help="what has started this process as one of several ranks, each of which is a worker "
            "of one run: torchrun, mpi (mpirun) or slurm (srun); none: a run of its own",
        )
        @option(
            "--rendezvous",
            section="Network",
            default="",
            metavar="HOST:PORT",
            envvar="SHOAL_RENDEZVOUS",
            help="where ranks on several hosts meet: a free port of rank 0's host; torchrun and "
            "srun say it themselves",
        )
        @tls_options
        @wraps(command)
        def decorated(*args: Any, launcher: str, rendezvous: str, **options: Any) -> Any:
            from shoal.runs.ranks import part_here, telling_ranks, world_here

            context = click.get_current_context()
            del context.params["launcher"], context.params["rendezvous"]
            if plays_parts:
                options["part"] = part_here(launcher)
                if options["part"] is not None and rendezvous:
                    raise click.UsageError("--rendezvous is for ranks, not for ps-lite's roles")
            world = world_here(launcher) if not options.get("part") else None
            if world is not None and "workers" not in given():
                context.params["workers"] = options["workers"] = world.size
                context.set_parameter_source("workers", click.core.ParameterSource.ENVIRONMENT)
                context.meta[WORLD] = world
            ranks = {"world": world, "rendezvous": rendezvous}
            with telling_ranks(world, rendezvous):
                return command(*args, ranks=ranks, **options)

        return decorated

    return decorate


def check_workers(workers: int | None) -> None:
    """Refuse the number of workers of a job file that is not the number of ranks.

    Raises:
        InvalidValue: they differ
    """
    world = click.get_current_context().meta.get(WORLD)
    if world is not None and workers is not None:
        world.check_workers(workers)


def is_led(ranks: dict[str, Any]) -> bool:
    """Return whether another rank tells the result of this run."""
    world = ranks["world"]
    return world is not None and world.rank > 0
