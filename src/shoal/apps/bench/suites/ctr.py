"""`shoal bench ctr`: rows a second of logistic regression, and the quality of all its models.

    lr 1 worker, lr 2 workers   rows/s of `shoal train ctr` in batches of 256 rows, keys hashed
                                to 16 bits. Ceiling: the same loop on tables of this process, in one
                                thread, times the workers. Peer: scikit-learn's SGDClassifier in one
                                process, `partial_fit` of the same batches
    a9a log loss                log loss on the test file, with L2 penalty 1. Ceiling and peer: the
                                optimum, by scikit-learn's LogisticRegression with the same penalty
    census AUC lr|fm|deepfm     AUC on the test file. Ceiling and peer: scikit-learn's
                                LogisticRegression

Rows are those of a data folder (SHOAL_DATA, libsvm/a9a.gz); without it a sample made from the seed,
and only the first two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace
from rich.console import Console

from shoal.apps.bench.rows import Batches, Row, beside, quality, rate
from shoal.apps.ctr.command import CtrApplication
from shoal.apps.ctr.logistic import gradients_of, logits_of
from shoal.apps.ctr.readers import Batch, LineOptions, Reader
from shoal.apps.ctr.sample import write_sample
from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.ctr.tables import linear_options
from shoal.extras import require
from shoal.keys import SLOTS, KeyRange
from shoal.runs.run import run_here
from shoal.storage.run_folder import RunFolder
from shoal.tables.sparse.distinct import distinct
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.spec import TableSpec

A9A = ("libsvm/a9a.gz", "libsvm/a9a.t.gz")
CENSUS = ("census/census_148d_train.dummy.gz", "census/census_148d_test.dummy.gz")
WORKERS = (1, 2)
BITS = 16
ROWS = 256  # in a batch
EPOCHS = 3  # the file is read during the first
QUIET = Console(stderr=True, quiet=True)

COUNT = len(WORKERS)
ROUNDS = 3


def rows(folder: RunFolder, rounds: int, data_dirs: Sequence[Path] = ()) -> Iterator[Row]:
    require("sklearn", "the peer of this suite, scikit-learn,")
    found = [each for each in data_dirs if (each / A9A[0]).is_file()]
    train = found[0] / A9A[0] if found else write_sample(folder.path, 0)[0]
    spec = CtrSpec(
        train=str(train), hash_bits=BITS, epochs=EPOCHS, batch_size=ROWS, out=str(folder.path)
    )
    batches = list(Reader(train, ROWS, options=LineOptions(BITS)))
    for workers in WORKERS:
        yield _speed(replace(spec, workers=workers), batches, rounds)
    if found:
        yield _log_loss(CtrSpec(out=str(folder.path)), found[0])
        yield from _aucs(CtrSpec(out=str(folder.path)), found[0])


def _speed(spec: CtrSpec, batches: list[Batch], rounds: int) -> Row:
    ours: Batches = []
    alone: Batches = []
    peers = []
    total = sum(len(batch) for batch in batches)
    for _ in range(rounds):
        alone.append([_alone(spec, batches) / spec.workers])
        ours.append([total / run_here(CtrApplication(spec))["rows_per_s"]])
        peers.append(_sgd(batches))
    name = f"lr {spec.workers} worker{'s' if spec.workers > 1 else ''}"
    row = rate(name, total, "M rows/s", ours, alone)
    return beside(row, "scikit-learn", total / median(peers) / 1e6)


def _alone(spec: CtrSpec, batches: list[Batch]) -> float:
    """Return the seconds of one pass without servers, the second of two."""
    table = TableSpec("linear", 0, (1,), kind="sparse", **linear_options(spec))
    shard, bias, seconds = SparseShard(table, KeyRange(0, SLOTS)), 0.0, 0.0
    for _ in range(2):
        begin = time.perf_counter()
        for batch in batches:
            keys, numbers = distinct(batch.keys)
            asked = shard.stage_keys(table.keys, len(keys))
            asked.keys[:] = keys
            weights = np.frombuffer(shard.read_keys(asked), np.float32)
            logits, gradients = np.empty(len(batch), np.float32), np.zeros_like(weights)
            logits_of(weights, bias, numbers, batch.values, batch.offsets, logits)
            _, slope = gradients_of(
                logits, batch.labels, numbers, batch.values, batch.offsets, gradients
            )
            push = shard.stage(table.keys, len(keys))
            push.keys[:], push.values[:, 0] = keys, gradients
            shard.apply(push, None)
            bias -= 0.001 * slope
        seconds = time.perf_counter() - begin
    return seconds


def _matrix(batches: list[Batch], columns: int) -> tuple[Any, np.ndarray]:
    """Convert batches to the matrix and labels that scikit-learn takes."""
    from scipy.sparse import csr_matrix

    counts = [np.diff(batch.offsets, append=len(batch.keys)) for batch in batches]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    keys = np.concatenate([batch.keys for batch in batches]).astype(np.int64)
    values = np.concatenate([batch.values for batch in batches])
    labels = np.concatenate([batch.labels for batch in batches])
    return csr_matrix((values, keys, starts), shape=(len(labels), columns)), labels


def _sgd(batches: list[Batch]) -> float:
    """Return the seconds that scikit-learn takes for one pass."""
    from sklearn.linear_model import SGDClassifier

    pairs = [_matrix([batch], 1 << BITS) for batch in batches]
    model = SGDClassifier(loss="log_loss")
    begin = time.perf_counter()
    for rows_, labels in pairs:
        model.partial_fit(rows_, labels, classes=[0, 1])
    return time.perf_counter() - begin


def _log_loss(spec: CtrSpec, data: Path) -> Row:
    paths = [data / name for name in A9A]
    asked = replace(spec, train=str(paths[0]), test=str(paths[1]), l1=0.0, l2=1.0, epochs=20)
    found = run_here(CtrApplication(asked))["test"]["log_loss"]
    peer = _optimum(paths)["log_loss"]
    return beside(quality("a9a log loss", found, "nats", peer, "lower"), "scikit-learn", peer)


def _aucs(spec: CtrSpec, data: Path) -> Iterator[Row]:
    paths = [data / name for name in CENSUS]
    peer = _optimum(paths)["auc"]
    for model in ("lr", "fm", "deepfm"):
        asked = replace(spec, train=str(paths[0]), test=str(paths[1]), model=model, epochs=2)
        found = run_here(CtrApplication(asked))["test"]["auc"]
        yield beside(quality(f"census AUC {model}", found, "AUC", peer), "scikit-learn", peer)


def _optimum(paths: Sequence[Path]) -> dict[str, float]:
    """Return the AUC and log loss of scikit-learn's penalised optimum on the test file."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score

    columns = 1 + max(int(batch.keys.max()) for path in paths for batch in Reader(path, 4096))
    (x, y), (test_x, test_y) = (_matrix(list(Reader(path, 4096)), columns) for path in paths)
    model = LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(x, y)
    chances = model.predict_proba(test_x)[:, 1]
    return {
        "auc": float(roc_auc_score(test_y, chances)),
        "log_loss": float(log_loss(test_y, chances)),
    }
