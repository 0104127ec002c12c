"""`shoal checkpoint`: asks a run for a checkpoint, and waits until it is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from rich.console import Console

from shoal.client.tool import ask_run
from shoal.errors import DataMissing, JoinTimeout, Refused, RequestTimeout
from shoal.protocol.admin.question import Question
from shoal.protocol.messages.admin import CheckpointPlanned, CheckpointRefused, CheckpointRequest
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.run_folder import RunFolder

ANSWER_S = 10.0  # for the scheduler's answer, which waits for a view
LOOK_S = 0.1  # between looks at the folder: servers on other hosts write there


def save(
    where: str, token: str, timeout_s: float, told: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Ask a run for a checkpoint, and wait until it is complete.

    where:      the folder of a run on this machine, or its scheduler's address
    token:      the run's token
    timeout_s:  the time for the workers to reach the checkpoint's clock, and for the servers to
                write it
    told:       the function that is called with a text about what is waited for

    Returns:
        `clock`, `folders` (the checkpoint's folder on each host), and `complete`: true, or None
        where the folders are on other hosts only.

    Raises:
        DataMissing: no run is under way there, or it has ended before the checkpoint's clock
        JoinTimeout: no scheduler answers there
        Refused: the run cannot write a checkpoint
        RequestTimeout: the checkpoint is not complete in time
    """
    patience_s = min(ANSWER_S, max(timeout_s, 1.0))
    question = Question(CheckpointRequest(1), (CheckpointPlanned, CheckpointRefused), patience_s)
    address = ask_run(question, where, token)
    planned = question.answer
    if isinstance(planned, CheckpointRefused):
        raise Refused(planned.reason)
    if not isinstance(planned, CheckpointPlanned):
        raise JoinTimeout(f"no scheduler at {address} has answered within {patience_s:g} s")
    folders = [Path(folder) for _, folder in planned.folders]
    seen = [each for each in folders if each.parents[1].is_dir()]  # the run's folder is made later
    told(f"checkpoint {planned.saved_as}: waits for every worker to finish {planned.clock} clocks")
    complete = _wait(Checkpoints(seen[0]), planned, where, timeout_s) if seen else None
    places = {host: str(Checkpoints(Path(folder)).path(planned.saved_as))
              for host, folder in planned.folders}  # fmt: skip
    return {"clock": planned.saved_as, "folders": places, "complete": complete}


def _wait(
    checkpoints: Checkpoints, planned: CheckpointPlanned, where: str, timeout_s: float
) -> bool:
    run, until = RunFolder(Path(where)), monotonic() + timeout_s
    path = checkpoints.path(planned.saved_as)
    while lacks := checkpoints.lacks(planned.saved_as):
        if (
            "://" not in where
            and not run.scheduler.exists()
            and checkpoints.lacks(planned.saved_as)
        ):
            raise DataMissing(
                f"the run has ended before checkpoint {planned.saved_as}; {run.shards} has what it "
                "ended with, if it ended in order"
            )
        if monotonic() >= until:
            raise RequestTimeout(
                f"{path} is not complete after {timeout_s:g} s ({lacks}); it will be when every "
                f"worker has finished {planned.clock} clocks: `shoal why` says what they wait for"
            )
        sleep(LOOK_S)
    return True


def show(console: Console, found: dict[str, Any]) -> None:
    """Print where the checkpoint is."""
    said = "is complete" if found["complete"] else "will be complete when all workers reach it"
    console.print(f"checkpoint {found['clock']} {said}")
    for host, folder in found["folders"].items():
        console.print(f"  {host}: {folder}", soft_wrap=True)
