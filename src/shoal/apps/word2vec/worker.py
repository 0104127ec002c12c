"""The worker process of `shoal train word2vec`.

For each block of text, a worker pulls the vectors of its words and of a pool of noise words, trains
on the copies, and pushes the changes. The servers add up the changes (`sum`), as in Downpour. One
message pushes the changes of a block and pulls the rows of the next one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.apps.word2vec.corpus import Corpus, load_ids, shares
from shoal.apps.word2vec.model import (
    block_loss,
    load_kernels,
    noise_pool,
    running_sum,
    subsampled,
    train_block,
)
from shoal.apps.word2vec.numbering import BREAK
from shoal.apps.word2vec.spec import WordsSpec
from shoal.apps.word2vec.vectors import BINARY, SCORES, Vectors
from shoal.client.client import Client
from shoal.client.leases import take_lease
from shoal.client.sparse.exchanges import Batch, pull_op, push_op
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.runs.resume import epochs_of
from shoal.runs.worker import WorkerTask, written_by_first
from shoal.storage.event_log import EventLog
from shoal.storage.files import read_text, write_whole
from shoal.tables.init import Init
from shoal.tables.spec import Access, TableSpec

POOL = 1 << 15  # noise words of a block
FETCHED = 20_000  # rows of a pull at the end


def run_words_worker(**given: Any) -> None:
    """Join and train on this worker's share of the text; rank 0 writes the vectors.

    given:  the fields of `WorkerTask`; its `start_clock` is in blocks
    """
    task = msgspec.convert(given, WorkerTask)
    log = task.begin()
    torch.set_num_threads(1)  # `spec.threads` are threads of ours
    options = msgspec.convert(task.options, WordsSpec)
    paths, rank = task.paths, task.rank
    ids, counts = load_ids(Path(task.inputs["corpus"]))
    with Client(task.scheduler, task.client_options(options)) as client:
        leased = options.on_worker_loss == "reassign"
        own = ids if leased else ids[shares(ids, options.workers)[rank]]
        trainer = Trainer(options, client, own, counts, log)
        client.barrier("ready")
        if leased:
            trainer.train_leased(task.start_clock)
        else:
            trainer.train(task.start_clock)
        client.advance(last=True).wait()  # a checkpoint need not wait for this worker any more
        client.barrier("trained")
        result = trainer.figures()

        def write() -> None:
            words = read_text(Path(task.inputs["vocabulary"])).splitlines()
            vectors = Vectors(words, trainer.fetch(len(words)), options.tokens)
            vectors.save(paths.path / "vectors.txt", binary=False)
            vectors.save(paths.path / BINARY, binary=True)
            scores: dict[str, Any] = {}
            if options.analogies:
                scores["analogies"] = vectors.analogies(Path(options.analogies))
            if options.similarities:
                scores["similarities"] = vectors.similarities(Path(options.similarities))
            write_whole(paths.path / SCORES, json.dumps(scores))

        there = (paths.path / SCORES).exists
        written_by_first(client, task.beside, write, there, "written", trainer.joined_at > 0)
        paths.write_result(rank, result)
    log.write("end", rank=rank)
    log.close()


class Block:
    """A piece of text, and the rows that it needs.

    ids:      the words of the text as places in `inputs` and `outputs`, BREAK between sentences
    words:    (n,), the numbers of the words that are inputs and the first outputs
    noise:    (m,), the numbers of the words that are outputs only
    pool:     the places in `outputs` from which noise is drawn
    given:    the number of words of the text before frequent ones were left out
    """

    def __init__(
        self, text: np.ndarray, keep: np.ndarray, noise: np.ndarray, place: np.ndarray,
        random: np.random.Generator,
    ) -> None:  # fmt: skip
        self.given = int((text >= 0).sum())
        ids = subsampled(text, keep, random)
        drawn = noise_pool(noise, POOL, random)
        self.words = np.unique(ids[ids >= 0])
        place[self.words] = np.arange(len(self.words), dtype=np.int32)
        self.noise = np.unique(drawn)
        self.noise = self.noise[place[self.noise] < 0]
        place[self.noise] = np.arange(len(self.noise), dtype=np.int32) + len(self.words)
        self.ids = np.where(ids >= 0, place[ids], BREAK).astype(np.int32)
        self.pool = place[drawn]
        place[self.words] = place[self.noise] = -1
        self.inputs = self.outputs = torch.empty(0)
        self.finish: list[Callable[[], Tensor]] = []

    @property
    def outs(self) -> np.ndarray:
        return np.concatenate([self.words, self.noise])


class Trainer:
    """One worker's text and its tables."""

    def __init__(
        self, spec: WordsSpec, client: Client, ids: np.ndarray, counts: np.ndarray, log: EventLog
    ) -> None:
        self._spec = spec
        self._client = client
        self._ids = ids
        self._log = log
        self._keep = Corpus([""] * len(counts), counts, ids).keep_chances(spec.sample)
        self._noise = running_sum(counts)
        self._place = np.full(len(counts), -1, np.int32)
        self._pool = ThreadPoolExecutor(spec.threads)
        half = 0.5 / spec.dim
        common: dict[str, Any] = {"access": Access("sum"), "kind": "sparse"}
        begin = Init("uniform", -half, half, spec.seed)
        self._in = client.create_table(TableSpec("in", 0, (spec.dim,), init=begin, **common))
        self._out = client.create_table(TableSpec("out", 0, (spec.dim,), **common))
        load_kernels(spec.dim)
        self.joined_at = client.clock  # above 0 for a worker that replaces another
        self._words = self._seconds = 0.0
        self._clock = self._epochs = 0

    def train(self, start_clock: int) -> None:
        """Train for all epochs on this worker's text, without the first `start_clock` blocks."""
        spec, size, rank = self._spec, self._spec.block_words, self._client.rank
        pieces = [self._ids[at : at + size] for at in range(0, len(self._ids), size)]
        self._log.write("begin", rank=self._client.rank, batches=len(pieces))
        every = max(1, len(pieces) // 50)
        begin = time.monotonic()
        clock = start_clock
        if start_clock:  # the clock exceeds this worker's blocks if another worker had more
            start_clock = min(start_clock, epochs_of(spec.resume) * len(pieces))
        resumed_at = start_clock
        start_clock += self.joined_at
        turns = [
            (epoch, number)
            for epoch in range(spec.epochs)
            for number in self._order(epoch, len(pieces), rank)
        ]
        left = turns[start_clock:]
        block = self._prepare(pieces, *left[0], rank) if left else None
        if block is not None:
            self._exchange(None, (), block)
        for at, (epoch, number) in enumerate(left, start_clock):
            assert block is not None
            lr = max(spec.min_lr, spec.lr * (1 - at / len(turns)))
            changes = self._train(block, lr, seed=at + (rank << 32))
            if number % every == 0:
                self._write_step(at, epoch, block)
            more = at + 1 < len(turns)
            following = self._prepare(pieces, *turns[at + 1], rank) if more else None
            self._exchange(block, changes, following)
            self._words += block.given
            block = following
        self._seconds = time.monotonic() - begin
        self._clock = max(clock, len(turns))
        self._epochs = max(spec.epochs, -(-resumed_at // max(len(pieces), 1)))

    def train_leased(self, start_clock: int) -> None:
        """Train on the blocks that the scheduler leases to this worker, until all are done.

        start_clock:  the clock of the checkpoint that the run continues from
        """
        spec, size, client = self._spec, self._spec.block_words, self._client
        pieces = [self._ids[at : at + size] for at in range(0, len(self._ids), size)]
        self._log.write("begin", rank=client.rank, batches=len(pieces))
        every = max(1, len(pieces) // 50)
        begin = time.monotonic()
        self._clock = start_clock + self.joined_at
        while not (lease := take_lease(client, spec.epochs, len(pieces), patient=True)).over:
            numbers = self._order(lease.epoch, len(pieces), rank=0)
            numbers = numbers[lease.first : lease.first + lease.count]
            block = self._prepare(pieces, lease.epoch, numbers[0], rank=0)
            self._exchange(None, (), block)
            for at, number in enumerate(numbers):
                turn = lease.epoch * len(pieces) + lease.first + at
                lr = max(spec.min_lr, spec.lr * (1 - turn / (spec.epochs * len(pieces))))
                changes = self._train(block, lr, seed=turn)
                if number % every == 0:
                    self._write_step(turn, lease.epoch, block)
                following = None
                if at + 1 < len(numbers):
                    following = self._prepare(pieces, lease.epoch, numbers[at + 1], rank=0)
                self._exchange(block, changes, following)
                self._words += block.given
                self._clock += 1
                block = following or block
            self._epochs = lease.epoch + 1
        self._seconds = time.monotonic() - begin

    def _write_step(self, turn: int, epoch: int, block: Block) -> None:
        loss = block_loss(block.ids, block.inputs.numpy(), block.outputs.numpy(), block.pool)
        self._log.write("step", step=turn + 1, epoch=epoch, loss=loss, samples=block.given)

    def _order(self, epoch: int, pieces: int, rank: int) -> list[int]:
        """Return a random order of the pieces of the text, the same for every run of this seed.

        In the order of the text the vectors would follow the last pieces, and forget the others.
        """
        random = np.random.default_rng((self._spec.seed, rank, epoch, pieces))
        order: list[int] = random.permutation(pieces).tolist()
        return order

    def _prepare(self, pieces: list[np.ndarray], epoch: int, number: int, rank: int) -> Block:
        random = np.random.default_rng((self._spec.seed, rank, epoch, number))
        return Block(pieces[number], self._keep, self._noise, self._place, random)

    def _train(self, block: Block, lr: float, seed: int) -> tuple[Tensor, Tensor]:
        """Train on copies of a block's rows; return the changes of the inputs and the outputs."""
        spec = self._spec
        inputs, outputs = block.inputs.clone(), block.outputs.clone()

        def train(part: tuple[int, np.ndarray]) -> None:
            number, ids = part
            train_block(
                ids,
                inputs.numpy(),
                outputs.numpy(),
                block.pool,
                spec.window,
                spec.negative,
                lr,
                seed * spec.threads + number,
                spec.model == "cbow",
            )

        parts = list(enumerate(np.array_split(block.ids, spec.threads)))
        if len(parts) == 1:
            train(parts[0])
        else:
            list(self._pool.map(train, parts))
        return inputs.sub_(block.inputs), outputs.sub_(block.outputs)

    def _exchange(
        self, done: Block | None, changes: tuple[Tensor, ...], following: Block | None
    ) -> None:
        """Push a block's changes and pull the rows of the next one, in one message per server."""
        view = self._client.view
        pushes: list[PushOp] = []
        pulls: list[tuple[PullOp, Callable[[], Tensor]]] = []
        if done is not None:
            for spec, words, change in zip(
                (self._in, self._out), (done.words, done.outs), changes, strict=True
            ):
                pushes.append(push_op(spec, Batch(spec, words, view), change))
        if following is not None:
            for spec, words in ((self._in, following.words), (self._out, following.outs)):
                pulls.append(pull_op(spec, Batch(spec, words, view), None))
        ask = Exchange(tuple(pushes), done is not None, tuple(op for op, _ in pulls))
        self._client.exchange(ask).wait()
        if following is not None:
            following.inputs, following.outputs = (finish() for _, finish in pulls)

    def fetch(self, words: int) -> np.ndarray:
        """Pull the vectors of all words."""
        rows = [
            self._client.pull("in", np.arange(at, min(at + FETCHED, words), dtype=np.int64)).wait()
            for at in range(0, words, FETCHED)
        ]
        return torch.cat(rows).numpy()

    def figures(self) -> dict[str, Any]:
        return {
            "words": self._words,
            "clock": self._clock,
            "epochs": self._epochs,
            "seconds": self._seconds,
            "bytes_pushed": self._client.bytes_pushed,
            "bytes_pulled": self._client.bytes_pulled,
        }
