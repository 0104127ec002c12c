"""The processes of a cluster on this machine, except for its workers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.engines.base import DENSE, Engine, Task
from shoal.engines.host_memory import table_memory
from shoal.engines.local import LocalEngine
from shoal.engines.options import SchedulerRole, ServerRole
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder


def start_cluster(
    engine: Engine,
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
    engine: Engine,
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


def server_task(
    engine: Engine,
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
