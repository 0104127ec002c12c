"""`shoal bench saturation`: small exchanges of several workers with one server.

    N workers   thousands of push_pulls of 64 bytes a second, of N workers that wait for each
                answer. Ceiling: as many clients of a bare server that echoes 64 bytes

Beside the rates is the processor time of the server for each exchange, and that of the bare server.
Both kinds are measured by turns, and figures are medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from statistics import median

import torch

from shoal.apps.bench.baselines.crowd import SMALL, Crowd
from shoal.apps.bench.processor_time import spent
from shoal.apps.bench.rows import Row, quality
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import TableSpec

WORKERS = (1, 2, 4, 8)
WARM_UP_S, MEASURED_S = 0.2, 0.5  # of each turn
COUNT = len(WORKERS)
ROUNDS = 5
ENDED, PUSHED = 0, 1  # elements of the table: the number of turns that have ended, and of pushes
BENCH = TableSpec("bench", SMALL // 4, merge="sum")

Turn = tuple[float, float]  # exchanges a second, and the server's microseconds for each


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    for workers in WORKERS:
        yield _row(folder, workers, rounds)


def _row(folder: RunFolder, workers: int, rounds: int) -> Row:
    """Return a row, with a fresh cluster; its workers wait while the bare server is measured."""
    ours: list[Turn] = []
    bare: list[Turn] = []
    with Processes(folder) as processes:
        scheduler = start_cluster(processes, 1, workers + 1)
        for rank in range(1, workers + 1):
            args = {"scheduler": scheduler, "rank": rank, "turns": rounds}
            processes.start(Task(f"worker-{rank}", f"{__name__}:work", args))
        with Client(scheduler, ClientOptions(rank=0)) as client:
            client.create_table(BENCH)
            out, end = torch.zeros(BENCH.rows), torch.zeros(BENCH.rows)
            end[ENDED] = 1

            def pushed() -> float:
                return float(client.blocking.pull("bench", out=out)[PUSHED])

            for turn in range(rounds):
                with closing(Crowd(processes, f"bare-{turn}", workers)) as crowd:
                    bare.append(_measure(crowd.answers, crowd.pid))
                client.barrier(f"begin {turn}")
                ours.append(_measure(pushed, processes.pid("server-0")))
                client.blocking.push("bench", end)
        processes.finish()
    rate, cpu = (median(each) for each in zip(*ours, strict=True))
    bound, least = (median(each) for each in zip(*bare, strict=True))
    name = f"{workers} worker{'s' if workers > 1 else ''}"
    return quality(name, rate / 1e3, "k/s", bound / 1e3, server_cpu=cpu, bare_cpu=least)


def work(scheduler: str, rank: int, turns: int) -> None:
    """Push and pull until each turn has ended, in a process of its own."""
    torch.set_num_threads(1)
    values, out = torch.zeros(BENCH.rows), torch.zeros(BENCH.rows)
    values[PUSHED] = 1
    with Client(scheduler, ClientOptions(rank=rank)) as client:
        client.create_table(BENCH)
        for turn in range(turns):
            client.barrier(f"begin {turn}")
            while out[ENDED] <= turn:
                client.blocking.push_pull("bench", values, out=out)


def _measure(count: Callable[[], float], server: int) -> Turn:
    """Measure a turn, once it is under way.

    The load is in other processes: all that is done here is to let the measured time pass.
    """
    time.sleep(WARM_UP_S)
    first, before, begin = count(), spent(server), time.perf_counter()
    time.sleep(MEASURED_S)
    done, cpu, took = count() - first, spent(server) - before, time.perf_counter() - begin
    return done / took, 1e6 * cpu / max(done, 1)
