"""The end of a run: waiting for its processes, its last checkpoint, and how it can be resumed."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from shoal.engines.processes import Processes
from shoal.errors import DataMissing, ProcessDied, RangeLost, UsageError
from shoal.factories import uninterrupted
from shoal.runs.options import RunOptions
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.files import make_folder
from shoal.storage.run_folder import RunFolder

log = logging.getLogger("shoal")


def join_run(
    processes: Processes,
    run: RunOptions,
    command: str,
    words: str = "",
    tick: Callable[[], None] = lambda: None,
    start_clock: int = 0,
    written: Callable[[], None] = lambda: None,
) -> None:
    """Wait for a run's processes; its options say which of them may be lost.

    At the end, write the last checkpoint of a run that writes them, or say that it has none. When
    rows or a process are lost, or on Ctrl-C, end all processes, and say how to resume.

    command:      the command that resumes such runs
    words:        the options with which the command continues the earlier run again, if this run
                  has no checkpoint yet
    tick:         the function that is called again and again, for progress displays
    start_clock:  the clock of the checkpoint that the run continues from
    written:      the function that waits until workers that are no processes of these have
                  written their results
    """
    folder = processes.folder
    try:
        processes.join(tick, policy=run.loss_policy)
        written()
        processes.collector.finish()
        save_end(run, folder, start_clock)
        if said := without_checkpoint(run, folder):
            log.warning("%s", said)
    except RangeLost as lost:
        processes.stop()
        hint = "a run with --checkpoint-every can be resumed"
        if run.replicas == 1:
            hint = f"with --replicas 2 a run survives the loss of a server, and {hint}"
        hint = _how_to_resume(folder, command, run, words) or hint
        raise RangeLost(f"{lost.message}; {hint}") from None
    except ProcessDied as died:
        processes.stop()
        hint = _how_to_resume(folder, command, run, words)
        raise ProcessDied(f"{died.message}; {hint}" if hint else died.message) from None
    except KeyboardInterrupt as interrupt:
        processes.stop()
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
        log.warning("no final checkpoint: the last local steps were not exchanged yet")
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
