"""Resuming a run: which checkpoint, its tables, and the command to type."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shoal.engines.local import LocalEngine, spare_processes
from shoal.engines.options import FaultTolerantRun, ResumableRun
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, RangeLost
from shoal.jobs.trust import check_run
from shoal.storage.run_folder import RunFolder


@contextmanager
def resumable(
    folder: RunFolder, command: str, run: ResumableRun, words: str = ""
) -> Iterator[None]:
    """When rows are lost, say how to resume: by this command, with these words behind it.

    At the end, say if a run that was to write checkpoints has none.
    """
    try:
        yield
        if said := without_checkpoint(run, folder):
            logging.getLogger("shoal").warning("%s", said)
    except RangeLost as lost:
        hint = "a run with --checkpoint-every can be resumed"
        if run.replicas == 1:
            hint = f"with --replicas 2 a run survives the loss of a server, and {hint}"
        if folder.checkpoints.exists():
            try:
                resumed_at(str(folder.path))
                how = f"shoal {command} --resume {folder.path} {words}".rstrip()
                hint = f"resume from the last checkpoint: {how}"
            except (DataMissing, DataCorrupt) as error:
                hint = error.message
        raise RangeLost(f"{lost.message}; {hint}") from None


def join_run(
    engine: LocalEngine,
    run: FaultTolerantRun,
    command: str,
    words: str = "",
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Wait for a run's processes, of which some may be lost, as its options have it.

    command, words: as in `resumable`
    """
    workers = [f"worker-{rank}" for rank in range(run.workers)]
    spare = spare_processes(run.servers, run.replicas)
    spare += workers if run.on_worker_loss == "replace" else []
    given_up = workers if run.on_worker_loss in ("drop", "reassign") else ()
    returning = workers if run.slow_workers == "backup" else ()
    with resumable(engine.folder, command, run, words):
        engine.join(tick, spare=spare, given_up=given_up, returning=returning)


def resumed_at(resume: str, resume_at: int = -1, trust: bool = False) -> int:
    """The clock of the checkpoint that a run continues from; 0 for a new run.

    trust:  continue from what another user has left, too

    Raises:
        NotTrusted: another user has left it, or could have changed it
        DataMissing, DataCorrupt: there is no checkpoint, or it is damaged
        UnknownFormat: another version of Shoal has written it
    """
    if not resume:
        if resume_at >= 0:
            raise InvalidValue("--resume-at chooses a checkpoint of a run: add --resume RUN")
        return 0
    from shoal.storage.checkpoints import Checkpoints

    check_run(Path(resume), trust)
    return Checkpoints(RunFolder(Path(resume)).checkpoints).choose(resume_at)


def without_checkpoint(run: ResumableRun, folder: RunFolder) -> str:
    """What is to be said of a run that was to write checkpoints, and ended before the first."""
    from shoal.storage.checkpoints import Checkpoints

    if not run.saves or Checkpoints(folder.checkpoints).complete():
        return ""
    every = run.checkpoint_every or f"{run.checkpoint_every_s:g} s"
    option = "--checkpoint-every" if run.checkpoint_every else "--checkpoint-every-s"
    return (
        f"no checkpoint was written: the run was over before the first was due ({option} {every})"
    )


def begun_with(resume: str, passed: int) -> str:
    """The folder of the checkpoint of that clock; none at clock 0."""
    return str(RunFolder(Path(resume)).checkpoint(passed).resolve()) if passed else ""


def tables_of(resume: str, passed: int) -> list[str]:
    """The names of the tables that a checkpoint has; none at clock 0."""
    if not passed:
        return []
    from shoal.storage.shards import SavedShards

    return list(SavedShards(Path(begun_with(resume, passed))).tables)


def environment(resume: str, passed: int) -> Mapping[str, str]:
    """Variables that tell `shoal.init()` which checkpoint the run continues from."""
    tables = json.dumps(tables_of(resume, passed))
    return {"SHOAL_RESUMED_AT": str(passed), "SHOAL_RESUMED_TABLES": tables}
