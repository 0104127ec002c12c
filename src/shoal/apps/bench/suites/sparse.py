"""`shoal bench sparse`: pushes and pulls of rows by key, as models with huge embeddings make them.

One server holds a million rows of 16 float32 with AdaGrad's state. Each call pushes updates of
10,000 distinct keys and pulls the same rows; the keys follow Zipf's law. Beside it are the bare
kernels in one process and one thread: look-up and AdaGrad, then look-up and gather.

    push_pull 10k x 16                 two calls under way, as in a worker that prefetches
    push_pull 10k x 16, one at a time  the next call begins when the last one has ended
    own method 10k x 16                the update alone, in this process, by a user's access method:
                                       AdaGrad with a decay and a count per row (`examples/
                                       own_method.py`); the ceiling is the built-in AdaGrad

`growth.py` has two more rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from shoal.apps.bench.clusters import one_worker
from shoal.apps.bench.rows import Row, Side, by_turns, rate
from shoal.apps.bench.suites import growth as growing
from shoal.client.client import Client
from shoal.node.future import Future
from shoal.storage.run_folder import RunFolder
from shoal.tables.own_methods import access_method
from shoal.tables.sparse.index import KeyIndex
from shoal.tables.sparse.optimizers import RowMethod, row_method_of
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.spec import Access, TableSpec

RESIDENT = 1_000_000
KEYS = 10_000
WIDTH = 16
BATCHES = 30
CALLS = 30
SPEC = TableSpec("bench", 0, (WIDTH,), access=Access("adagrad", {"lr": 0.1}), kind="sparse").cut(1)

UNDER_WAY = 2

COUNT = 3 + growing.COUNT


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    cores = os.sched_getaffinity(0)
    resident = np.random.default_rng(0).permutation(RESIDENT).astype(np.uint64)
    batches = zipf_batches(resident)
    with one_worker(folder, SPEC) as (_, client):
        for start in range(0, RESIDENT, KEYS):
            client.pull("bench", keys=resident[start : start + KEYS]).wait()
        ours, bare = Caller(client, batches), Bare(resident, batches)
        sides = [(ours.pipelined, cores), (ours.blocking, cores), (bare.call, {min(cores)})]
        two, one, bound = by_turns(sides, CALLS, rounds)
    yield rate("push_pull 10k x 16", KEYS, "M keys/s", two, bound)
    yield rate("push_pull 10k x 16, one at a time", KEYS, "M keys/s", one, bound)
    yield _own_method(batches, rounds)
    yield from growing.rows(folder, rounds)


@access_method("bench.fading", state=lambda width: width + 1)
def fading(
    row: Any, state: Any, update: Any, lr: float = 0.1, decay: float = 0.99, eps: float = 1e-10
) -> None:
    """Apply AdaGrad with a decay and a count per row, as an access method of a user does."""
    width = row.size
    state[width] += 1
    for j in range(width):
        g = update[j]
        s = decay * state[j] + g * g
        state[j] = s
        row[j] -= lr * g / (np.sqrt(s) + eps)


def _own_method(batches: list[np.ndarray], rounds: int) -> Row:
    """Measure updates by a user's method and by the built-in one, of records in the same memory."""
    own = replace(SPEC, access=Access("bench.fading"))
    stride = 2 * WIDTH + 1
    memory = np.ones(RESIDENT * stride, np.float32)
    updates = torch.randn(KEYS, WIDTH).numpy()
    sides: list[Side] = []
    for spec in (own, SPEC):
        method, places = row_method_of(spec), cycle(batches)  # the keys serve as numbers of records

        def update(method: RowMethod = method, places: Iterator[np.ndarray] = places) -> None:
            method.apply(memory, next(places), updates, stride, 0, None)

        sides.append((update, {min(os.sched_getaffinity(0))}))
    ours, built_in = by_turns(sides, CALLS, rounds)
    return rate("own method 10k x 16", KEYS, "M keys/s", ours, built_in)


class Caller:
    """A worker that pushes and pulls batch after batch."""

    def __init__(self, client: Client, batches: list[np.ndarray]) -> None:
        self._client = client
        self._batches = cycle(batches)
        random = torch.Generator().manual_seed(0)
        buffers = [
            (torch.randn(KEYS, WIDTH, generator=random), torch.empty(KEYS, WIDTH))
            for _ in range(UNDER_WAY)
        ]
        self._buffers = cycle(buffers)
        self._under_way: deque[Future] = deque()

    def blocking(self) -> None:
        while self._under_way:
            self._under_way.popleft().wait()
        updates, out = next(self._buffers)
        self._client.blocking.push_pull("bench", updates, next(self._batches), out)

    def pipelined(self) -> None:
        """Begin a batch, and wait until fewer than two are under way."""
        updates, out = next(self._buffers)
        keys = next(self._batches)
        self._under_way.append(self._client.push_pull("bench", updates, keys, out))
        if len(self._under_way) == UNDER_WAY:
            self._under_way.popleft().wait()


class Bare:
    """The kernels of a sparse shard, called in this process."""

    def __init__(self, resident: np.ndarray, batches: list[np.ndarray]) -> None:
        self._batches = cycle(batches)
        self._updates = torch.randn(KEYS, WIDTH).numpy()
        self._out = np.empty((KEYS, WIDTH), np.float32)
        self._shard = SparseShard(SPEC, SPEC.keys)
        self._index = KeyIndex()
        self._index.find_or_add(resident, np.empty_like(resident))
        for start in range(0, len(resident), KEYS):
            load = self._shard.stage_keys(SPEC.keys, KEYS)
            load.keys[:] = resident[start : start + KEYS]
            self._shard.read_keys(load)
        self._method = row_method_of(SPEC)

    def call(self) -> None:
        keys, memory, stride = next(self._batches), self._shard.records, self._shard.stride
        self._method.apply(memory, self._index.find(keys), self._updates, stride, 0, None)
        self._method.read(memory, self._index.find(keys), self._out, stride)


def zipf_batches(resident: np.ndarray) -> list[np.ndarray]:
    """Return batches of distinct keys, drawn without replacement with weights 1 / rank."""
    random = np.random.default_rng(1)
    weights = -np.log(np.arange(1, len(resident) + 1))
    chosen = []
    for _ in range(BATCHES):  # the largest of weighted exponential races (Gumbel) are such a sample
        races = weights + random.gumbel(size=len(resident))
        chosen.append(random.permutation(resident[np.argpartition(-races, KEYS)[:KEYS]]))
    return chosen
