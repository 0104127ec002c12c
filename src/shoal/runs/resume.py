"""Resuming a run: the checkpoint, its tables, and the command to type."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from shoal.engines.local import LocalEngine
from shoal.engines.options import words_for
from shoal.engines.script_options import Resumed
from shoal.errors import DataMissing, InvalidValue, ProcessDied, RangeLost, UsageError
from shoal.factories import uninterrupted
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.runs.job_file import load_run_job
from shoal.runs.options import RunOptions
from shoal.runs.trust import check_run
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.files import damaged, make_folder
from shoal.storage.lease_log import read_lease_log
from shoal.storage.run_folder import RunFolder
from shoal.storage.shard_files import SavedTables

log = logging.getLogger("shoal")


def join_run(
    engine: LocalEngine,
    run: RunOptions,
    command: str,
    words: str = "",
    tick: Callable[[], None] = lambda: None,
    start_clock: int = 0,
) -> None:
    """Wait for a run's processes; its options say which of them may be lost.

    At the end, write the last checkpoint of a run that writes them, or say that it has none. When
    rows or a process are lost, or on Ctrl-C, end all processes, and say how to resume.

    command:      the command that resumes such runs
    words:        the options with which the command continues the earlier run again, if this run
                  has no checkpoint yet
    tick:         the function that is called again and again, for progress displays
    start_clock:  the clock of the checkpoint that the run continues from
    """
    folder = engine.folder
    try:
        engine.join(tick, policy=run.loss_policy)
        save_end(run, folder, start_clock)
        if said := without_checkpoint(run, folder):
            log.warning("%s", said)
    except RangeLost as lost:
        engine.stop()
        hint = "a run with --checkpoint-every can be resumed"
        if run.replicas == 1:
            hint = f"with --replicas 2 a run survives the loss of a server, and {hint}"
        hint = _how_to_resume(folder, command, run, words) or hint
        raise RangeLost(f"{lost.message}; {hint}") from None
    except ProcessDied as died:
        engine.stop()
        hint = _how_to_resume(folder, command, run, words)
        raise ProcessDied(f"{died.message}; {hint}" if hint else died.message) from None
    except KeyboardInterrupt as interrupt:
        engine.stop()
        hint = _how_to_resume(folder, command, run, words)
        raise type(interrupt)(*interrupt.args, *filter(None, [hint])) from None


def _how_to_resume(folder: RunFolder, command: str, run: RunOptions, words: str) -> str:
    """Return how to resume a run, or else the run that it continues; "" without a checkpoint.

    The options of a run are in its folder. The command itself checks whether the checkpoint is
    damaged.
    """
    at = f"--resume-at {run.resume_at} " if run.resume_at >= 0 else ""
    for path, more in ((str(folder.path), ""), (run.resume, at + words)):
        workers = run.workers if run.keeps_states else 0
        if path and Checkpoints(RunFolder(Path(path)).checkpoints, workers).complete():
            how = f"shoal {command} --resume {shlex.quote(path)} {more}"
            return f"resume from the last checkpoint: {how.rstrip()}"
    return ""


def words_of_change(now: RunOptions, *before: RunOptions) -> list[str]:
    """Return the command-line words of the options that differ from those of any run `before`.

    The options that name the continued run are left out, and a job's data and layers, which have no
    flag.

    >>> words_of_change(RunOptions(workers=4, replicas=1), RunOptions(workers=2))
    ['--workers', '4']
    """
    fields = [
        name
        for name in now.__struct_fields__
        if name not in ("resume", "resume_at", "data", "layers")
        and any(getattr(now, name) != getattr(each, name) for each in before)
    ]
    return words_for(now, fields)


def resumed_at(resume: str, resume_at: int = -1, trust: bool = False, states: bool = False) -> int:
    """Return the clock of the checkpoint that a run continues from; 0 for a new run.

    trust:   whether to continue from the files of another user, too
    states:  whether the run needs the state files of the workers of the earlier run

    Raises:
        NotTrusted: another user has left the earlier run, or could have changed it
        DataMissing, DataCorrupt: there is no checkpoint, or it is damaged
        UnknownFormat: another version of Shoal has written the earlier run
    """
    if not resume:
        if resume_at >= 0:
            raise InvalidValue("--resume-at chooses a checkpoint of a run: add --resume RUN")
        return 0
    if not Path(resume).is_dir():
        raise DataMissing(f"{resume} is not the folder of a run: there is no such folder")
    check_run(Path(resume), trust)
    workers = int(load_run_job(Path(resume)).get("workers", 0)) if states else 0
    return Checkpoints(RunFolder(Path(resume)).checkpoints, workers).choose(resume_at)


def save_end(run: RunOptions, folder: RunFolder, start_clock: int) -> None:
    """Write a checkpoint of the end of a run that writes checkpoints, at its workers' last clock.

    A script's workers leave no clock: such a run has the checkpoints that it reached.
    """
    if not run.saves and not start_clock:
        return
    try:
        results = folder.results(run.workers, ("clock",))
    except DataMissing:
        return
    clock = max(each["clock"] for each in results)
    if start_clock and clock == start_clock:
        log.warning(
            "nothing was left to train: %s had done all of it; give more epochs, or an earlier "
            "checkpoint with --resume-at",
            run.resume,
        )
    checkpoints = Checkpoints(folder.checkpoints)
    if not run.saves:
        return
    if any(each.get("between_exchanges") for each in results):
        log.warning("the run has ended between two exchanges: its end is no checkpoint")
        return
    try:
        if run.uses_servers and clock not in checkpoints.complete():
            with uninterrupted():
                from shoal.storage.shards import SavedShards

            checkpoints.add(clock, SavedShards(folder.shards))
        for rank in range(run.workers):
            with suppress(FileNotFoundError):  # workers of some applications have no state
                name = f"worker-{rank}.safetensors"
                path = checkpoints.path(clock) / name
                make_folder(path.parent)
                folder.state(rank).replace(path)
        if run.keep_checkpoints:
            checkpoints.prune(run.keep_checkpoints)
    except (OSError, ValueError, SafetensorError, UsageError) as error:
        log.warning("the last checkpoint, %d, could not be written: %s", clock, error)


def without_checkpoint(run: RunOptions, folder: RunFolder) -> str:
    """Return a warning for a run that was to write checkpoints and has none; "" for another run."""
    if not run.saves or Checkpoints(folder.checkpoints).complete():
        return ""
    every = run.checkpoint_every or f"{run.checkpoint_every_s:g} s"
    option = "--checkpoint-every" if run.checkpoint_every else "--checkpoint-every-s"
    return (
        f"no checkpoint was written: the run was over before the first was due ({option} {every})"
    )


def epochs_of(resume: str) -> int:
    """Return the epochs that a run has trained, or was to train; no worker has done more.

    Raises:
        DataCorrupt: the run's result or its job is not as it was written
    """
    run = Path(resume)
    epochs = RunFolder(run).result(0).get("epochs") or load_run_job(run).get("epochs")
    if not isinstance(epochs, int) or epochs < 1:
        raise damaged(run, f"epochs are {epochs!r}")
    return epochs


def ledger_of(
    resume: str, start_clock: int, epochs: int = 0, needed: bool = False
) -> LedgerRecord | None:
    """Return the lease ledger as of a checkpoint; None if its run had no leases.

    epochs:  the epochs of the run that continues, if they differ; 0 for the same
    needed:  whether the run that continues has leases, and cannot do without a ledger

    Raises:
        InvalidValue: there is no ledger where one is needed
    """
    leases = RunFolder(Path(resume)).leases
    if not start_clock:
        return None
    record = read_lease_log(leases).as_of(start_clock, epochs) if leases.exists() else None
    if record is not None and record.batches:
        return record
    if needed:
        raise InvalidValue(
            f"{resume} was trained without leases ({leases} has none): resume it without "
            "--on-worker-loss reassign"
        )
    return None


def begun_with(resume: str, start_clock: int) -> str:
    """Return the folder of the checkpoint at clock `start_clock`; "" at clock 0."""
    return str(RunFolder(Path(resume)).checkpoint(start_clock).resolve()) if start_clock else ""


def tables_of(resume: str, start_clock: int) -> list[str]:
    """Return the names of the tables that a checkpoint has; none at clock 0."""
    if not start_clock:
        return []
    return list(SavedTables(Path(begun_with(resume, start_clock))).specs)


def environment(
    resume: str, start_clock: int, steps: tuple[tuple[int, int], ...] = ()
) -> dict[str, str]:
    """Return the variables that tell `shoal.init()` which checkpoint the run continues from.

    steps:  the steps before it, as `Context.steps_before`
    """
    return Resumed(start_clock, tuple(tables_of(resume, start_clock)), steps).variables
