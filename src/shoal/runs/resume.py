"""Where a run continues: the checkpoint, its tables, its leases and epochs."""

from __future__ import annotations

import logging
from pathlib import Path

from shoal.engines.base import Input
from shoal.engines.environment import Resumed
from shoal.engines.options import words_for
from shoal.errors import DataMissing, InvalidValue
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.runs.job_file import load_run_job
from shoal.runs.options import RunOptions
from shoal.runs.trust import check_run
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.files import damaged
from shoal.storage.lease_log import read_lease_log
from shoal.storage.run_folder import RunFolder, shard_files
from shoal.storage.shard_files import SavedTables, with_earlier

log = logging.getLogger("shoal")


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


def resumed_at(resume: str, resume_at: int = -1, states: bool = False) -> int:
    """Return the clock of the checkpoint that a run continues from; 0 for a new run.

    `Checkpoints.choose` decides between the checkpoints of the earlier run.

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
    check_run(Path(resume))
    workers = int(load_run_job(Path(resume)).get("workers", 0)) if states else 0
    return Checkpoints(RunFolder(Path(resume)).checkpoints, workers).choose(resume_at)


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


def rows_before(shards: str) -> tuple[Input, ...]:
    """Return the files with the rows that tables begin with, for the argument `init` of servers.

    A server asks for those of its own rows, but where a table is custom: its shards are opened in
    the loop, which must not wait.

    shards:  the folder of the shards; "" for none
    """
    if not shards:
        return ()
    above = Path(shards).parent  # has the earlier checkpoints to which files have the changes
    files = {each: None for path in shard_files(Path(shards)) for each in with_earlier(path)}
    names = tuple(each.relative_to(above).as_posix() for each in files)
    custom = any(spec.kind == "custom" for spec in SavedTables(Path(shards)).specs.values())
    return (Input(("init",), str(above), names, later="" if custom else "rows"),)


def state_before(before: str, start_clock: int, rank: int) -> tuple[Input, ...]:
    """Return what a worker reads of the run that it continues, for its argument `before`.

    before:  the folder of that run; "" for a new run
    """
    if not before:
        return ()
    run = RunFolder(Path(before))
    states = sorted(run.checkpoint(start_clock).glob("worker-*.safetensors"))
    own = [each for each in states if each.stem == f"worker-{rank}"]
    files = [run.job, run.result_file(0), *(own or states[:1])]
    names = tuple(each.relative_to(before).as_posix() for each in files if each.exists())
    return (Input(("before",), before, names),)


def tables_of(resume: str, start_clock: int) -> list[str]:
    """Return the names of the tables that a checkpoint has; none at clock 0."""
    if not start_clock:
        return []
    return list(SavedTables(Path(begun_with(resume, start_clock))).specs)


def resumed_from(resume: str, start_clock: int, steps: tuple[tuple[int, int], ...] = ()) -> Resumed:
    """Return the checkpoint that a script's run continues from.

    steps:  the steps before it, as `Context.steps_before`
    """
    return Resumed(start_clock, tuple(tables_of(resume, start_clock)), steps)
