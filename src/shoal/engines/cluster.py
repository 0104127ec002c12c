"""The processes of a cluster on this machine, but for its workers."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.engines.base import DENSE, Task
from shoal.engines.local import LocalEngine
from shoal.storage.run_folder import RunFolder


def start_cluster(
    engine: LocalEngine,
    servers: int,
    workers: int,
    listen: str = "",
    token: str = "",
    server_listen: str = "",
    imports: Sequence[str] = (),
    replicas: int = 1,
    **policy: Any,
) -> str:
    """Start a scheduler and servers; returns the scheduler's address. `policy` is for the first."""
    address = listen or engine.address("scheduler")
    engine.start(scheduler_task(engine, address, servers, workers, replicas, token=token, **policy))
    for rank in range(servers):
        engine.start(
            server_task(engine, address, rank, server_listen, token=token, imports=list(imports))
        )
    return address


def scheduler_task(
    engine: LocalEngine, address: str, servers: int, workers: int, replicas: int, **more: Any
) -> Task:
    """The scheduler of a cluster on this machine; `more` goes to `run_scheduler`."""
    options = {"listen": address, "servers": servers, "workers": workers, "replicas": replicas}
    if replicas > 1:  # it may be started again
        more["state"] = str(engine.sockets / "scheduler.state")
    return Task("scheduler", "shoal.engines.roles:run_scheduler", options | more, preload=())


def server_task(
    engine: LocalEngine,
    scheduler: str,
    rank: int,
    listen: str = "",
    preload: tuple[str, ...] = DENSE,
    **more: Any,
) -> Task:
    """A server of a cluster on this machine, which may join later; `more` goes to `run_server`."""
    listen = listen or engine.address(f"server-{rank}")
    options = {"scheduler": scheduler, "listen": listen, "rank": rank}
    return Task(f"server-{rank}", "shoal.engines.roles:run_server", options | more, preload)


def cluster_here(servers: int, workers: int, **options: Any) -> LocalEngine:
    """A scheduler and servers on this machine, for workers that will join, as `start_cluster`."""
    folder = RunFolder(Path(tempfile.mkdtemp(prefix="shoal-run-")))
    (folder.path / "logs").mkdir()
    engine = LocalEngine(folder)
    engine.at_stop(lambda: shutil.rmtree(folder.path, ignore_errors=True))
    start_cluster(engine, servers, workers, **options)
    return engine


def new_token() -> str:
    """A fresh secret for a cluster that other hosts can reach."""
    return secrets.token_urlsafe(24)
