"""Two workers that measure together, ours and torch.distributed's: the same calls in one order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.collective.process_group import ProcessGroup
from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.local import LocalEngine
from shoal.node.memory import keep_memory
from shoal.storage.run_folder import RunFolder


@contextmanager
def first_of_two(
    folder: RunFolder, servers: int, partner: str, rounds: int
) -> Iterator[tuple[LocalEngine, Client, ProcessGroup]]:
    """Rank 0, here. `partner` is the entry of the other process, which is `second_of_two`."""
    with LocalEngine(folder) as engine:
        scheduler = start_cluster(engine, servers, 2)
        rendezvous = f"file://{engine.sockets}/rendezvous"
        given = {"scheduler": scheduler, "rendezvous": rendezvous, "rounds": rounds}
        engine.start(Task("partner", partner, given))
        with Client(scheduler, ClientOptions(rank=0)) as client:
            group = ProcessGroup(0, 2, rendezvous)
            yield engine, client, group
            group.close()
        engine.finish()


@contextmanager
def second_of_two(scheduler: str, rendezvous: str) -> Iterator[tuple[Client, ProcessGroup]]:
    """Rank 1, in a process of its own."""
    torch.set_num_threads(1)
    keep_memory()
    with Client(scheduler, ClientOptions(rank=1)) as client:
        group = ProcessGroup(1, 2, rendezvous)
        yield client, group
        group.close()
