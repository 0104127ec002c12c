"""The worker process of `shoal train ctr`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from shoal.apps.ctr.columns.values import ColumnKeys, write_seen
from shoal.apps.ctr.leased_rows import LeasedRows
from shoal.apps.ctr.models import model_of
from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.scores import PROGRESSIVE, TEST, Scores, figures_of, scores_before
from shoal.apps.ctr.shuffling import Labels, counted, shuffled
from shoal.apps.ctr.sources import Source
from shoal.apps.ctr.spec import CtrSpec
from shoal.client.client import Client
from shoal.client.context import Context
from shoal.client.leases import take_lease
from shoal.runs.resume import epochs_of
from shoal.runs.worker import WorkerTask, written_by_first
from shoal.storage.event_log import EventLog
from shoal.storage.run_folder import RunFolder

STEPS_A_LINE = 20  # steps between two lines of the event log


def run_ctr_worker(**given: Any) -> None:
    """Join, train on this worker's batches, and write the results to the run's folder.

    given:  the fields of `WorkerTask`
    """
    task = msgspec.convert(given, WorkerTask)
    log = task.begin()
    options = msgspec.convert(task.options, CtrSpec)
    paths, rank = task.paths, task.rank
    with Client(task.scheduler, task.client_options(options)) as client:
        context = context_of(options, client, task.start_clock)
        trainer = Trainer(options, context, log, task.start_clock)
        if options.on_worker_loss == "reassign":
            trainer.train_leased(LeasedRows(Path(task.inputs["rows"]), options))
        else:
            trainer.train()
        client.advance(last=True).wait()  # the others need not wait for this worker any more
        client.barrier("trained")
        test = paths.worker(0) / TEST
        save = lambda: trainer.scores_of(options.test).save(test)  # noqa: E731
        written_by_first(client, task.beside, save, test.exists, "evaluated", trainer.joined_at > 0)
        trainer.progressive.save(paths.worker(rank) / PROGRESSIVE)
        paths.write_result(rank, trainer.result())
        if trainer.keys:
            write_seen(paths.values(rank), trainer.keys)
    log.write("end", rank=rank)
    log.close()


def context_of(spec: CtrSpec, client: Client, start_clock: int) -> Context:
    """Return the context of this worker, which may replace one that was lost.

    start_clock:  the clock of the checkpoint that the run continues from
    """
    before = frozenset(table.name for table in client.view.tables) if client.clock else frozenset()
    return Context(
        client.rank,
        spec.workers,
        client,
        tables_before=before,
        began_at=start_clock + client.clock,
        on_worker_loss=spec.on_worker_loss,
    )


def with_next(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch | None]]:
    """Yield each batch with the next, whose rows are pulled as the update of the first is sent."""
    before = None
    for batch in batches:
        if before is not None:
            yield before, batch
        before = batch
    if before is not None:
        yield before, None


class Trainer:
    """One worker's rows, its model and its figures.

    start_clock:  the number of steps to skip
    """

    def __init__(
        self, spec: CtrSpec, context: Context, log: EventLog, start_clock: int = 0
    ) -> None:
        self._spec = spec
        self._context = context
        self._log = log
        self._reader = Source(spec, spec.train, (context.rank, spec.workers))
        self._model = model_of(spec, context)
        self.progressive = Scores()
        self.valid: list[dict[str, Any]] = []  # figures after each epoch, of rank 0
        self._start_clock = start_clock
        self._epochs = 0
        self._labels = Labels()
        self.joined_at = context.client.clock  # above 0 for one that replaces another
        self._missed = start_clock + self.joined_at
        self._rows = self._steps = self._scored_rows = self._logged = 0
        self._seconds = 0.0

    @property
    def keys(self) -> dict[str, ColumnKeys]:
        """The keys of columns of categories that this worker has seen."""
        return self._reader.keys

    def train(self) -> None:
        """Train for all epochs; keep the batches in memory if there is more than one."""
        kept: list[Batch] = []
        batches = self._in_order((), 0)
        begin = time.monotonic()
        for epoch in range(self._spec.epochs):
            for batch, following in with_next(batches):
                if not epoch and self._spec.epochs > 1:
                    kept.append(batch)
                if self._missed:
                    self._missed, self._steps = self._missed - 1, self._steps + 1
                    begin = time.monotonic()
                    continue
                self._step(batch, following, epoch)
            self._epochs = max(self._epochs, epoch + 1)
            if not epoch and self._start_clock and self._steps:
                self._begin_after(self._steps)  # knows how many batches an epoch has
            if self._spec.valid and self._stops(epoch):
                break
            batches = self._in_order(kept, epoch + 1)
        self._seconds = time.monotonic() - begin

    def train_leased(self, rows: LeasedRows) -> None:
        """Train on the batches that the scheduler leases to this worker, until all are done."""
        client, spec = self._context.client, self._spec
        patient = spec.consistency.name == "asp"
        self._steps = self._start_clock + self.joined_at
        begin = time.monotonic()
        while not (lease := take_lease(client, spec.epochs, len(rows), patient)).over:
            if not lease.count:
                self._model.idle()
                self._steps += 1
                continue
            self._epochs = lease.epoch + 1
            numbers = range(lease.first, lease.first + lease.count)
            for batch, following in with_next(rows.batch(lease.epoch, each) for each in numbers):
                self._step(batch, following, lease.epoch)
        self._seconds = time.monotonic() - begin

    def _begin_after(self, batches: int) -> None:
        """Continue the run before: keep its scores, and skip only batches of its epochs.

        The clock of its checkpoint exceeds this worker's batches if another worker had more.

        batches: the number of this worker's batches per epoch
        """
        before = self._spec.resume
        done = min(self._start_clock, epochs_of(before) * batches)
        self._missed = max(done + self.joined_at - batches, 0)
        self._epochs = max(self._epochs, -(-done // batches))
        if self._context.rank == 0:
            scored = scores_before(RunFolder(Path(before)))
            self.valid = [each for each in scored if each["epoch"] * batches <= done]

    def _in_order(self, kept: Sequence[Batch], epoch: int) -> Iterable[Batch]:
        """Return the batches of an epoch: of the file in the first, the `kept` ones in others."""
        random = np.random.default_rng((self._spec.seed, self._context.rank, epoch))
        if epoch:
            return [kept[at] for at in random.permutation(len(kept))]
        if self._spec.shuffle:
            return shuffled(self._reader, self._spec.shuffle, random, self._labels)
        return counted(self._reader, self._labels)

    def _step(self, batch: Batch, following: Batch | None, epoch: int) -> None:
        logits, loss = self._model.learn(batch, following)
        if not epoch:  # the logits before the model has seen the rows
            self.progressive.add(logits, batch.labels)
        self._rows += len(batch)
        self._steps += 1
        if self._steps % STEPS_A_LINE == 1:
            mean, rows = loss / len(batch), self._rows - self._logged
            self._logged = self._rows
            self._log.write(
                "step", step=self._steps, epoch=epoch, loss=mean, samples=rows, staleness=0
            )

    def _stops(self, epoch: int) -> bool:
        """Score the rows of `valid` once all workers are here; return whether training stops."""
        client, verdict = self._context.client, torch.zeros(1)
        client.barrier(f"epoch {epoch}")
        if self._context.rank == 0 and self._rows > self._scored_rows:
            self._scored_rows = self._rows  # an epoch that a resumed run skips has no score
            found = figures_of(*self.scores_of(self._spec.valid).all())
            self.valid.append({"epoch": epoch + 1, **found})
        if self._context.rank == 0 and self.valid and self.valid[-1]["epoch"] <= epoch + 1:
            losses = [inf if (loss := each["log_loss"]) is None else loss for each in self.valid]
            verdict[0] = len(losses) - 1 - losses.index(min(losses)) >= self._spec.patience
        client.all_reduce(verdict).wait()
        return bool(verdict)

    def result(self) -> dict[str, Any]:
        """Return the figures of this worker."""
        return {
            "rows": self._rows,
            "steps": self._steps,
            "clock": max(self._start_clock, self._steps),
            "epochs": self._epochs,
            "read": self._labels.rows,
            "clicks": self._labels.clicks,
            "seconds": self._seconds,
            "valid": self.valid,
            "skipped": self._reader.skipped,
            "in_runs": self._labels.in_runs and self._labels.rows > self._spec.shuffle,
            "bytes_pushed": self._context.client.bytes_pushed,
            "bytes_pulled": self._context.client.bytes_pulled,
        }

    def scores_of(self, path: str) -> Scores:
        """Return the scores of the rows of a path; no scores without a path."""
        scores = Scores()
        if path:
            self._model.finish()
            for batch in Source(self._spec, path):
                scores.add(self._model.score(batch), batch.labels)
        return scores
