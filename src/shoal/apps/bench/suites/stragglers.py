"""`shoal bench stragglers`: workers that are slow by turns, and one that always is.

Four workers use one server. Their steps are 20 ms of sleep, in place of compute so that two cores
suffice, and one exchange. First, at each step one worker that is drawn at random takes four times
as long: a worker that may be ahead by some clocks waits less for it (SSP, Ho et al. 2013). Then one
worker always does, and staleness is soon used up: it helps to go on without that worker.

idle, staleness S    the part of a worker's time in which it waits for others. Ceiling: the same
                     draws where exchanges take no time
SSP(8) over BSP      samples a second, slow by turns; the ceiling likewise
drop over wait       samples a second with one lasting straggler, from the beginning
waited for it        the part of the time in which others wait for that straggler, by `shoal why`,
                     where it is not dropped
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch

from shoal.apps.bench.rows import Row, quality
from shoal.apps.why import explain
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.engines.roles import configure_log
from shoal.errors import Dropped
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import bsp, ssp
from shoal.tables.spec import Access, TableSpec

WORKERS, STEP_S, SLOW = 4, 0.02, 4
STALENESS = (0, 1, 2, 4, 8, 16)
STEPS = 200  # by turns
LASTING_S, WINDOW_S = 15.0, 1.0
BAR_SSP, BAR_DROP = 1.8, 2.5
COUNT = len(STALENESS) + 3
ROUNDS = 1


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    """Yield the rows of one round, whatever `rounds` is: it takes two minutes."""
    del rounds
    ideal = {staleness: _ideal(staleness) for staleness in STALENESS}
    rates = {}
    for staleness in STALENESS:
        results = _run(folder, staleness, steps=STEPS)
        rates[staleness] = sum(r["steps"] for r in results) / max(r["seconds"] for r in results)
        idle = sum(r["idle_s"] for r in results) / sum(r["seconds"] for r in results)
        yield quality(f"idle, staleness {staleness}", idle, "", ideal[staleness][1], "lower")
    best = ideal[8][0] / ideal[0][0]
    yield quality("SSP(8) over BSP", rates[8] / rates[0], "x", best, bar=BAR_SSP)
    said: dict[str, Any] = {}
    waiting = _run(folder, 0, seconds=LASTING_S, said=said)
    dropping = _run(folder, 0, seconds=LASTING_S, slow_workers="drop")
    ratio = sum(r["steps"] for r in dropping) / sum(r["steps"] for r in waiting)
    yield quality("drop over wait", ratio, "x", WORKERS - 1.0, bar=BAR_DROP)
    yield quality("waited for it", said["slow"].get("worker-0", 0.0), "", 1 - 1 / SLOW)


def _ideal(staleness: int) -> tuple[float, float]:
    """Return (steps a unit of time, idle part of the time) where an exchange takes no time."""
    ends = [[0.0] * WORKERS]  # of each step, for each worker
    idle = 0.0
    for step in range(STEPS):
        allowed = max(ends[max(0, step - staleness)])
        begins = [max(end, allowed) if step else 0.0 for end in ends[-1]]
        idle += sum(begin - end for begin, end in zip(begins, ends[-1], strict=True))
        slow = _slow_at(step)
        ends.append([b + (SLOW if worker == slow else 1) for worker, b in enumerate(begins)])
    last = ends[-1]
    return WORKERS * STEPS / max(last), idle / sum(last)


def _slow_at(step: int) -> int:
    return Random(step).randrange(WORKERS)


def _run(
    folder: RunFolder,
    staleness: int,
    *,
    steps: int = 0,
    seconds: float = 0.0,
    slow_workers: Literal["wait", "drop"] = "wait",
    said: dict[str, Any] | None = None,
) -> Sequence[dict[str, float]]:
    """Return the results of workers that do `steps`, or work for `seconds`.

    steps:   the number of steps, in which workers are slow by turns
    seconds: the time to work with a lasting straggler
    said:    the dictionary to fill with the answer of `shoal why` half-way
    """
    path = RunFolder.create(folder.path, "stragglers")
    with Processes(path) as processes:
        start_cluster(processes, 1, WORKERS, slow_workers=slow_workers, slow_window_s=WINDOW_S)
        entry = f"{__name__}:run_worker"
        how = {
            "scheduler": processes.scheduler,
            "folder": str(path.path.resolve()),
            "staleness": staleness,
            "steps": steps,
            "seconds": seconds,
        }
        for rank in range(WORKERS):
            processes.start(Task(f"worker-{rank}", entry, {**how, "rank": rank}))
        begun = path.worker(0) / "begun"

        def tick() -> None:
            if said is None or said or not begun.exists():
                return
            if time.time() >= begun.stat().st_mtime + seconds / 2:
                said.update(explain(str(path.path)))

        processes.join(tick)
    return path.results(WORKERS, ("steps", "seconds", "idle_s"))


def run_worker(
    scheduler: str,
    rank: int,
    folder: str,
    staleness: int,
    steps: int,
    seconds: float,
) -> None:
    """Work, and write down how long it took and how much of it was waiting."""
    configure_log()
    path = RunFolder(Path(folder))
    with Client(scheduler, ClientOptions(rank=rank)) as client:
        rule = ssp(staleness) if staleness else bsp()
        client.create_table(TableSpec("w", 1024, access=Access("sum"), consistency=rule))
        ones = torch.ones(1024)
        into_rows = torch.empty(1024)
        client.barrier("begin")
        (path.worker(rank) / "begun").touch()
        begin, waited, done = time.monotonic(), 0.0, 0
        try:
            while done < steps or time.monotonic() < begin + seconds:
                late = _slow_at(done) == rank if steps else rank == 0
                time.sleep(STEP_S * (SLOW if late else 1))  # in place of compute
                asked = time.monotonic()
                client.push_pull("w", ones, out=into_rows, advance=True).wait()
                waited += time.monotonic() - asked
                done += 1
            client.advance(last=True).wait()
        except Dropped:
            pass
        told = {"steps": done, "seconds": time.monotonic() - begin, "idle_s": waited}
        path.write_result(rank, told)
