"""`shoal bench dense`: whole tables, pushed and pulled as training does.

Pushes are of `sgd`, from more buffers than a cache holds, and acknowledged before the next begins;
each pull follows a push, so that it fetches rows that have changed. The tables have
`nonfinite="allow"`: a bare copy does not look for NaNs either (decision 0009 has what that costs).

    local, 64 MiB   beside a copy of as much memory by one thread
    local, 1 MiB    beside a bare hand-off: one process copies into shared memory, another one out
    tcp, tls        beside a bare socket
    looked at       a push by `client.push` and an advance, to a table that refuses NaNs
    into a round    the same to a `bsp` table: it is merged and applied when the advance has come
    in place        from `shoal.shared_zeros`, as the gradients of models are: no copy is sent

Peers hold the rows in another process, and apply the update, too: over tcp gloo's `send` and
`recv`, local a Ray actor (where the `bench` extra is installed). They are measured after ours,
because Ray's processes are never idle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from itertools import cycle, islice
from typing import Any

import msgspec
import torch

from shoal.apps.bench.baselines.ceilings import Echo, HandOff
from shoal.apps.bench.baselines.peers import gloo, ray_actor
from shoal.apps.bench.clusters import one_worker
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
from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import bsp
from shoal.tables.spec import Access, TableSpec
from shoal.transport.shortcut import without_shortcut
from shoal.transport.tensors import shared_zeros

MIB = 1 << 20
CALLS = {1: 50, 64: 3}  # in a batch, by MiB
BUFFERS = 4
WARM_UP = 6
PEERS = {"local": "Ray actor", "tcp": "gloo"}

LARGE = 64  # MiB of the pushes that are looked at, and of those into a round
KINDS: dict[str, dict[str, Any]] = {
    "in place": {},
    "looked at": {"nonfinite": "reject"},
    "into a round": {"consistency": bsp()},
    "into a round in place": {"consistency": bsp()},
}  # what differs in their tables

COUNT = 2 * 2 * len(CALLS) + len(KINDS)


def rows(
    folder: RunFolder, rounds: int, transports: Sequence[str] = ("unix", "tcp")
) -> Iterator[Row]:
    for scheme in transports:
        for size in CALLS:
            yield from _rows(folder, "local" if scheme == "unix" else scheme, size, rounds)
    for kind, differs in KINDS.items() if "unix" in transports else ():
        table = msgspec.structs.replace(table_of(LARGE), **differs)
        yield _row(folder, f"push {LARGE} MiB {kind}", table, rounds)


def _row(folder: RunFolder, name: str, table: TableSpec, rounds: int) -> Row:
    """Return the row of pushes by `client.push`, beside a copy of as much memory."""
    memory = shared_zeros if "in place" in name else torch.zeros
    buffers = [memory(table.rows).fill_(1.0) for _ in range(BUFFERS)]
    out = torch.zeros(table.rows)
    ours: Batches = []
    bounds: Batches = []
    with one_worker(folder, table) as (_, client):

        def push(values: torch.Tensor) -> None:
            pushed = client.push("bench", values)
            client.advance().wait()
            pushed.wait()

        for each in islice(cycle(buffers), WARM_UP):
            push(each)
        for _ in range(rounds):
            ours.append([timed(partial(push, each)) for each in buffers])
            bounds.append([timed(partial(out.copy_, each)) for each in buffers])
    return throughput(name, LARGE * MIB, ours, bounds)


def _rows(folder: RunFolder, scheme: str, size: int, rounds: int) -> Iterator[Row]:
    """Yield the rows of a push and a pull, with a fresh cluster of one server and the ceilings."""
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    table = table_of(size)
    buffers = [torch.ones(table.rows) for _ in range(BUFFERS)]
    out = torch.zeros(table.rows)
    server = "" if scheme == "local" else f"{scheme}://127.0.0.1:0"
    ours, theirs = [], []  # by round, then by side
    with (
        without_shortcut(),
        one_worker(folder, table, server_listen=server) as (processes, client),
        ExitStack() as partners,
    ):
        bounds = _ceilings(processes, scheme, buffers, out, cores - one or cores, partners)
        _measure(client, buffers, out, WARM_UP)
        for _ in range(rounds):
            ours.append(_measure(client, buffers, out, CALLS[size]))
            with on(one):
                bare = by_turns([(call, one) for call in bounds], CALLS[size], 1, warm_up=1)
            theirs.append([batch for [batch] in bare])
        source = cycle(buffers)
        with _peer(scheme, processes, source, out) as calls:  # None where there is none
            peers = by_turns([(each, cores) for each in calls or ()], CALLS[size], rounds, WARM_UP)
    ceilings = list(zip(*theirs, strict=True))
    for at, (what, mine) in enumerate(zip(("push", "pull"), zip(*ours, strict=True), strict=True)):
        bound = ceilings[min(at, len(ceilings) - 1)]
        row = throughput(f"{what} {size} MiB {scheme}", size * MIB, list(mine), list(bound))
        yield beside(row, PEERS[scheme], gigabytes(size * MIB, peers[at])) if peers else row


def _peer(
    scheme: str, processes: Processes, source: Iterator[torch.Tensor], out: torch.Tensor
) -> AbstractContextManager[Sequence[Call] | None]:
    """Return the context with the calls of the peer, which encrypts nothing."""
    if scheme == "tls":
        return nullcontext()
    return gloo(processes, source, out) if scheme == "tcp" else ray_actor(source, out)


def table_of(size: int) -> TableSpec:
    """Return a table of `size` MiB."""
    access = Access("sgd", {"lr": 1e-3})
    return TableSpec("bench", size * MIB // 4, access=access, nonfinite="allow")


def _measure(client: Client, buffers: list[torch.Tensor], out: torch.Tensor, count: int) -> Batches:
    """Measure a batch of pushes and one of pulls, with a pull after each push."""
    pushes, pulls = [], []
    for values in islice(cycle(buffers), count):
        pushes.append(timed(partial(client.blocking.push, "bench", values)))
        pulls.append(timed(partial(client.blocking.pull, "bench", out=out)))
    return [pushes, pulls]


def _ceilings(
    processes: Processes,
    scheme: str,
    buffers: list[torch.Tensor],
    out: torch.Tensor,
    cores: set[int],
    partners: ExitStack,
) -> list[Call]:
    """Return the calls of the ceilings: one for both rows, or one for each."""
    nbytes = out.nbytes
    if scheme != "local":
        there = Echo(processes, "there", scheme, nbytes, 1, cores)
        back = Echo(processes, "back", scheme, 1, nbytes, cores)
        return [partners.enter_context(closing(each)).call for each in (there, back)]
    if nbytes > MIB:
        source = cycle(buffers)
        return [lambda: out.copy_(next(source))]
    views = [buffer.view(torch.uint8).numpy().data for buffer in buffers]
    return [partners.enter_context(closing(HandOff(processes, "hand-off", views, cores))).call]
