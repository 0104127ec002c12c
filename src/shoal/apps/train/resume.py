"""Resuming a run: the checkpoint, its tables, and the command to type."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from shoal.engines.local import LocalEngine
from shoal.engines.options import FaultTolerantRun, ResumableRun, words_for
from shoal.errors import DataMissing, InvalidValue, ProcessDied, RangeLost, UsageError
from shoal.factories import uninterrupted
from shoal.jobs.spec import JobSpec, from_mapping, load_run_job
from shoal.jobs.trust import check_run
from shoal.protocol.supervision.supervisor import loss_policy
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.files import damaged, make_folder
from shoal.storage.run_folder import RunFolder
from shoal.storage.shard_files import SavedTables

log = logging.getLogger("shoal")


@contextmanager
def resumable(
    engine: LocalEngine, command: str, run: ResumableRun, words: str = "", start_clock: int = 0
) -> Iterator[None]:
    """End all processes when rows or a process are lost, or on Ctrl-C, and say how to resume.

    At the end, write the last checkpoint of a run that writes them, or say that it has none.

    command:  the command that resumes such runs
    words:    the options with which the command continues the earlier run again, if this run has no
              checkpoint yet
    start_clock:   the clock of the checkpoint that the run continues from
    """
    folder = engine.folder
    try:
        yield
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


def _how_to_resume(folder: RunFolder, command: str, run: ResumableRun, words: str) -> str:
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


def words_of_change(now: ResumableRun, *before: ResumableRun) -> list[str]:
    """Return the command-line words of the options that differ from those of any run `before`.

    The options that name the continued run are left out, and a job's data and layers, which have no
    flag.

    >>> words_of_change(JobSpec(workers=4, set={"tau": 16}), JobSpec(workers=4))
    ['--set', 'tau=16']
    """
    fields = [
        name
        for name in now.__struct_fields__
        if name not in ("resume", "resume_at", "data", "layers")
        and any(getattr(now, name) != getattr(each, name) for each in before)
    ]
    return words_for(now, fields)


def join_run(
    engine: LocalEngine,
    run: FaultTolerantRun,
    command: str,
    words: str = "",
    tick: Callable[[], None] = lambda: None,
    start_clock: int = 0,
) -> None:
    """Wait for a run's processes; its options say which of them may be lost.

    command, words, start_clock: as in `resumable`
    """
    sizes = run.servers, run.replicas, run.workers
    policy = loss_policy(*sizes, run.on_worker_loss, run.slow_workers)
    with resumable(engine, command, run, words, start_clock):
        engine.join(tick, policy=policy)


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


def check_continued(job: JobSpec, start_clock: int) -> None:
    """Refuse to continue a run whose checkpoint does not have what the job's workers need.

    The strategy of that run is not imported: the job may have another in its place.

    Raises:
        InvalidValue: the parameters are elsewhere, or workers would lack their state, or have the
            state of another optimizer or dtype
    """
    before = from_mapping(load_run_job(Path(job.resume)))
    has_rows = Checkpoints(RunFolder(Path(job.resume)).checkpoints).has_rows(start_clock)
    where = {True: "on servers", False: "on workers"}
    had = f"{job.resume} was trained with strategy {before.strategy!r}"
    if has_rows != job.uses_servers or (not has_rows and before.strategy != job.strategy):
        raise InvalidValue(
            f"{had}, which has its parameters {where[has_rows]}, and {job.strategy!r} has its own "
            f"{where[job.uses_servers]}: begin a new run, with --init "
            f"{job.resume}/model.safetensors"
        )
    if not job.uses_servers and before.workers < job.workers:
        raise InvalidValue(
            f"{job.resume} has the states of {before.workers} workers, and strategy "
            f"{job.strategy!r} needs one for each: resume it with no more workers than that"
        )
    for what, was, asked in (
        ("optimizer", before.optimizer or job.chosen_optimizer, job.chosen_optimizer),
        ("dtype", before.dtype, job.dtype),
    ):
        if was != asked and job.keeps_states:
            raise InvalidValue(
                f"{had} and {what} {was}, and has the state of that on workers: it cannot be "
                f"resumed with {what} {asked}"
            )


def save_end(run: ResumableRun, folder: RunFolder, start_clock: int) -> None:
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


def without_checkpoint(run: ResumableRun, folder: RunFolder) -> str:
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


def begun_with(resume: str, start_clock: int) -> str:
    """Return the folder of the checkpoint at clock `start_clock`; "" at clock 0."""
    return str(RunFolder(Path(resume)).checkpoint(start_clock).resolve()) if start_clock else ""


def tables_of(resume: str, start_clock: int) -> list[str]:
    """Return the names of the tables that a checkpoint has; none at clock 0."""
    if not start_clock:
        return []
    return list(SavedTables(Path(begun_with(resume, start_clock))).specs)


def environment(resume: str, start_clock: int) -> Mapping[str, str]:
    """Return the variables that tell `shoal.init()` which checkpoint the run continues from."""
    tables = json.dumps(tables_of(resume, start_clock))
    return {"SHOAL_RESUMED_AT": str(start_clock), "SHOAL_RESUMED_TABLES": tables}
