"""The cost of the growth of a sparse table: the longest wait, and memory.

longest wait, growing   the longest of pulls that make 10,000 rows each, until there are ten million
                        of 16 float32, and of pulls of 1,000 existing rows, by turns. Ceiling: the
                        longest of the same pulls when the table grows no more
memory per row          the growth of the server's process. Ceiling: a row and its key
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from shoal.apps.bench.clusters import one_worker
from shoal.apps.bench.rows import Row, latency, quality
from shoal.client.client import Client
from shoal.keys import KeyRange
from shoal.protocol.layout import Layout
from shoal.storage.run_folder import RunFolder
from shoal.tables.init import Init
from shoal.tables.spec import TableSpec

KEYS, KNOWN = 10_000, 1_000
WIDTH = 16
BATCHES = 1_000
FEW = 100  # batches, where fewer than LEAST_ROUNDS are asked for
LEAST_ROUNDS = 3
SPEC = TableSpec("growing", 0, (WIDTH,), kind="sparse", init=Init("uniform"))

COUNT = 2


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    batches = BATCHES if rounds >= LEAST_ROUNDS else FEW
    with one_worker(folder, SPEC) as (processes, client):
        _waits(client, range(1))  # the first call loads code, which is no growth
        server = processes.pid("server-0")
        before = _resident(server)
        growing = _waits(client, range(1, batches))
        grown = _resident(server) - before
        settled = _waits(client, range(1, batches))
    row = latency("longest wait, growing", [growing], [settled])
    longest, bound = max(growing) * 1e3, max(settled) * 1e3
    yield {**row, "value": longest, "ceiling": bound, "ratio": longest / bound, "unit": "ms"}
    bare = Layout(SPEC).part_bytes(KeyRange(0, 1), keys=1)
    value = grown / ((batches - 1) * KEYS)
    yield quality("memory per row", value, "bytes", bare, "lower")


def _waits(client: Client, batches: range) -> list[float]:
    """Return the seconds of each pull: of a batch's rows, then of some rows of earlier batches."""
    random = np.random.default_rng(0)
    out, some = torch.empty(KEYS, WIDTH), torch.empty(KNOWN, WIDTH)
    waits = []
    for number in batches:
        keys = np.arange(number * KEYS, (number + 1) * KEYS, dtype=np.uint64)
        known = random.integers(0, max(1, number) * KEYS, KNOWN).astype(np.uint64)
        for asked, into in ((keys, out), (known, some)):
            begin = time.perf_counter()
            client.blocking.pull(SPEC.name, asked, into)
            waits.append(time.perf_counter() - begin)
    return waits


def _resident(pid: int) -> int:
    """Return the bytes of a process that are in memory."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) * 1024
