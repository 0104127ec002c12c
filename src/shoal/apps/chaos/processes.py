"""What the processes of `shoal chaos` do: workers that leave marks, and one that only probes."""

from __future__ import annotations

import time
from pathlib import Path
from struct import Struct
from threading import Event, Thread
from typing import Any

import torch

from shoal.apps.chaos.write_log import Marks
from shoal.apps.train import worker as training
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.roles import configure_log
from shoal.strategies.base import StepResult
from shoal.tables.spec import Access, TableSpec, asp

PROBE = Struct("<dd")  # a probe's beginning and end, monotonic seconds
PROBES = "probes"
OVER = "over"  # a file that is there once all faults have struck
PATIENCE_S, POLL_S = 60.0, 0.02
FRAGMENTS = 24


class Marked:
    """The training loop's hooks, and a mark after every step.

    The job is to last while others are killed: there is a pause after each step, and the last one
    waits until all faults have struck.

    seconds, steps: that it is to last, at least
    """

    def __init__(
        self, client: Client, hooks: training.Progress, folder: Path, seconds: float, steps: int
    ) -> None:
        self._hooks = hooks
        self._steps = steps
        self._pause_s = seconds / max(steps, 1)
        self._over = folder / OVER
        self._marks = Marks(client, folder)

    def stepped(self, epoch: int, step: int, result: StepResult) -> None:
        self._hooks.stepped(epoch, step, result)
        self._marks.push()
        time.sleep(self._pause_s)
        until = time.monotonic() + PATIENCE_S
        while step == self._steps and not self._over.exists():
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)

    def epoch_done(self, epoch: int, step: int) -> None:
        self._hooks.epoch_done(epoch, step)


def run_worker(write_log: str, seconds: float, **arguments: Any) -> None:
    """Train as `shoal train` does, and leave marks.

    seconds: that the whole job is to last, at least
    """

    def marked(client: Client, hooks: training.Progress, steps: int) -> Marked:
        return Marked(client, hooks, Path(write_log), seconds, steps)

    training.run_worker(**arguments, watched=marked)


def run_prober(scheduler: str, rank: int, write_log: str, prefix: str, token: str) -> None:
    """Push to all servers, time and again, until the others are done with their training."""
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
        ones, own = torch.ones(FRAGMENTS), Marks(client, Path(write_log))
        with (Path(write_log) / PROBES).open("ab", buffering=0) as file:
            while not done.wait(0.002):
                began = time.monotonic()
                client.push(table.name, ones).wait()
                own.push()
                file.write(PROBE.pack(began, time.monotonic()))
        waiting.join()


def _wait_for_the_end(client: Client, prefix: str, done: Event) -> None:
    """At the barriers of the training's beginning and end, with all others."""
    try:
        client.barrier(f"{prefix} written")
        client.barrier(f"{prefix} done")
    finally:
        done.set()
