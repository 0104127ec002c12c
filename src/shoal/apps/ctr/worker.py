"""What a worker process of `shoal train ctr` does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn import functional

from shoal.apps.ctr.models import Clicks
from shoal.apps.ctr.readers import INTEGERS, Batch, Reader
from shoal.apps.ctr.spec import CtrSpec
from shoal.engines.roles import configure_log
from shoal.errors import InvalidValue
from shoal.runtime.client import Client, ClientOptions
from shoal.runtime.context import Context
from shoal.runtime.embedding import push
from shoal.runtime.folder import RunFolder
from shoal.runtime.memory import keep_memory
from shoal.runtime.metrics import EventLog
from shoal.runtime.optimizer import Optimizer
from shoal.runtime.params import FlatParams
from shoal.runtime.shards import SavedShards

LAYERS = "params.float32"  # the table of an Optimizer's parameters
STEPS_A_LINE = 20  # of the event log


def run_ctr_worker(
    spec: dict[str, Any], scheduler: str, rank: int, folder: str, started_at: float, threads: int
) -> None:
    """Join, train on this worker's batches, leave results in the run's folder."""
    configure_log()
    keep_memory()
    torch.set_num_threads(threads)
    options = msgspec.convert(spec, CtrSpec)
    paths = RunFolder(Path(folder))
    log = EventLog(paths.events, f"worker-{rank}", started_at)
    timeout = options.sync_timeout_ms / 1000
    with Client(scheduler, ClientOptions(rank=rank, sync_timeout_s=timeout)) as client:
        trainer = Trainer(options, Context(rank, options.workers, client), log)
        trainer.train()
        client.barrier("trained")
        result = trainer.result()
        client.barrier("evaluated")
        (paths.worker(rank) / "result.json").write_text(json.dumps(result))
    log.write("end", rank=rank)
    log.close()


def with_next(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch | None]]:
    """Each batch with the one after it, which is looked up as its own update is sent."""
    before = None
    for batch in batches:
        if before is not None:
            yield before, batch
        before = batch
    if before is not None:
        yield before, None


def saved_layers(run: Path) -> torch.Tensor:
    """The dense layers of a deepfm's run, flat."""
    saved = SavedShards(run)
    if LAYERS not in saved.tables:
        raise InvalidValue(f"{run} is no run of a deepfm: it has no dense layers")
    return saved.merged(LAYERS)["rows"]


class Scores:
    """Predictions and labels, as they come."""

    def __init__(self) -> None:
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def add(self, logits: torch.Tensor, labels: np.ndarray) -> None:
        self._logits.append(logits.detach().numpy())
        self._labels.append(labels)

    def figures(self) -> dict[str, float | None]:
        """AUC (None where all labels are the same) and log loss; nothing of no rows."""
        if not self._labels:
            return {}
        from sklearn.metrics import log_loss, roc_auc_score

        labels = np.concatenate(self._labels)
        chances = 1 / (1 + np.exp(-np.concatenate(self._logits).astype(np.float64)))
        both = 0 < labels.mean() < 1
        return {
            "auc": float(roc_auc_score(labels, chances)) if both else None,
            "log_loss": float(log_loss(labels, chances, labels=[0, 1])),
        }


class Trainer:
    """One worker's rows, its model and its figures."""

    def __init__(self, spec: CtrSpec, context: Context, log: EventLog) -> None:
        self._spec = spec
        self._context = context
        self._log = log
        self._reader = self._open(spec.train, (context.rank, spec.workers))
        self._model = Clicks(spec, context, self._fields())
        self._optimizer: Optimizer | None = None
        if self._model.deep is not None:
            if spec.init:
                flat = FlatParams(self._model.deep.parameters())
                flat.values["float32"].copy_(saved_layers(Path(spec.init)))
            inner = torch.optim.Adam(self._model.deep.parameters(), lr=spec.dense_lr)
            self._optimizer = Optimizer(inner, "asgd", context=context)
        self._progressive = Scores()
        self._rows = self._steps = 0
        self._seconds = 0.0

    def _open(self, path: str, share: tuple[int, int]) -> Reader:
        spec = self._spec
        return Reader(
            Path(path), spec.batch_size, spec.format, spec.hash_bits, share, spec.skip_bad_lines
        )

    def _fields(self) -> int:
        """What deepfm's perceptron sees: the fields of the first rows of the file."""
        if self._reader.kind == "criteo":
            return INTEGERS + 26
        first = next(iter(self._open(self._spec.train, (0, 1))), None)
        return 1 if first is None or not len(first.fields) else int(first.fields.max()) + 1

    def train(self) -> None:
        """All epochs. What was read once is kept where it is needed again."""
        kept: list[Batch] = []
        batches: Iterable[Batch] = self._reader
        for epoch in range(self._spec.epochs):
            for batch, following in with_next(batches):
                if not epoch and self._spec.epochs > 1:
                    kept.append(batch)
                begin = time.monotonic()
                self._step(batch, following, epoch)
                self._seconds += time.monotonic() - begin
            order = np.random.default_rng((self._spec.seed, self._context.rank, epoch))
            batches = [kept[at] for at in order.permutation(len(kept))]

    def _step(self, batch: Batch, following: Batch | None, epoch: int) -> None:
        logits = self._model(batch)
        if not epoch:  # before the model has seen them
            self._progressive.add(logits, batch.labels)
        labels = torch.from_numpy(batch.labels)
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        then = self._model.wanted(following) if following is not None else ()
        push(self._model, weight=len(batch), then=then)
        if self._optimizer is not None:
            self._optimizer.step(weight=len(batch))
        self._rows += len(batch)
        self._steps += 1
        if self._steps % STEPS_A_LINE == 1:
            mean = loss.item() / len(batch)
            self._log.write(
                "step", step=self._steps, epoch=epoch, loss=mean, samples=self._rows, staleness=0
            )

    def result(self) -> dict[str, Any]:
        """This worker's figures; rank 0 has those of the test file."""
        result = {
            "rows": self._rows,
            "steps": self._steps,
            "seconds": self._seconds,
            "skipped": self._reader.skipped,
            "progressive": self._progressive.figures(),
            "bytes_pushed": self._context.client.bytes_pushed,
            "bytes_pulled": self._context.client.bytes_pulled,
        }
        if self._context.rank == 0 and self._spec.test:
            scores, reader = Scores(), self._open(self._spec.test, (0, 1))
            with torch.no_grad():
                for batch in reader:
                    scores.add(self._model(batch), batch.labels)
            result["test"] = scores.figures()
        return result
