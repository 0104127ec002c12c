"""`shoal bench follower`: the cost of a process that scores rows to the run that it follows.

    training, followed   rows/s of `shoal train ctr` with two workers, while one process scores rows
                         with `shoal.ctr.Scorer` at the pace below. Ceiling: the same run alone
    scored               rows/s by that process, in batches of 100. Ceiling: the pace. p50 and p99
                         are those of a batch, from when it was due until it was scored, with the
                         wait for the batch before

Rows are those of a data folder (SHOAL_DATA, libsvm/a9a.gz); without it a sample made from the seed.
The two kinds of run are made by turns, and figures are medians.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from shoal.apps.bench.rows import Row, quality
from shoal.apps.bench.suites.ctr import A9A
from shoal.apps.ctr.predicting import Scorer
from shoal.apps.ctr.readers import Batch, Reader
from shoal.apps.ctr.sample import write_sample
from shoal.errors import ProcessDied
from shoal.storage.run_folder import RunFolder

PACE = 50_000  # rows/s
ROWS = 100  # in a batch
TRAINED_ROWS = 2_500_000  # about twenty seconds on two cores
SAMPLE_ROWS = 600_000  # of the sample
START_S = 60.0
COUNT = 2
ROUNDS = 3


class Followed(msgspec.Struct):
    """One run with a process that scores.

    trained:  the rows a second that the run has trained
    scored:   the rows a second that the process has scored
    late:     the seconds of each batch, from when it was due until it was scored
    """

    trained: float
    scored: float
    late: np.ndarray


def rows(folder: RunFolder, rounds: int, data_dirs: Sequence[Path] = ()) -> Iterator[Row]:
    found = [each for each in data_dirs if (each / A9A[0]).is_file()]
    train = found[0] / A9A[0] if found else write_sample(folder.path, 0)[0]
    batches = list(Reader(train, ROWS))
    trained_rows = TRAINED_ROWS if found else SAMPLE_ROWS
    epochs = max(trained_rows // sum(len(batch) for batch in batches), 1)
    words = ["ctr", str(train), "--workers", "2", "--epochs", str(epochs), "--json"]
    alone, followed = [], []
    for turn in range(rounds):
        alone.append(_ended(_begun(words, folder, f"alone-{turn}")))
        followed.append(_followed(words, folder, f"followed-{turn}", batches))
    trained = median(each.trained for each in followed)
    late = np.concatenate([each.late for each in followed])
    yield quality("training, followed", trained / 1e6, "M rows/s", median(alone) / 1e6)
    p50, p99 = (1e6 * float(each) for each in np.percentile(late, (50, 99)))
    scored = median(each.scored for each in followed)
    yield quality("scored", scored, "rows/s", PACE, p50=p50, p99=p99)


def _begun(words: Sequence[str], folder: RunFolder, title: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shoal", "train", *words, "--out", folder.path, "--title", title],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _ended(run: subprocess.Popen[str]) -> float:
    """Return the rows a second of a run, once it has ended."""
    told, _ = run.communicate()
    if run.returncode:
        raise ProcessDied(f"`shoal train ctr` ended with status {run.returncode}; see its logs")
    return float(json.loads(told)["rows_per_s"])


def _followed(
    words: Sequence[str], folder: RunFolder, title: str, batches: Sequence[Batch]
) -> Followed:
    run = _begun(words, folder, title)
    with run, Scorer(_under_way(folder, title, run)) as scorer:
        scorer.score(batches[0])  # wait for the tables, and compile the loops
        late: list[float] = []
        begin = time.perf_counter()
        while scorer.training:
            due = begin + len(late) * ROWS / PACE
            time.sleep(
                max(due - time.perf_counter(), 0.0)
            )  # an open load: batches are due by the clock
            scorer.score(batches[len(late) % len(batches)])
            late.append(time.perf_counter() - due)
        seconds = time.perf_counter() - begin
        scorer.close()  # the run waits for it
        return Followed(_ended(run), len(late) * ROWS / seconds, np.array(late))


def _under_way(folder: RunFolder, title: str, run: subprocess.Popen[str]) -> Path:
    """Return the folder of a run that has begun, once its scheduler listens."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and run.poll() is None:
        for found in folder.path.glob(f"{title}-*"):
            if RunFolder(found).scheduler.exists():
                return found
        time.sleep(0.02)  # another process makes it: there is no event to wait for
    raise ProcessDied("`shoal train ctr` has not begun")
