"""`shoal bench wire`: one exchange beside a bare socket.

The ceiling's two processes have a core each, as those have that compute. A ping-pong that does
nothing else is faster when both share one core, where nobody has to be woken up on another: that
is `together`, beside the small exchanges.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from shoal.apps.bench.baselines.ceilings import Echo
from shoal.apps.bench.rows import Call, Row, Side, by_turns, latency, microseconds, throughput
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import start_cluster
from shoal.engines.local import LocalEngine
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import TableSpec

SMALL = 64
LARGE = 1 << 20
CALLS = {SMALL: 400, LARGE: 50}  # a batch
EXCHANGES = (("push_pull 64 B", SMALL, SMALL), ("push 1 MiB", LARGE, 1), ("pull 1 MiB", 1, LARGE))

COUNT = 2 * len(EXCHANGES)


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    for scheme in ("unix", "tcp"):
        for index in range(len(EXCHANGES)):
            yield _row(folder, scheme, index, rounds)


def _row(folder: RunFolder, scheme: str, index: int, rounds: int) -> Row:
    """One row: a fresh cluster of one server, and echo processes for the ceiling."""
    what, nbytes, reply = EXCHANGES[index]
    name, size = f"{what} {scheme}", max(nbytes, reply)
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    with LocalEngine(folder) as engine:
        tcp = scheme == "tcp"
        server = "tcp://127.0.0.1:0" if tcp else ""
        scheduler = start_cluster(engine, 1, 1, server_listen=server)
        apart = Echo(engine, "echo-apart", tcp, nbytes, reply, cores - one or cores)
        together = Echo(engine, "echo-together", tcp, nbytes, reply, one)
        client = Client(scheduler, ClientOptions())
        try:
            client.create_table(TableSpec("bench", size // 4, merge="sum"))
            sides: list[Side] = [(_call(client, index, size), cores), (apart.call, one)]
            if size == SMALL:
                sides.append((together.call, one))
            batches = by_turns(sides, CALLS[size], rounds)
        finally:
            apart.close()
            together.close()
            client.close()
        engine.finish()
    if size == SMALL:
        return latency(name, *batches[:2], together=microseconds(batches[2]))
    return throughput(name, size, *batches)


def _call(client: Client, index: int, size: int) -> Call:
    values = torch.ones(size // 4)
    out = torch.empty(size // 4)
    if index == 0:
        return lambda: client.blocking.push_pull("bench", values, out=out)
    if index == 1:
        return lambda: client.blocking.push("bench", values)
    return lambda: client.blocking.pull("bench", out=out)
