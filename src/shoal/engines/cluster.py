"""The processes of a cluster on this machine, except for its workers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.engines.base import DENSE, Task
from shoal.engines.gathering import UNLIMITED_S
from shoal.engines.host_memory import table_memory
from shoal.engines.local import LocalEngine
from shoal.engines.options import ResumableRun, RunOptions, SchedulerRole, ServerRole
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder
from shoal.storage.shard_files import SavedTables


def start_cluster(
    engine: LocalEngine,
    servers: int,
    workers: int,
    listen: str = "",
    token: str = "",
    server_listen: str = "",
    imports: Sequence[str] = (),
    script: Sequence[str] = (),
    out: str = "",
    memory: str = "",
    **policy: Any,
) -> str:
    """Start a scheduler and servers, and return the address of the scheduler.

    token:   the token of the cluster, which is written to `engine.token`; a new one is made if
             it is empty and `listen` or `server_listen` is given
    script:  the user's script and its arguments; servers import it for methods that they do not
             know
    out:     the folder for the run's folder with checkpoints
    memory:  the memory of each server for its tables
    policy:  further fields of `SchedulerRole`
    """
    address = listen or engine.address("scheduler")
    if not token and (listen or server_listen):
        token = secrets.token_urlsafe(24)
    engine.token = token
    policy.setdefault("events", str(engine.folder.events))  # the scheduler's events about processes
    scheduler = SchedulerRole(
        listen=address, servers=servers, workers=workers, token=token, **policy
    )
    server = ServerRole(
        listen=server_listen,
        token=token,
        memory=memory,
        imports=tuple(imports),
        script=tuple(script),
        out=out,
    )
    for task in cluster_tasks(engine, scheduler, server):
        engine.start(task)
    return address


def cluster_tasks(
    engine: LocalEngine,
    scheduler: SchedulerRole,
    server: ServerRole,
    preload: tuple[str, ...] = DENSE,
) -> list[Task]:
    """Return the tasks of a scheduler and of its servers, each of which gets its own rank."""
    ranks = range(scheduler.servers)
    if not server.memory:
        server = msgspec.structs.replace(server, memory=str(table_memory(scheduler.servers)))
    servers = [server_task(engine, scheduler.listen, rank, server, preload) for rank in ranks]
    if scheduler.replicas > 1:  # the scheduler may be started again
        state = str(engine.sockets / "scheduler.state")
        scheduler = msgspec.structs.replace(scheduler, state=state)
    entry = "shoal.engines.roles:run_scheduler"
    return [Task("scheduler", entry, msgspec.to_builtins(scheduler), preload=()), *servers]


def run_tasks(
    engine: LocalEngine,
    run: RunOptions,
    started_at: float,
    *,
    init: str = "",
    start_clock: int = 0,
    save: bool = True,
    preload: tuple[str, ...] = DENSE,
    imports: Sequence[str] = (),
    script: Sequence[str] = (),
    **policy: Any,
) -> list[Task]:
    """Return the tasks of the scheduler and the servers of a run on this machine.

    Over TCP they have a token, because other users of the machine can connect; a Unix socket is in
    a folder of this user.

    init:     the folder of the shards that the tables begin with, after `start_clock` clocks
    save:     whether the servers save their shards at the end
    preload:  the modules that servers and workers share
    imports:  the user's modules that servers import at their start
    script:   as in `ServerRole`
    policy:   the fields of `SchedulerRole` that differ from the run's
    """
    if run.transport == "tcp":
        engine.token = secrets.token_urlsafe(24)
    common: dict[str, Any] = {
        "token": engine.token,
        "events": str(engine.folder.events),
        "started_at": started_at,
        "start_clock": start_clock,
    }
    told: dict[str, Any] = {name: getattr(run, name) for name in ("workers", "servers", "replicas")}
    server = ServerRole(
        listen="" if run.transport == "unix" else "tcp://127.0.0.1:0",
        memory=run.memory,
        init_timeout_s=UNLIMITED_S,
        save=str(engine.folder.shards.resolve()) if save else "",
        init=init,
        imports=tuple(imports),
        script=tuple(script),
        **common,
    )
    told |= {"on_worker_loss": "stop", "join_timeout_s": UNLIMITED_S}
    told["leases"] = str(engine.folder.leases.resolve())
    if init:
        told["fragment_rows"] = SavedTables(Path(init)).fragment_rows
    if isinstance(run, ResumableRun):
        told["checkpoint_every_s"] = run.checkpoint_every_s
        server = msgspec.structs.replace(
            server,
            checkpoints=str(engine.folder.checkpoints.resolve()),  # a checkpoint may be asked for
            checkpoint_every=run.checkpoint_every,
            keep_checkpoints=run.keep_checkpoints,
        )
    scheduler = SchedulerRole(listen=engine.address("scheduler"), **told | common | policy)
    return cluster_tasks(engine, scheduler, server, preload)


def worker_tasks(engine: LocalEngine, workers: int, entry: str, **arguments: Any) -> list[Task]:
    """Return the tasks of a run's workers.

    entry:      the "module:function" that is called with `rank`, `scheduler` (its address), `token`
                and `folder` (the run's)
    arguments:  further arguments of that function, the same for all workers
    """
    common = {
        "scheduler": engine.address("scheduler"),
        "token": engine.token,
        "folder": str(engine.folder.path.resolve()),
    }
    return [
        Task(f"worker-{rank}", entry, {**common, "rank": rank, **arguments})
        for rank in range(workers)
    ]


def threads_of(workers: int) -> int:
    """Return the threads of each worker, so that all workers together have one a core."""
    return max(1, (os.cpu_count() or 1) // workers)


def server_task(
    engine: LocalEngine,
    scheduler: str,
    rank: int,
    role: ServerRole | None = None,
    preload: tuple[str, ...] = DENSE,
) -> Task:
    """Return the task of a server on this machine, which may join later."""
    role = role or ServerRole()
    listen = role.listen or engine.address(f"server-{rank}")
    role = msgspec.structs.replace(role, scheduler=scheduler, listen=listen, rank=rank)
    entry = "shoal.engines.roles:run_server"
    return Task(f"server-{rank}", entry, msgspec.to_builtins(role), preload)


def cluster_here(servers: int, workers: int, **options: Any) -> LocalEngine:
    """Start a scheduler and servers on this machine, and return their engine.

    options:  as for `start_cluster`
    """
    scratch = ScratchFolder("run")
    folder = RunFolder(scratch.path)
    (folder.path / "logs").mkdir()
    engine = LocalEngine(folder)
    engine.at_stop.callback(scratch.remove)
    start_cluster(engine, servers, workers, **options)
    return engine
