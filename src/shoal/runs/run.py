"""The life of a run on this machine, the same for all applications."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.engines.base import Engine
from shoal.engines.launchers.world import World
from shoal.engines.named import engines
from shoal.engines.processes import Processes
from shoal.runs.application import Application, Spec
from shoal.runs.ending import join_run
from shoal.runs.options import check_collective
from shoal.runs.plan import tasks_of
from shoal.runs.ranks import RankedRun
from shoal.runs.resume import resumed_at
from shoal.storage.run_folder import RunFolder
from shoal.transport.credentials import credentials


def run_here(
    application: Application[Spec],
    console: Console | None = None,
    started_at: float | None = None,
    engine: Engine | None = None,
    world: World | None = None,
    rendezvous: str = "",
) -> dict[str, Any]:
    """Run an application here, from its checks to its summary, and return the summary.

    Args:
        application: what is run; its `spec` is completed.
        console: the console that shows progress; None for no progress.
        started_at: the `time.time()` at which the command began, for honest wall times.
        engine: the engine that has hosts for its processes; this machine, if not given.
        world: the ranks of a launcher, each of which is a worker; None if there are none.
        rendezvous: HOST:PORT at which they meet, if the launcher does not say.

    Returns:
        The summary.

    Raises:
        InvalidValue, UnknownName: options that contradict each other, or a wrong value.
        NotTrusted: another user has left the run that it continues.
        DataMissing, DataCorrupt: an input or a checkpoint is missing or damaged.
        ProcessDied, RangeLost: the run could not go on; the text says how to resume it.
        ShoalError: the error of a process of the run.
    """
    started_at = time.time() if started_at is None else started_at
    console = console or Console(quiet=True)
    begin = partial(begun, application, console, started_at)
    if world is None:
        check_collective(application.spec.collective)
    if application.spec.transport == "tls":
        credentials("")
    ranked = RankedRun(world, application, rendezvous) if world is not None else None
    if ranked is not None and not ranked.leads:
        return ranked.follow()
    if ranked is not None:
        folder, left = ranked.lead(begin, console, started_at)
    else:
        engine = engine or engines[application.spec.engine](application.spec.room)
        folder = begin()
        with Processes(folder, engine, application.spec.names) as processes:
            for task in tasks_of(application, processes, started_at):
                processes.start(task)
            with application.display(console, folder) as tick:
                how = application.command, application.resume_words()
                join_run(processes, application.spec, *how, tick, application.start.clock)
        left = processes.collector.left
    summary = application.summarise(folder, started_at)
    if left:
        summary["left_on_hosts"] = left
    folder.write_summary(summary)
    if ranked is not None:
        ranked.summarised(summary)
    return summary


def begun(application: Application[Spec], console: Console, started_at: float) -> RunFolder:
    """Check and prepare a run, and return its new folder."""
    application.check()
    spec = application.spec
    application.begin_at(resumed_at(spec.resume, spec.resume_at, spec.keeps_states))
    application.prepare(console)
    folder = RunFolder.create(Path(spec.out), spec.title or application.title, started_at)
    application.set_up(folder)
    folder.write_job(application.job())
    return folder
