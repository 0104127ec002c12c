"""Options of processes, and those that runs share with them: name, unit, default, bounds, help.

A field with a help text is an option of the command line, under the heading of its section, and a
key of a job's file. A field without one is passed between Shoal's own processes. Importable without
torch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from shoal.engines.pairs import words_of
from shoal.errors import InvalidValue
from shoal.node.dropping import drops_of
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.tables.sizes import bytes_of
from shoal.tables.spec import Options

KEPT = 5  # checkpoints; also what TensorFlow's estimators keep


def option(section: str, text: str, env: str = "", flag: str = "", **bounds: Any) -> Meta:
    """Return the metadata of a field that is an option of the command line.

    section:  the heading under which --help lists the option
    text:     the help text
    env:      the environment variable that sets the option where no flag does
    flag:     the name of the flag, if it differs from the field's
    bounds:   the bounds of `msgspec.Meta`: ge, le, gt, max_length
    """
    return Meta(description=text, extra={"section": section, "env": env, "flag": flag}, **bounds)


STRATEGIES = (
    "sync, ssp, asgd, allreduce, diloco, ...: `shoal list strategies` explains them; or "
    "FILE.py:CLASS, your own"
)


# fmt: off
Workers = Annotated[int, option("Cluster", "worker processes", ge=1, le=1024)]
Servers = Annotated[int, option("Cluster", "server processes; 0 if workers only use allreduce", ge=0, le=1024)]
Replicas = Annotated[int, option("Cluster", "servers that have a copy of each row; one fewer of them may fail at once", ge=1, le=1024)]
Memory = Annotated[str, option("Cluster", "memory that each server has for its tables, such as 4GiB or 500M; three quarters of this host's, shared by the servers that are started here together, if not given")]
Token = Annotated[str, option("Network", "shared secret of the cluster", env="SHOAL_TOKEN")]
Imports = Annotated[tuple[str, ...], option("Cluster", "module or file that servers import at their start, for its access methods and handlers; may be repeated", flag="--import")]
Output = Annotated[Literal["rank0", "all", "none"], option("Output", "whose prints come to this terminal: those of rank 0, which are not in its log then; the lines of all workers' logs, each behind its worker's name; or none")]
StrategyName = Annotated[str, option("Training", STRATEGIES)]
ScriptStrategy = Annotated[str, option("Training", f"strategy of each shoal.Optimizer for which the script names none (sync, if neither does): {STRATEGIES}")]
Settings = Annotated[Options, option("Training", "setting of the strategy, such as tau=16: `shoal list strategies` has all; may be repeated")]
Staleness = Annotated[int, option("Training", "clocks that a worker may be ahead of the slowest one; ssp", ge=0)]
OptimizerOptions = Annotated[Options, option("Training", "option of the optimizer, such as momentum=0.9; may be repeated", flag="--optimizer-option")]
Hyperparameters = Annotated[dict[str, float | int | bool | str | list[float]], option("Training", "argument of the torch optimizers that the script wraps, such as lr=0.05, in place of the script's; a parameter group keeps what it sets itself; may be repeated", flag="--optimizer-option")]
SlowWorkers = Annotated[Literal["wait", "drop", "backup"], option("Fault tolerance", "when the others wait for a worker more than half of the time: wait; drop the worker; or drop it, have the others do its batches and start it again (backup)")]
CheckpointEvery = Annotated[int, option("Checkpoints", "clocks (steps) between checkpoints; 0: none", ge=0)]
CheckpointEveryS = Annotated[float, option("Checkpoints", "seconds between checkpoints; 0: none", ge=0)]
KeepCheckpoints = Annotated[int, option("Checkpoints", "number of checkpoints to keep, the last ones; 0: all of them", ge=0)]
Resume = Annotated[str, option("Checkpoints", "folder of the run to continue, from a checkpoint")]
ResumeAt = Annotated[int, option("Checkpoints", "clock of the checkpoint to continue from; the last complete one if not given", ge=-1)]
Scheduler = Annotated[str, option("Network", "address of the scheduler: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH")]
Interface = Annotated[str, option("Network", "network interface to listen on")]
Rank = Annotated[int, option("Network", "rank to ask for; any free one if not given", ge=-1)]
DropMessages = Annotated[str, option("Faults", "percentage of messages that each process does not send, as if the network had lost them: 10, or 10:SEED for other draws", env="SHOAL_DROP_MESSAGES")]
InitTimeoutS = Annotated[float, option("Network", "seconds to wait until the cluster is complete", gt=0)]


class SchedulerRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a scheduler's process.

    folder, started_at:    the run's folder, and the time at which the run began
    slow_window_s:         the time over which waits for slow workers are added up
    leases:                whether the folder has the lease log, next to the checkpoints
    fragment_rows:         the fragment sizes of the tables that this run begins with
    ledger, start_clock:   the lease ledger of the run that this one continues, and its clock
    """

    listen: Annotated[str, option("Network", "address to listen on: tcp://HOST:PORT, tls://HOST:PORT (with --tls) or unix:///PATH")]
    workers: Workers = 2
    servers: Servers = 1
    replicas: Replicas = 1
    elastic: Annotated[bool, option("Cluster", "workers may join and leave during the run")] = False
    on_worker_loss: Annotated[Literal["stop", "drop", "replace"], option("Fault tolerance", "when a worker of the first group dies or is silent: stop the run; drop the worker; or wait for another to take its place (replace)")] = "drop"
    slow_workers: SlowWorkers = "wait"
    drop_after_s: Annotated[float, option("Fault tolerance", "seconds after which a worker is dropped for which others have waited without a break; 0: never", ge=0)] = 0.0
    failure_timeout_s: Annotated[float, option("Fault tolerance", "seconds of silence after which a member counts as failed; more for a member whose heartbeats come late", ge=3.0)] = 10.0
    sole_replica_timeout_s: Annotated[float, option("Fault tolerance", "seconds of silence after which a server counts as failed that has the only copy of some rows", ge=0.0)] = 15.0
    hang_timeout_s: Annotated[float, option("Fault tolerance", "declare a process hung if its event loop makes no progress for this many seconds (time in user code does not count)", ge=3.0)] = 60.0
    state: Annotated[str, option("Fault tolerance", "file for the journal, which a scheduler that is started again continues from")] = ""
    checkpoint_every_s: CheckpointEveryS = 0.0
    resume: Resume = ""
    resume_at: ResumeAt = -1
    join_timeout_s: Annotated[float, option("Network", "seconds to wait until the cluster is complete", gt=0)] = 120.0
    drop_messages: DropMessages = ""
    token: Token = ""
    folder: str = ""
    started_at: float = 0.0
    slow_window_s: float = 5.0
    leases: bool = False
    fragment_rows: dict[str, int] = {}
    ledger: LedgerRecord | None = None
    start_clock: int = 0

    def __post_init__(self) -> None:
        drops_of(self.drop_messages)


class ServerRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a server's process.

    script:       the user's script and its arguments; imported when a table names a method or a
                  handler that this server does not know
    folder:       the run's folder, for events and checkpoints; the checkpoints of a run without one
                  are in `out`
    started_at:   the time at which the run began
    save:         whether the folder has the server's shards when the run has ended in order
    init:         the folder of the shards that tables begin with, after `start_clock` clocks
    rows:         the folder into which the files there come whole when this server asks its host
                  for them; "" if they are
    servers_here: the servers that share this host's memory for tables, where `memory` says nothing
    """

    scheduler: Scheduler = ""
    listen: Annotated[str, option("Network", "address to listen on; an address of this host that the scheduler can reach if not given")] = ""
    advertise: Annotated[str, option("Network", "address that others use, if it differs; port 0: the port of --listen")] = ""
    interface: Interface = ""
    rank: Rank = -1
    host_label: Annotated[str, option("Fault tolerance", "name of what fails as a whole, such as a host or a rack: replicas are placed apart; this host's name if not given")] = ""
    memory: Memory = ""
    imports: Imports = ()
    out: Annotated[str, option("Output", "folder for the run's folder with checkpoints, shared by all servers")] = ""
    checkpoint_every: CheckpointEvery = 0
    keep_checkpoints: KeepCheckpoints = KEPT
    resume: Resume = ""
    resume_at: ResumeAt = -1
    init_timeout_s: InitTimeoutS = 60.0
    drop_messages: DropMessages = ""
    token: Token = ""
    folder: str = ""
    started_at: float = 0.0
    threads: int = 1
    script: tuple[str, ...] = ()
    save: bool = False
    init: str = ""
    rows: str = ""
    start_clock: int = 0
    servers_here: int = 1

    def __post_init__(self) -> None:
        check_memory(self.memory)
        drops_of(self.drop_messages)


class WorkerRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a worker's process that is started by hand."""

    scheduler: Annotated[str, option("Network", "address of the scheduler, or the folder of a run on this machine")] = ""
    listen: Annotated[str, option("Network", "address to listen on for other workers; an address of this host that the scheduler can reach if not given", env="SHOAL_LISTEN")] = ""
    interface: Interface = ""
    rank: Rank = -1
    group: Annotated[str, option("Worker group", "name of a worker group to join or begin, beside the one that the run was started for")] = ""
    group_size: Annotated[int, option("Worker group", "workers that make the group complete", ge=1)] = 1
    namespace: Annotated[str | None, option("Worker group", "namespace of the group's tables; the group's name if not given, '' for the tables of the first group")] = None
    resume: Resume = ""
    resume_at: ResumeAt = -1
    init_timeout_s: InitTimeoutS = 60.0
    token: Token = ""
    strategy: ScriptStrategy = ""
    set: Settings = {}
    staleness: Staleness = 0
    optimizer_options: Hyperparameters = {}
    on_worker_loss: Annotated[Literal["stop", "drop"], option("Fault tolerance", "when this worker fails: stop the run; or have the others go on without it")] = "stop"
    drop_messages: DropMessages = ""

    def __post_init__(self) -> None:
        drops_of(self.drop_messages)
        if self.listen and self.interface:
            raise InvalidValue("--listen and --interface both say where to listen: give one of them")
# fmt: on


def flag_of(schema: type[msgspec.Struct], field: str) -> str:
    """Return the flag of a field with a help text.

    >>> flag_of(WorkerRole, "init_timeout_s"), flag_of(WorkerRole, "optimizer_options")
    ('--init-timeout-s', '--optimizer-option')
    """
    _, meta = get_args(get_type_hints(schema, include_extras=True)[field])
    return str(meta.extra["flag"]) or f"--{field.replace('_', '-')}"


def words_for(options: msgspec.Struct, fields: Collection[str]) -> list[str]:
    """Return the words of a command line that set these fields of the options.

    >>> words_for(WorkerRole(rank=2, set={"tau": 16, "mode": "async"}), ["rank", "set"])
    ['--rank', '2', '--set', 'tau=16', '--set', 'mode=async']
    """
    words: list[str] = []
    for name in fields:
        value, flag = getattr(options, name), flag_of(type(options), name)
        if isinstance(value, dict):
            values = words_of(value)
        else:
            values = [*map(str, value)] if isinstance(value, tuple) else [str(value)]
        words += [word for each in values for word in (flag, each)]
    return words


def check_memory(memory: str) -> None:
    """Refuse a text that is neither a size nor empty.

    >>> check_memory("4 gigs")
    Traceback (most recent call last):
        ...
    shoal.errors.InvalidValue: --memory: a size is a number of bytes such as 4GiB or 500M, not '4 gigs'
    """
    if memory:
        try:
            bytes_of(memory)
        except InvalidValue as error:
            raise InvalidValue(f"--memory: {error.message}") from None
