"""`shoal bench allreduce`: sums over two processes of this machine.

Both sum the same tensors, by turns around our ring and with torch.distributed's gloo, from more
buffers than a cache holds. The ceilings: a bare Unix socket with the same bytes, there and back,
and for 64 MiB the copying of as much memory by one thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import cycle

import torch
import torch.distributed as dist

from shoal.apps.bench.baselines.ceilings import Echo
from shoal.apps.bench.clusters import first_of_two, second_of_two
from shoal.apps.bench.rows import Batches, Call, Row, beside, by_turns, latency, microseconds
from shoal.client.client import Client
from shoal.storage.run_folder import RunFolder

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"4 KiB": (4 * KIB, 200, 50), "64 MiB": (64 * MIB, 4, 2)}  # bytes, calls a batch, warm-up
BUFFERS_BYTES = 256 * MIB

COUNT = len(SIZES)


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    with first_of_two(folder, 0, f"{__name__}:partner", rounds) as (processes, client):
        for name, (nbytes, calls, warm_up) in SIZES.items():
            ours, theirs = measured(client, name, rounds)
            if nbytes < MIB:
                bare = Echo(processes, "bare", "unix", nbytes, nbytes, cores - one or cores)
                [bound] = by_turns([(bare.call, one)], calls, rounds, warm_up)
                bare.close()
            else:
                here, there = torch.ones(nbytes // 4), torch.zeros(nbytes // 4)
                [bound] = by_turns([(partial(here.copy_, there), cores)], calls, rounds, warm_up)
            row = latency(f"allreduce {name}", ours, bound)
            yield beside(row, "gloo", microseconds(theirs))


def partner(scheduler: str, rendezvous: str, rounds: int) -> None:
    """Run the other process."""
    with second_of_two(scheduler, rendezvous) as client:
        for name in SIZES:
            measured(client, name, rounds)


def measured(client: Client, name: str, rounds: int) -> list[Batches]:
    """Measure our calls and gloo's by turns, and return the batches of both."""
    nbytes, calls, warm_up = SIZES[name]
    tensors = [torch.zeros(nbytes // 4) for _ in range(max(1, BUFFERS_BYTES // nbytes // 64 + 1))]
    mine, other = cycle(tensors), cycle(tensors)
    cores = os.sched_getaffinity(0)
    sides: list[Call] = [
        lambda: client.blocking.all_reduce(next(mine)),
        lambda: dist.all_reduce(next(other)),
    ]
    return by_turns([(side, cores) for side in sides], calls, rounds, warm_up)
