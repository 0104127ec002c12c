"""`shoal bench dense --replicas K`: what replicas cost, beside the same with one.

Two clusters of this host at once, one of a server and one of K servers with a copy of every row on
each; acknowledged `sgd` pushes go to them by turns. The ceiling is the push to one replica. With
two, beside it, what the copies and additions of such a push come to in bare processes, of which two
share these cores with a third (`bare_chain.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path

import torch

from shoal.apps.bench.baselines.bare_chain import BareChain
from shoal.apps.bench.rows import Batches, Call, Row, beside, gigabytes, throughput, timed
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import start_cluster
from shoal.engines.local import LocalEngine
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import Access, TableSpec

MIB = 1 << 20
CALLS = {1: 50, 64: 3}  # a batch, by MiB
BUFFERS = 4
COUNT = 2


def rows(folder: RunFolder, rounds: int, replicas: int) -> Iterator[Row]:
    for size in CALLS:
        yield _row(folder, rounds, replicas, size)


def _row(folder: RunFolder, rounds: int, replicas: int, size: int) -> Row:
    with ExitStack() as stack:
        engines = [_engine(folder.path, each, size, stack) for each in (1, replicas)]
        buffers = [torch.ones(size * MIB // 4) for _ in range(BUFFERS)]
        source = cycle(buffers)
        calls: list[Call] = []
        for engine, servers in zip(engines, (1, replicas), strict=True):
            client = _client(engine, servers, size, stack)
            calls.append(lambda client=client: client.blocking.push("bench", next(source)))  # type: ignore[misc]
        if replicas == 2 and size > 1:
            bare = stack.enter_context(closing(BareChain(engines[1], buffers)))
            calls.append(bare.call)
        found: list[Batches] = [[] for _ in calls]
        for number in range(rounds + 1):
            for call, batches in zip(calls, found, strict=True):
                batch = [timed(call) for _ in range(CALLS[size])]
                if number:  # the first is to warm up
                    batches.append(batch)
    alone, chained, *others = found
    row = throughput(f"push {size} MiB local, {replicas} replicas", size * MIB, chained, alone)
    return beside(row, "bare processes", gigabytes(size * MIB, others[0])) if others else row


def _engine(path: Path, replicas: int, size: int, stack: ExitStack) -> LocalEngine:
    folder = RunFolder.create(path, f"{replicas}-{size}")
    engine = stack.enter_context(LocalEngine(folder))
    stack.callback(engine.finish)
    return engine


def _client(engine: LocalEngine, replicas: int, size: int, stack: ExitStack) -> Client:
    """Of a cluster with a table of `size` MiB on so many servers, all of it on each."""
    scheduler = start_cluster(engine, replicas, 1, replicas=replicas)
    client = stack.enter_context(closing(Client(scheduler, ClientOptions())))
    access = Access("sgd", {"lr": 1e-3})
    client.create_table(TableSpec("bench", size * MIB // 4, access=access, nonfinite="allow"))
    return client
