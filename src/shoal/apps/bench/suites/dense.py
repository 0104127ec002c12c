"""`shoal bench dense`: whole tables, pushed and pulled as training does.

Pushes are of `sgd`, from more buffers than a cache holds, and acknowledged before the next begins;
each pull follows a push, so that it fetches rows that have changed. The tables have
`nonfinite="allow"`: a bare copy does not look for NaNs either (decision 0009 has what that costs).

    local, 64 MiB   beside a copy of as much memory by one thread
    local, 1 MiB    beside a bare hand-off: one process copies into shared memory, another one out
    tcp             beside a bare socket

Peers hold the rows in a process of theirs, and apply the update too: over tcp gloo's `send` and
`recv`, local a Ray actor (where the `bench` extra is installed). They are measured after ours, for
Ray's processes are never idle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle

import torch

from shoal.apps.bench.baselines.ceilings import Echo, HandOff
from shoal.apps.bench.baselines.peers import gloo, ray_actor
from shoal.apps.bench.rows import (
    Batches,
    Call,
    Row,
    beside,
    by_turns,
    gigabytes,
    on,
    throughput,
    timed,
)
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import start_cluster
from shoal.engines.local import LocalEngine
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import Access, TableSpec

MIB = 1 << 20
CALLS = {1: 50, 64: 3}  # a batch, by MiB
BUFFERS = 4
WARM_UP = 6
PEERS = {"local": "Ray actor", "tcp": "gloo"}

COUNT = 8


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    for scheme in ("local", "tcp"):
        for size in CALLS:
            yield from _rows(folder, scheme, size, rounds)


def _rows(folder: RunFolder, scheme: str, size: int, rounds: int) -> list[Row]:
    """A push's row and a pull's: a fresh cluster of one server, and the ceilings' processes."""
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    with LocalEngine(folder) as engine:
        server = "tcp://127.0.0.1:0" if scheme == "tcp" else ""
        scheduler = start_cluster(engine, 1, 1, server_listen=server)
        buffers = [torch.ones(size * MIB // 4) for _ in range(BUFFERS)]
        out = torch.zeros(size * MIB // 4)
        bounds, partners = _ceilings(engine, scheme, size, buffers, out, cores - one or cores)
        client = Client(scheduler, ClientOptions())
        try:
            access = Access("sgd", {"lr": 1e-3})
            spec = TableSpec("bench", size * MIB // 4, access=access, nonfinite="allow")
            client.create_table(spec)
            ours = _measure(client, buffers, out, 1, WARM_UP)
            ours = [[], []]
            theirs: list[Batches] = [[] for _ in bounds]
            for _ in range(rounds):
                for all_batches, batches in zip(
                    ours, _measure(client, buffers, out, 1, CALLS[size]), strict=True
                ):
                    all_batches += batches
                with on(one):
                    bare = by_turns([(call, one) for call in bounds], CALLS[size], 1, warm_up=1)
                for all_batches, batches in zip(theirs, bare, strict=True):
                    all_batches += batches
            peers = _peers(engine, scheme, buffers, out, CALLS[size], rounds)
        finally:
            for each in partners:
                each.close()
            client.close()
        engine.finish()
    names = (f"{what} {size} MiB {scheme}" for what in ("push", "pull"))
    found = []
    for at, (name, mine) in enumerate(zip(names, ours, strict=True)):
        row = throughput(name, size * MIB, mine, theirs[min(at, len(theirs) - 1)])
        if peers:
            row = beside(row, PEERS[scheme], gigabytes(size * MIB, peers[at]))
        found.append(row)
    return found


def _peers(
    engine: LocalEngine,
    scheme: str,
    buffers: list[torch.Tensor],
    out: torch.Tensor,
    count: int,
    rounds: int,
) -> list[Batches]:
    """Batches of a peer's pushes and pulls; none where it is not installed."""
    source = cycle(buffers)
    peer = gloo(engine, source, out) if scheme == "tcp" else ray_actor(source, out)
    with peer as calls:
        if calls is None:
            return []
        cores = os.sched_getaffinity(0)
        return by_turns([(call, cores) for call in calls], count, rounds, warm_up=WARM_UP)


def _measure(
    client: Client, buffers: list[torch.Tensor], out: torch.Tensor, rounds: int, count: int
) -> list[Batches]:
    """Batches of pushes and of pulls, a pull after each push."""
    source = cycle(buffers)
    pushes: Batches = []
    pulls: Batches = []
    for _ in range(rounds):
        pushed, pulled = [], []
        for _ in range(count):
            values = next(source)
            pushed.append(timed(lambda values=values: client.blocking.push("bench", values)))  # type: ignore[misc]
            pulled.append(timed(lambda: client.blocking.pull("bench", out=out)))
        pushes.append(pushed)
        pulls.append(pulled)
    return [pushes, pulls]


def _ceilings(
    engine: LocalEngine,
    scheme: str,
    size: int,
    buffers: list[torch.Tensor],
    out: torch.Tensor,
    cores: set[int],
) -> tuple[list[Call], list[Echo | HandOff]]:
    """The calls beside ours (one for both rows, or one for each), and who has to be closed."""
    nbytes = size * MIB
    if scheme == "tcp":
        there = Echo(engine, "there", True, nbytes, 1, cores)
        back = Echo(engine, "back", True, 1, nbytes, cores)
        return [there.call, back.call], [there, back]
    if size > 1:
        source = cycle(buffers)
        return [lambda: out.copy_(next(source))], []
    views = [buffer.view(torch.uint8).numpy().data for buffer in buffers]
    bare = HandOff(engine, "hand-off", views, cores)
    return [bare.call], [bare]
