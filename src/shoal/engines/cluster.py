"""The processes of a cluster on this machine, except for its workers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from shoal.engines.base import DENSE, Input, Task
from shoal.engines.options import SchedulerRole, ServerRole
from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder


def start_cluster(
    processes: Processes,
    servers: int,
    workers: int,
    listen: str = "",
    token: str = "",
    server_listen: str = "",
    imports: Sequence[str] = (),
    script: Sequence[str] = (),
    out: str = "",
    memory: str = "",
    drop_messages: str = "",
    starts: Callable[[Task], None] | None = None,
    **policy: Any,
) -> str:
    """Start a scheduler and servers, and return the address of the scheduler.

    token:   the token of the cluster, which is written to `processes.token`; a new one is made if
             it is empty and `listen` or `server_listen` is given
    script:  the user's script and its arguments; servers import it for methods that they do not
             know
    out:     the folder for the run's folder with checkpoints
    memory:  the memory of each server for its tables
    drop_messages:  what each process does not send, as the option
    starts:  the function that starts a task; `processes.start`, if not given
    policy:  further fields of `SchedulerRole`
    """
    if not token and (listen or server_listen):
        token = secrets.token_urlsafe(24)
    processes.token = token = token or processes.token
    policy.setdefault("folder", str(processes.folder.path))  # the supervisor goes by its events
    scheduler = SchedulerRole(
        listen=listen or processes.address("scheduler"),
        servers=servers,
        workers=workers,
        token=token,
        drop_messages=drop_messages,
        **policy,
    )
    server = ServerRole(
        listen=server_listen,
        token=token,
        memory=memory,
        drop_messages=drop_messages,
        imports=tuple(imports),
        script=tuple(script),
        out=out,
    )
    for task in cluster_tasks(processes, scheduler, server):
        (starts or processes.start)(task)
    return processes.scheduler


def cluster_tasks(
    processes: Processes,
    scheduler: SchedulerRole,
    server: ServerRole,
    preload: tuple[str, ...] = DENSE,
    inputs: tuple[Input, ...] = (),
) -> Iterator[Task]:
    """Yield the tasks of a scheduler and of its servers, each of which gets its own rank.

    Start each before the next is asked for: servers are told where the scheduler listens.

    inputs:  the files that servers read
    """
    if scheduler.replicas > 1:  # the scheduler may be started again
        state = str(processes.private / "scheduler.state")
        scheduler = msgspec.structs.replace(scheduler, state=state)
    here = processes.by_host("server", scheduler.servers)
    entry = "shoal.engines.roles:run_scheduler"
    yield Task("scheduler", entry, msgspec.to_builtins(scheduler), preload=())
    for rank in range(scheduler.servers):
        server = msgspec.structs.replace(server, servers_here=len(here[rank]))
        where = processes.scheduler
        yield replace(server_task(processes, where, rank, server, preload), inputs=inputs)


def server_task(
    processes: Processes,
    scheduler: str,
    rank: int,
    role: ServerRole | None = None,
    preload: tuple[str, ...] = DENSE,
) -> Task:
    """Return the task of a server on this machine, which may join later."""
    role = role or ServerRole()
    listen = role.listen or processes.address(f"server-{rank}")
    role = msgspec.structs.replace(role, scheduler=scheduler, listen=listen, rank=rank)
    entry = "shoal.engines.roles:run_server"
    return Task(f"server-{rank}", entry, msgspec.to_builtins(role), preload)


def cluster_here(servers: int, workers: int, **options: Any) -> Processes:
    """Start a scheduler and servers on this machine, and return their processes.

    options:  as for `start_cluster`
    """
    processes = processes_here()
    start_cluster(processes, servers, workers, **options)
    return processes


def processes_here() -> Processes:
    """Return processes of this machine with a folder that is removed with them."""
    scratch = ScratchFolder("run")
    folder = RunFolder(scratch.path)
    (folder.path / "logs").mkdir()
    processes = Processes(folder)
    processes.at_stop.callback(scratch.remove)
    return processes
