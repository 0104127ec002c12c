"""`shoal bench wire`: one exchange beside a bare socket.

The ceiling's two processes have a core each, as processes that compute do. A ping-pong that does
nothing else is faster when both processes share one core, where none has to be woken up on another
core: that is `together`, beside the small exchanges.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing

import torch

from shoal.apps.bench.baselines.ceilings import Echo
from shoal.apps.bench.clusters import one_worker
from shoal.apps.bench.rows import Call, Row, Side, by_turns, latency, microseconds, throughput
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import TableSpec
from shoal.transport.shortcut import without_shortcut

SMALL = 64
LARGE = 1 << 20
CALLS = {SMALL: 400, LARGE: 50}  # in a batch
EXCHANGES = {"push_pull 64 B": (SMALL, SMALL), "push 1 MiB": (LARGE, 1), "pull 1 MiB": (1, LARGE)}

COUNT = 2 * len(EXCHANGES)


def rows(
    folder: RunFolder, rounds: int, transports: Sequence[str] = ("unix", "tcp")
) -> Iterator[Row]:
    for scheme in transports:
        for what in EXCHANGES:
            yield _row(folder, scheme, what, rounds)


def _row(folder: RunFolder, scheme: str, what: str, rounds: int) -> Row:
    """Return one row, with a fresh cluster of one server and echo processes for the ceiling."""
    nbytes, reply = EXCHANGES[what]
    name, size = f"{what} {scheme}", max(nbytes, reply)
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    values, out = torch.ones(size // 4), torch.empty(size // 4)
    table = TableSpec("bench", size // 4, merge="sum")
    server = "" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
    with (
        without_shortcut(),
        one_worker(folder, table, server_listen=server) as (processes, client),
        closing(
            Echo(processes, "echo-apart", scheme, nbytes, reply, cores - one or cores)
        ) as apart,
        closing(Echo(processes, "echo-together", scheme, nbytes, reply, one)) as together,
    ):
        calls: dict[str, Call] = {
            "push_pull 64 B": lambda: client.blocking.push_pull("bench", values, out=out),
            "push 1 MiB": lambda: client.blocking.push("bench", values),
            "pull 1 MiB": lambda: client.blocking.pull("bench", out=out),
        }
        sides: list[Side] = [(calls[what], cores), (apart.call, one)]
        if size == SMALL:
            sides.append((together.call, one))
        batches = by_turns(sides, CALLS[size], rounds)
    if size == SMALL:
        return latency(name, *batches[:2], together=microseconds(batches[2]))
    return throughput(name, size, *batches)
