"""`shoal bench dense --replicas K`: what replicas cost, beside the same with one.

Two clusters of this host at once, one of a server and one of K servers with a copy of every row on
each; acknowledged `sgd` pushes go to them by turns. The ceiling is the push to one replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path

import torch

from shoal.apps.bench.rows import Batches, Row, throughput, timed
from shoal.engines.cluster import start_cluster
from shoal.engines.local import LocalEngine
from shoal.runtime.client import Client, ClientOptions
from shoal.runtime.folder import RunFolder
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
        clients = [_cluster(folder.path, each, size, stack) for each in (1, replicas)]
        source = cycle([torch.ones(size * MIB // 4) for _ in range(BUFFERS)])
        found: list[Batches] = [[], []]
        for number in range(rounds + 1):
            for client, batches in zip(clients, found, strict=True):
                batch = [
                    timed(lambda client=client: client.blocking.push("bench", next(source)))  # type: ignore[misc]
                    for _ in range(CALLS[size])
                ]
                if number:  # the first is to warm up
                    batches.append(batch)
    alone, chained = found
    return throughput(f"push {size} MiB local, {replicas} replicas", size * MIB, chained, alone)


def _cluster(path: Path, replicas: int, size: int, stack: ExitStack) -> Client:
    """A client of a cluster with a table of `size` MiB on so many servers, all of it on each."""
    folder = RunFolder.create(path, f"{replicas}-{size}")
    engine = stack.enter_context(LocalEngine(folder))
    stack.callback(engine.finish)
    scheduler = start_cluster(engine, replicas, 1, replicas=replicas)
    client = stack.enter_context(closing(Client(scheduler, ClientOptions())))
    access = Access("sgd", {"lr": 1e-3})
    client.create_table(TableSpec("bench", size * MIB // 4, access=access, nonfinite="allow"))
    return client
