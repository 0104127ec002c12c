"""WorkerTask: what the worker processes of all applications begin with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.engines.gathering import UNLIMITED_S
from shoal.engines.roles import configure_log
from shoal.node.memory import keep_memory
from shoal.runs.options import RunOptions
from shoal.storage.event_log import EventLog
from shoal.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.client.options import ClientOptions
    from shoal.protocol.views import ViewId


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker process of an application is started with.

    spec:         the options of the run, as plain values
    scheduler:    the scheduler's address
    token:        the cluster's shared secret
    folder:       the run's folder
    before:       the folder of the run that it continues; "" for a new run
    started_at:   the time at which the run began
    start_clock:  the clock of the checkpoint that the run continues from; 0 for a new run
    threads:      the threads of the worker
    init_timeout_s:  the time until the cluster has to be complete
    listen:       the address to listen at for other workers, as in `ClientOptions`
    beside:       the ranks of the workers on this worker's host, which share its folder; () for all
    inputs:       what the application's workers need beside it
    """

    spec: dict[str, Any]
    scheduler: str
    token: str
    folder: str
    started_at: float
    start_clock: int
    threads: int
    rank: int = 0
    before: str = ""
    init_timeout_s: float = UNLIMITED_S
    listen: str = ""
    beside: tuple[int, ...] = ()
    inputs: dict[str, Any] = {}

    @property
    def options(self) -> dict[str, Any]:
        """The options of the run, with the paths of this host."""
        return {**self.spec, "resume": self.before}

    @property
    def paths(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(Path(self.folder))

    def begin(self) -> EventLog:
        """Prepare this process as a worker's, and return its event log."""
        import torch

        configure_log()
        keep_memory()
        torch.set_num_threads(self.threads)
        return EventLog(self.paths.events, f"worker-{self.rank}", self.started_at)

    def client_options(self, run: RunOptions) -> ClientOptions:
        """Return the options with which the worker joins the run."""
        from shoal.client.options import ClientOptions  # imports torch

        return ClientOptions(
            token=self.token,
            rank=self.rank,
            init_timeout_s=self.init_timeout_s,
            listen=self.listen,
            abort_on_error=run.on_worker_loss == "stop",
            **run.shared_with(ClientOptions),
        )


def written_by_first(
    client: Client,
    beside: Sequence[int],
    write: Callable[[], object],
    there: Callable[[], bool],
    barrier: str,
    replaces: bool = False,
) -> None:
    """Have the worker of lowest rank on each host write what the run has once; all wait for it.

    If that worker dies before it has, the next one does so.

    beside:    the ranks of the workers that have the same folder, with this one; () for all
    there:     whether it is there, whole; these workers see the same once they have left the
               barrier
    barrier:   the name of the barrier
    replaces:  whether this worker has replaced another: those that ended before it was there have
               written without its training, and it writes again
    """
    while True:
        seen = client.view.id
        living = [each.rank for each in client.view.group(client.options.group)]
        first = min(rank for rank in living if not beside or rank in beside)
        if client.rank == first and (replaces or not there()):
            write()
            replaces = False
        client.barrier(barrier)
        if there():
            return
        _await_view_after(client, seen)  # its death releases the barrier, perhaps before it


def _await_view_after(client: Client, seen: ViewId) -> None:
    client.await_until(lambda: client.view.id != seen)


def threads_for(run: RunOptions) -> int:
    """Return the threads of each worker of a run, which other hosts have reserved for it."""
    return threads_of(run.workers) if run.engine == "local" else max(1, int(run.worker_cpus))


def threads_of(workers: int) -> int:
    """Return the threads of each worker, so that all workers together have one a core."""
    return max(1, (os.cpu_count() or 1) // workers)
