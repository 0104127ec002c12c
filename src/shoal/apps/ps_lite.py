"""`shoal run SCRIPT` with ps-lite's variables: this process is the role that they say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.roles import become_scheduler, become_server
from shoal.apps.script_job import ScriptRun
from shoal.engines.environment import ScriptEnvironment
from shoal.engines.launchers.ps_lite import RANK, Part
from shoal.engines.launchers.world import ROLE
from shoal.engines.options import SchedulerRole, ServerRole, WorkerRole
from shoal.engines.roles import configure_log
from shoal.errors import InvalidValue
from shoal.runs.job_file import converted

ROLES: dict[str, type[msgspec.Struct]] = {
    "scheduler": SchedulerRole,
    "server": ServerRole,
    "worker": WorkerRole,
}


def become(
    part: Part, script: str, args: list[str], asked: Mapping[str, Any], token: str = ""
) -> None:
    """Be a part of a cluster until the run ends.

    All processes are started by the same command, so that its options may be of any role.

    Args:
        part: what the variables say.
        script: the script that workers run, and that servers import where a table names a method.
        args: its arguments.
        asked: the options of `shoal run` that were given.
        token: the cluster's shared secret.

    Raises:
        InvalidValue: an option that no role has, or that contradicts the variables
        ShoalError: as the commands of the roles
    """
    _check(part, asked)
    _tell(part.verbose)
    role = converted({**_options(part, asked), "token": token}, ROLES[part.role])
    match role:
        case SchedulerRole():
            become_scheduler(role)
        case ServerRole():
            path = str(Path(script).resolve())
            become_server(msgspec.structs.replace(role, script=(path, *args)))
        case WorkerRole():
            from shoal.apps.script import become_worker  # imports torch
            from shoal.engines.joining import set_variables

            if part.probe_s is not None:
                told = ScriptEnvironment(probe_s=part.probe_s).variables
                set_variables({name: text for name, text in told.items() if text})
            become_worker(
                script, args, role, lambda context: set_variables({RANK: str(context.rank)})
            )


def _check(part: Part, asked: Mapping[str, Any]) -> None:
    if asked.get("slow_workers") == "backup":
        raise InvalidValue(
            "--slow-workers backup starts workers again, which ps-lite's launcher does, if anything"
        )
    for name, value in asked.items():
        if name in ("workers", "servers") and value != getattr(part, name):
            variable = f"DMLC_NUM_{name.removesuffix('s').upper()}"
            raise InvalidValue(f"--{name} {value} and {variable}={getattr(part, name)}: give one")
        if not any(name in role.__struct_fields__ for role in ROLES.values()):
            flag = f"--{name.removeprefix('as_').replace('_', '-')}"
            raise InvalidValue(
                f"{flag} belongs to a run whose processes `shoal run` starts; with "
                f"{ROLE}={part.role} leave it out, or give --launcher none"
            )
    converted({**asked, "workers": part.workers, "servers": part.servers}, ScriptRun)


def _options(part: Part, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of this part's role: those that were given, and what the variables say."""
    known = ROLES[part.role].__struct_fields__
    loss = asked.get("on_worker_loss", "stop")  # as `shoal run` has it
    said = {
        **asked,
        "workers": part.workers,
        "servers": part.servers,
        "on_worker_loss": loss if part.role == "scheduler" or loss == "stop" else "drop",
        "listen": part.listen,
        "interface": "" if part.listen else part.interface,
        "rank": part.rank,
        "init_timeout_s": part.init_timeout_s,
        "join_timeout_s": part.init_timeout_s,
    }
    if part.role != "scheduler":
        said["scheduler"] = part.scheduler
    if part.drop_messages and "drop_messages" not in asked:
        said["drop_messages"] = part.drop_messages
    if part.failure_timeout_s is not None:
        said["failure_timeout_s"] = part.failure_timeout_s
    return {name: value for name, value in said.items() if name in known}


def _tell(verbose: int) -> None:
    """Log connections, and messages too, to standard error."""
    if verbose:
        configure_log()
        logging.getLogger("shoal.connections").setLevel(logging.DEBUG)
    if verbose > 1:
        logging.getLogger("shoal.messages").setLevel(logging.DEBUG)
