"""The processes of a run on this machine: a scheduler, servers and workers."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from shoal.engines.base import Engine, Task
from shoal.engines.cluster import cluster_tasks
from shoal.engines.gathering import UNLIMITED_S
from shoal.engines.options import SchedulerRole, ServerRole
from shoal.runs.application import Application, Spec
from shoal.storage.shard_files import SavedTables


def tasks_of(
    application: Application[Spec],
    engine: Engine,
    started_at: float,
    more_workers: int = 0,
) -> list[Task]:
    """Return the tasks of a run: its scheduler, its servers and its workers.

    more_workers:  the number of workers that the caller starts beside them
    """
    cluster = cluster_of(application, engine, started_at, more_workers)
    return cluster + application.worker_tasks(engine, started_at)


def cluster_of(
    application: Application[Spec],
    engine: Engine,
    started_at: float,
    more_workers: int = 0,
) -> list[Task]:
    """Return the tasks of a run's scheduler and servers.

    Each gets the options of the run that it has by the same name. Over TCP they have a token,
    because other users of the machine can connect; a Unix socket is in a folder of this user.
    """
    run, start, folder = application.spec, application.start, engine.folder
    if run.transport == "tcp":
        engine.token = secrets.token_urlsafe(24)
    common: dict[str, Any] = {
        "token": engine.token,
        "events": str(folder.events),
        "started_at": started_at,
        "start_clock": start.clock,
    }
    server = {
        **run.shared_with(ServerRole),
        **common,
        "listen": "" if run.transport == "unix" else "tcp://127.0.0.1:0",
        "init_timeout_s": UNLIMITED_S,
        "save": str(folder.shards.resolve()) if application.saves_shards else "",
        "init": start.shards,
        "imports": application.imports,
        "script": application.script,
        "checkpoints": str(folder.checkpoints.resolve()),  # a checkpoint may be asked for
    }
    scheduler = {
        **run.shared_with(SchedulerRole),
        **run.policy,
        **common,
        "listen": engine.address("scheduler"),
        "workers": run.workers + more_workers,
        "servers": run.servers if run.uses_servers else 0,
        "replicas": run.replicas if run.uses_servers else 1,
        "join_timeout_s": UNLIMITED_S,
        "leases": str(folder.leases.resolve()),
        "fragment_rows": SavedTables(Path(start.shards)).fragment_rows if start.shards else {},
        "ledger": start.ledger,
    }
    roles = SchedulerRole(**scheduler), ServerRole(**server)
    return cluster_tasks(engine, *roles, application.preload)
