"""The processes of a run on this machine: a scheduler, servers and workers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.engines.base import Task
from shoal.engines.cluster import cluster_tasks
from shoal.engines.gathering import UNLIMITED_S
from shoal.engines.options import SchedulerRole, ServerRole
from shoal.engines.processes import Processes
from shoal.runs.application import Application, Spec
from shoal.runs.resume import rows_before
from shoal.storage.shard_files import SavedTables


def tasks_of(
    application: Application[Spec],
    processes: Processes,
    started_at: float,
    more_workers: int = 0,
) -> Iterator[Task]:
    """Yield the tasks of a run: its scheduler, its servers and its workers.

    Start each before the next is asked for: the others are told where the scheduler listens.

    more_workers:  the number of workers that the caller starts beside them
    """
    yield from cluster_of(application, processes, started_at, more_workers)
    yield from application.worker_tasks(processes, started_at)


def cluster_of(
    application: Application[Spec],
    processes: Processes,
    started_at: float,
    more_workers: int = 0,
) -> Iterator[Task]:
    """Yield the tasks of a run's scheduler and servers.

    Each gets the options of the run that it has by the same name. Over TCP they have a token,
    because other users of the machine can connect; a Unix socket is in a folder of this user.
    """
    run, start, folder = application.spec, application.start, processes.folder
    one_host = processes.address("scheduler").startswith("unix://")
    over_ip = one_host and run.transport != "unix"
    servers_listen = f"{run.transport}://127.0.0.1:0" if over_ip else ""
    if servers_listen:
        processes.token = processes.token or secrets.token_urlsafe(24)
    common: dict[str, Any] = {
        "token": processes.token,
        "folder": str(folder.path.resolve()),
        "started_at": started_at,
        "start_clock": start.clock,
    }
    server = {
        **run.shared_with(ServerRole),
        **common,
        "listen": servers_listen,
        "init_timeout_s": UNLIMITED_S,
        "save": application.saves_shards,
        "init": start.shards,
        "imports": application.imports,
        "script": application.script,
    }
    scheduler = {
        **run.shared_with(SchedulerRole),
        **run.policy,
        **common,
        "listen": processes.address("scheduler"),
        "workers": run.workers + more_workers,
        "servers": run.servers if run.uses_servers else 0,
        "replicas": run.replicas if run.uses_servers else 1,
        "join_timeout_s": UNLIMITED_S,
        "leases": True,
        "fragment_rows": SavedTables(Path(start.shards)).fragment_rows if start.shards else {},
        "ledger": start.ledger,
    }
    roles = SchedulerRole(**scheduler), ServerRole(**server)
    processes.collector.keep = run.keep_checkpoints
    return cluster_tasks(processes, *roles, application.preload, rows_before(start.shards))
