"""The processes of `shoal chaos`: workers that log their writes, and a prober."""

from __future__ import annotations

import time
from pathlib import Path
from struct import Struct
from threading import Event, Thread
from typing import Any

import torch

from shoal.apps.chaos.write_log import WriteLog
from shoal.apps.train import worker as training
from shoal.apps.train.progress import Progress
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.roles import configure_log
from shoal.strategies.base import StepResult
from shoal.tables.consistency import asp
from shoal.tables.spec import Access, TableSpec

PROBE = Struct("<dd")  # a probe's beginning and end, monotonic seconds
PROBES = "probes"
OVER = "over"  # a file that exists once all faults are injected
PATIENCE_S, POLL_S = 900.0, 0.02  # more than the injector waits for recovery
FRAGMENTS = 24


class LoggedWrites:
    """The training loop's hooks, with a logged write after every step.

    The job has to last while faults are injected: each step is followed by a pause, and the last
    one waits until all faults are injected.

    seconds, steps:  the least duration of the job, and the number of its steps
    """

    def __init__(
        self, client: Client, hooks: Progress, folder: Path, seconds: float, steps: int
    ) -> None:
        self._hooks = hooks
        self._steps = steps
        self._pause_s = seconds / max(steps, 1)
        self._over = folder / OVER
        self._write_log = WriteLog(client, folder)

    def stepped(self, epoch: int, step: int, result: StepResult) -> None:
        self._hooks.stepped(epoch, step, result)
        self._write_log.push()
        time.sleep(self._pause_s)
        until = time.monotonic() + PATIENCE_S
        while step == self._steps and not self._over.exists():
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)

    def exchanged(self) -> None:
        self._hooks.exchanged()

    def epoch_done(self, epoch: int, step: int) -> None:
        self._hooks.epoch_done(epoch, step)


def run_worker(write_log: str, seconds: float, **arguments: Any) -> None:
    """Train as `shoal train` does, and log writes.

    seconds:  the least duration of the job
    """

    def logged(client: Client, hooks: Progress, steps: int) -> LoggedWrites:
        return LoggedWrites(client, hooks, Path(write_log), seconds, steps)

    training.run_worker(**arguments, watched=logged)


def run_prober(scheduler: str, rank: int, write_log: str, prefix: str, token: str) -> None:
    """Push to all servers again and again, until the workers have ended their training."""
    configure_log()
    options = ClientOptions(rank=rank, token=token)
    table = TableSpec(
        "chaos.probes", FRAGMENTS, (), access=Access("sum"), consistency=asp(), fragment_rows=1
    )
    with Client(scheduler, options) as client:
        client.create_table(table)
        done = Event()
        waiting = Thread(target=_wait_for_the_end, args=(client, prefix, done), daemon=True)
        client.advance(last=True).wait()  # nobody waits for this worker's clock
        waiting.start()
        ones, own = torch.ones(FRAGMENTS), WriteLog(client, Path(write_log))
        with (Path(write_log) / PROBES).open("ab", buffering=0) as file:
            while not done.wait(0.002):
                began = time.monotonic()
                client.push(table.name, ones).wait()
                own.push()
                file.write(PROBE.pack(began, time.monotonic()))
        waiting.join()


def _wait_for_the_end(client: Client, prefix: str, done: Event) -> None:
    """Enter the barriers at the beginning and the end of the training, as all workers do."""
    try:
        client.barrier(f"{prefix} written")
        client.barrier(f"{prefix} done")
    finally:
        done.set()
