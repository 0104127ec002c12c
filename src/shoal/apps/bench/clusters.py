"""Clusters to measure, with one worker in this process, or with two that measure together.

Both workers make the same calls of Shoal and of torch.distributed, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoal.apps.bench.baselines.peers import gloo_group
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.node.memory import keep_memory
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import TableSpec


@contextmanager
def one_worker(
    folder: RunFolder, table: TableSpec, servers: int = 1, **options: Any
) -> Iterator[tuple[Processes, Client]]:
    """Start a cluster with a table, and join as its only worker.

    options:  as for `start_cluster`
    """
    with Processes(folder) as processes:
        scheduler = start_cluster(processes, servers, 1, **options)
        with Client(scheduler, ClientOptions(token=processes.token)) as client:
            client.create_table(table)
            yield processes, client
        processes.finish()


@contextmanager
def first_of_two(
    folder: RunFolder, servers: int, partner: str, rounds: int
) -> Iterator[tuple[Processes, Client]]:
    """Start a cluster and a process for rank 1, and join as rank 0; join a group of gloo, too.

    partner:  the entry of the other process, a function that uses `second_of_two`
    """
    with Processes(folder) as processes:
        scheduler = start_cluster(processes, servers, 2)
        rendezvous = f"file://{processes.private}/rendezvous"
        given = {"scheduler": scheduler, "rendezvous": rendezvous, "rounds": rounds}
        processes.start(Task("partner", partner, given))
        with Client(scheduler, ClientOptions(rank=0)) as client, gloo_group(0, rendezvous):
            yield processes, client
        processes.finish()


@contextmanager
def second_of_two(scheduler: str, rendezvous: str) -> Iterator[Client]:
    """Join as rank 1, from a process of its own."""
    torch.set_num_threads(1)
    keep_memory()
    with Client(scheduler, ClientOptions(rank=1)) as client, gloo_group(1, rendezvous):
        yield client
