"""`shoal run`: a user's own script as the workers of a run."""

from __future__ import annotations

import os
import runpy
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.train.command import cluster_tasks
from shoal.apps.train.resume import begun_with, environment, resumable, resumed_at, tables_of
from shoal.engines.base import Task
from shoal.engines.local import LocalEngine, spare_processes
from shoal.errors import InvalidValue, UsageError
from shoal.protocol.scheduler.journal import SLOW_SHARE
from shoal.protocol.scheduler.leases import LedgerRecord, as_of
from shoal.reports.events import read_events
from shoal.storage.run_folder import RunFolder


@dataclass(frozen=True)
class ScriptRun:
    """How a script is run: the flags of `shoal run`, by their names.

    imports:         modules of the user's, which define access methods
    slow_workers:    `wait`, or `drop`: the others go on without one that they wait for
    on_worker_loss:  `stop`, or `drop`: the others go on without one that is killed
    checkpoint_every, checkpoint_every_s:  clocks or seconds from one checkpoint to the next
    keep_checkpoints:  how many are kept, the last ones; 0 for all
    resume:          the folder of a run, whose checkpoint of clock `resume_at` (-1: the last) this
                     one goes on from
    """

    workers: int
    servers: int
    out: Path
    title: str = ""
    imports: Sequence[str] = ()
    replicas: int = 1
    slow_workers: str = "wait"
    on_worker_loss: str = "stop"
    checkpoint_every: int = 0
    checkpoint_every_s: float = 0.0
    keep_checkpoints: int = 0
    resume: str = ""
    resume_at: int = -1


def run_script(script: Path, args: list[str], how: ScriptRun) -> Path:
    """Run `script` on workers of its own with servers; returns the run's folder.

    Rank 0 writes to this terminal, the others to their logs.

    Raises:
        DataMissing, DataCorrupt: there is no checkpoint to go on from, or it is damaged
        ProcessDied, RangeLost: the run could not go on
    """
    if not how.servers and (how.checkpoint_every or how.checkpoint_every_s or how.resume):
        raise InvalidValue("checkpoints are the servers': add --servers 1 or more")
    passed = resumed_at(how.resume, how.resume_at)
    folder = RunFolder.create(how.out, how.title or script.stem)
    with LocalEngine(folder) as engine:
        for task in cluster_tasks(
            engine,
            how.servers,
            how.workers,
            "unix",
            time.time(),
            init=begun_with(how.resume, passed),
            save=False,
            replicas=how.replicas,
            slow_share=SLOW_SHARE[how.slow_workers],
            checkpoint_every=how.checkpoint_every,
            checkpoint_every_s=how.checkpoint_every_s,
            keep_checkpoints=how.keep_checkpoints,
            passed=passed,
            ledger=_ledger(how.resume, passed),
            imports=how.imports,
        ):
            engine.start(task)
        threads = max(1, (os.cpu_count() or 1) // how.workers)
        env = {"SHOAL_SCHEDULER": engine.address("scheduler"), "OMP_NUM_THREADS": str(threads)}
        env["SHOAL_TOKEN"] = ""  # of another cluster: this one's sockets are its user's alone
        env |= environment(how.resume, passed)
        names = [f"worker-{rank}" for rank in range(how.workers)]
        for rank, name in enumerate(names):
            engine.start(
                Task(
                    name,
                    "shoal.apps.script:worker_main",
                    {"script": str(script.resolve()), "args": args, "threads": threads},
                    env={**env, "SHOAL_RANK": str(rank)},
                    inherit_output=rank == 0,
                )
            )
        given_up = names if how.on_worker_loss == "drop" else ()
        with resumable(folder, "run", how.replicas, _words(script, args, how)):
            engine.join(spare=spare_processes(how.servers, how.replicas), given_up=given_up)
    return folder.path


def _words(script: Path, args: Sequence[str], how: ScriptRun) -> str:
    """What a command says that runs the same once more, from another checkpoint."""
    words = [word for each in how.imports for word in ("--import", each)]
    for each in fields(how):
        value = getattr(how, each.name)
        if value != each.default and each.name not in ("imports", "resume", "resume_at"):
            words += [f"--{each.name.replace('_', '-')}", str(value)]
    return shlex.join([*words, str(script), *args])


def _ledger(resume: str, passed: int) -> dict[str, Any] | None:
    """What was done when the checkpoint was taken, where the script has leased its data."""
    events = RunFolder(Path(resume)).events
    record = as_of(passed, read_events(events)) if passed and events.exists() else LedgerRecord()
    return msgspec.to_builtins(record) if record.batches else None


def worker_main(script: str, args: list[str], threads: int = 0) -> None:
    """Run a script as `python script args` would, in the run that the environment names."""
    from shoal.client.context import joined, joined_once
    from shoal.node.memory import keep_memory

    keep_memory()
    if threads:
        import torch

        torch.set_num_threads(threads)
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        context = joined()
        if context is not None and not (isinstance(error, SystemExit) and not error.code):
            context.client.abort(f"{type(error).__name__}: {error}"[:500])
            raise
        if not isinstance(error, SystemExit):
            raise
    if not joined_once():
        raise UsageError(f"{script} ended without calling shoal.init(), so it never joined the run")
    context = joined()
    if context is not None:  # else it has left the run by itself
        context.close()


def become_worker(script: str, args: list[str], begun: tuple[str, int], **who: Any) -> None:
    """`shoal worker`: this process joins a cluster and runs the script.

    begun:  the run that this one goes on with, and the clocks that are over; none: "" and 0
    who:    what `shoal.init` is told
    """
    from shoal.engines.joining import init

    context = init(**who)
    context.resumed_at, context.resumed_tables = begun[1], frozenset(tables_of(*begun))
    worker_main(str(Path(script).resolve()), args)
