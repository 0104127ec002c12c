"""`shoal bench dense --replicas K`: the cost of replicas, beside the same push with one.

Two clusters run on this host at once, one of a server and one of K servers with a copy of every row
on each; acknowledged `sgd` pushes go to them by turns. The ceiling is the push to one replica. With
two replicas of 64 MiB, the peer is the copies and additions of such a push in bare processes: two
servers, which share these cores with their caller (`bare_chain.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import cycle

import torch

from shoal.apps.bench.baselines.bare_chain import BareChain
from shoal.apps.bench.clusters import one_worker
from shoal.apps.bench.rows import Call, Row, beside, by_turns, gigabytes, throughput
from shoal.apps.bench.suites.dense import BUFFERS, CALLS, MIB, table_of
from shoal.client.client import Client
from shoal.storage.run_folder import RunFolder

COUNT = 2


def rows(folder: RunFolder, rounds: int, replicas: int) -> Iterator[Row]:
    for size in CALLS:
        yield _row(folder, rounds, replicas, size)


def _row(folder: RunFolder, rounds: int, replicas: int, size: int) -> Row:
    table, cores = table_of(size), os.sched_getaffinity(0)
    buffers = [torch.ones(table.rows) for _ in range(BUFFERS)]
    source = cycle(buffers)

    def push(client: Client) -> None:
        client.blocking.push("bench", next(source))

    calls: list[Call] = []
    with ExitStack() as stack:
        for servers in (1, replicas):
            own = RunFolder.create(folder.path, f"{servers}-{size}")
            cluster = one_worker(own, table, servers, replicas=servers)
            processes, client = stack.enter_context(cluster)
            calls.append(partial(push, client))
        if replicas == 2 and size > 1:
            calls.append(stack.enter_context(closing(BareChain(processes, buffers))).call)
        sides = [(call, cores) for call in calls]
        alone, chained, *others = by_turns(sides, CALLS[size], rounds, warm_up=CALLS[size])
    row = throughput(f"push {size} MiB local, {replicas} replicas", size * MIB, chained, alone)
    return beside(row, "bare processes", gigabytes(size * MIB, others[0])) if others else row
