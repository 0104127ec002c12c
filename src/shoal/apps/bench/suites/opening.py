"""`shoal bench opening`: the cost of a large table to others while it is declared and trained.

A table of 4 GB with normal values is declared on two servers, each of which has all of it. Another
thread pulls 64 bytes of another table meanwhile. Then rounds of a table of 512 MB are merged,
applied with Adam and replicated on two servers, while another process pulls 64 bytes.

declare          values of a server a second; ceiling: numpy's generator in one thread
longest pull     the longest pull of 64 bytes meanwhile
memory           the growth of a server's peak memory, over the table's size
... of rounds    the longest of these pulls, and the 99th percentile
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from shoal.apps.bench.clusters import one_worker
from shoal.apps.bench.rows import Row, quality, timed
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp, bsp
from shoal.tables.init import Init
from shoal.tables.spec import Access, TableSpec

VALUES, WIDTH = 1 << 30, 1024
SERVERS = REPLICAS = 2
DREW = 1 << 24  # values that the peer draws
LONGEST_S, MEMORY = 0.1, 1.3
COUNT = 5
READERS = "readers"  # the group of the process that pulls
READ_S = 15.0
ROUNDS = 1


def rows(folder: RunFolder, rounds: int, values: int = VALUES) -> Iterator[Row]:
    """Yield the rows of one round, whatever `rounds` is: it needs ten gigabytes."""
    del rounds
    drawn = np.empty(DREW, np.float32)
    generator = np.random.default_rng(0)
    peer = min(
        timed(lambda: generator.standard_normal(out=drawn, dtype=np.float32)) for _ in range(5)
    )
    small = TableSpec("small", 16, consistency=asp())
    large = TableSpec(
        "large", values // WIDTH, (WIDTH,), init=Init("normal", 0.0, 0.01), consistency=asp()
    )
    with one_worker(folder, small, SERVERS, replicas=REPLICAS) as (processes, client):
        pids = [processes.pid(f"server-{rank}") for rank in range(SERVERS)]
        before = max(_peak_bytes(pid) for pid in pids)
        longest, seconds = _declared(client, large)
        most = max(_peak_bytes(pid) for pid in pids) - before
    bound = DREW / peer / 1e6
    yield quality("declare 4 GB normal", values / seconds / 1e6, "M values/s", bound)
    yield quality("longest pull meanwhile", longest, "s", LONGEST_S, "lower")
    yield quality("memory", most / (4 * values), "x", MEMORY, "lower")
    pulls = _pulls_in_rounds(folder, small, values // 8)
    yield quality("longest pull in rounds", pulls["longest"], "s", LONGEST_S, "lower")
    yield quality("p99 of pulls in rounds", pulls["p99"], "s", LONGEST_S, "lower")


def _declared(client: Client, table: TableSpec) -> tuple[float, float]:
    """Declare a table; return the seconds of the longest pull meanwhile, and of the declaration."""
    into = torch.empty(16)
    longest, began = 0.0, time.perf_counter()
    with ThreadPoolExecutor(1) as threads:
        declared = threads.submit(client.create_table, table)
        while not declared.done():
            longest = max(longest, timed(lambda: client.blocking.pull("small", out=into)))
            time.sleep(0.001)  # leaves the processor to the servers
        declared.result()
    return longest, time.perf_counter() - began


def _pulls_in_rounds(folder: RunFolder, small: TableSpec, values: int) -> dict[str, float]:
    """Return the seconds of pulls of a small table while a large one trains: `longest`, `p99`."""
    run = RunFolder.create(folder.path, "rounds")
    rows = values // WIDTH
    large = TableSpec("large", rows, (WIDTH,), access=Access("adam"), consistency=bsp())
    update, model = torch.ones(rows, WIDTH), torch.empty(rows, WIDTH)
    with Processes(run) as processes:
        scheduler = start_cluster(processes, SERVERS, 1, replicas=REPLICAS)
        with Client(scheduler, ClientOptions(token=processes.token)) as client:
            client.create_table(small)
            client.create_table(large)
            given = {"scheduler": scheduler, "folder": str(run.path), "token": processes.token}
            processes.start(Task("reader", f"{__name__}:read_small", given))
            done = run.worker(0) / "result.json"
            while not done.exists():
                client.push_pull("large", update, out=model, advance=True).wait()
        processes.finish()
    [told] = run.results(1, ("longest", "p99"))
    return told


def read_small(scheduler: str, folder: str, token: str) -> None:
    """Pull 64 bytes again and again, and write down how long each pull took."""
    torch.set_num_threads(1)
    into, pulls = torch.empty(16), []
    with Client(scheduler, ClientOptions(token=token, group=READERS)) as client:
        client.blocking.pull("/small", out=into)
        until = time.monotonic() + READ_S
        while time.monotonic() < until:
            pulls.append(timed(lambda: client.blocking.pull("/small", out=into)))
            time.sleep(0.001)  # leaves the processor to the servers
    pulls.sort()
    told = {"longest": pulls[-1], "p99": pulls[-1 - len(pulls) // 100]}
    RunFolder(Path(folder)).write_result(0, told)


def _peak_bytes(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
