"""The scheduler and the servers of a cluster whose processes are started one by one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shoal.engines.options import SchedulerRole, ServerRole
from shoal.engines.roles import run_scheduler, run_server
from shoal.errors import UsageError
from shoal.runs.resume import begun_with, resumed_at


def become_scheduler(role: SchedulerRole) -> None:
    """Be the scheduler until the run ends.

    Raises:
        UsageError: an option that the scheduler cannot follow
        NotTrusted, DataMissing, DataCorrupt: as `resumed_at`
        ShoalError: what has ended the run
    """
    if role.slow_workers == "backup":
        raise UsageError(
            "--slow-workers backup starts a worker again, which a scheduler cannot: use `shoal run`"
        )
    if start_clock := resumed_at(role.resume, role.resume_at):
        from shoal.storage.shard_files import SavedTables

        saved = SavedTables(Path(begun_with(role.resume, start_clock)))
        role = msgspec.structs.replace(
            role, fragment_rows=saved.fragment_rows, start_clock=start_clock
        )
    run_scheduler(**msgspec.structs.asdict(role))


def become_server(role: ServerRole) -> None:
    """Be a server until the run ends, or until this server has left.

    Raises:
        UsageError: checkpoints, and no folder for them
        SystemExit: it has left because of a signal
        NotTrusted, DataMissing, DataCorrupt: as `resumed_at`
        JoinRefused, JoinTimeout: as `shoal.init`
    """
    if role.checkpoint_every and not role.out:
        raise UsageError("--checkpoint-every needs --out: a folder that all servers share")
    listen = role.listen
    if not listen and role.scheduler.startswith("unix://"):
        listen = f"{role.scheduler.removesuffix('.sock')}-server-{os.getpid()}.sock"
    start_clock = resumed_at(role.resume, role.resume_at)
    role = msgspec.structs.replace(
        role,
        listen=listen,
        init=begun_with(role.resume, start_clock),
        start_clock=start_clock,
    )
    if left_on := run_server(**msgspec.structs.asdict(role)):
        raise SystemExit(128 + left_on)  # else who has started it takes it for done
