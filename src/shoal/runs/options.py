"""RunOptions: the options that all runs on this machine have, whatever they train."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shoal.collective.base import Collective
from shoal.engines.base import Room
from shoal.engines.options import (
    KEPT,
    CheckpointEvery,
    CheckpointEveryS,
    DropMessages,
    KeepCheckpoints,
    Memory,
    Replicas,
    Resume,
    ResumeAt,
    Servers,
    SlowWorkers,
    Workers,
    check_memory,
    option,
)
from shoal.errors import InvalidValue
from shoal.node.dropping import drops_of
from shoal.protocol.supervision.supervisor import LossPolicy, loss_policy
from shoal.protocol.worker.options import OnTimeout
from shoal.tables.sizes import bytes_of

OF_THE_RUN = ("out", "resume", "resume_at")  # what they say is told to processes in other words


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a run on this machine. Field names are flags with `-` for `_`."""

    # fmt: off
    workers: Workers = 2
    servers: Servers = 1
    replicas: Replicas = 1
    memory: Memory = ""
    engine: Annotated[str, option("Cluster", "where the processes run: local (this machine), ray (the nodes of a Ray cluster), or an engine of a package")] = "local"
    worker_cpus: Annotated[float, option("Cluster", "processors that Ray reserves for each worker, and its threads", ge=0)] = 1.0
    worker_gpus: Annotated[float, option("Cluster", "GPUs that Ray reserves for each worker", ge=0)] = 0.0
    server_cpus: Annotated[float, option("Cluster", "processors that Ray reserves for each server", ge=0)] = 1.0
    wait_s: Annotated[float, option("Cluster", "seconds to wait until Ray has all of it free", ge=0)] = 60.0
    transport: Annotated[Literal["unix", "tcp", "tls"], option("Network", "sockets between the processes of this machine; tls needs --tls")] = "unix"
    sync_timeout_s: Annotated[float, option("Network", "seconds after which a waiting request is asked about, and workers that it waits for are reminded; it fails after twice as many", gt=0)] = 10.0
    collective: Annotated[Collective, option("Network", "how sums over all workers travel: on a ring of the workers; or by MPI's allreduce, where mpirun has started the workers as its ranks")] = "ring"
    drop_messages: DropMessages = ""
    title: Annotated[str, option("Output", "first part of the name of the run's folder", max_length=100)] = ""
    out: Annotated[str, option("Output", "folder for the folders of runs")] = "shoal-runs"
    checkpoint_every: CheckpointEvery = 0
    checkpoint_every_s: CheckpointEveryS = 0.0
    keep_checkpoints: KeepCheckpoints = KEPT
    resume: Resume = ""
    resume_at: ResumeAt = -1
    on_worker_loss: Annotated[Literal["stop", "drop", "replace", "reassign"], option("Fault tolerance", "when a worker fails: stop the run; drop the worker; replace it by a new process; or drop it and have the others do its batches (reassign)")] = "stop"
    slow_workers: SlowWorkers = "wait"
    on_timeout: Annotated[OnTimeout, option("Fault tolerance", "what to do with a request that waits for others longer than --sync-timeout-s: wait; ask (fail if nobody answers within the same time again); or drop (remove the late workers; p2p: go on without them until they are back)")] = "ask"
    # fmt: on

    def __post_init__(self) -> None:
        check_replicas(self.replicas, self.servers)
        check_memory(self.memory)
        drops_of(self.drop_messages)
        if self.resume_at >= 0 and not self.resume:
            raise InvalidValue("--resume-at chooses a checkpoint of a run: add --resume RUN")
        if self.on_timeout == "drop" and self.slow_workers != "wait":
            raise InvalidValue(
                f"--on-timeout drop and --slow-workers {self.slow_workers} both say when a slow "
                "worker is dropped: give one of them"
            )
        for flag, value, usual in (
            ("--on-worker-loss", self.on_worker_loss, ("stop",)),
            ("--slow-workers", self.slow_workers, ("wait",)),
            ("--on-timeout", self.on_timeout, ("wait", "ask")),
        ):
            if self.collective == "mpi" and value not in usual:
                raise InvalidValue(
                    f"{flag} {value} with --collective mpi: MPI's sums cannot go on without a "
                    "worker; use --collective ring"
                )

    @property
    def saves(self) -> bool:
        """Whether the run writes checkpoints."""
        return self.checkpoint_every > 0 or self.checkpoint_every_s > 0

    @property
    def uses_servers(self) -> bool:
        """Whether the parameters are in tables on servers."""
        return self.servers > 0

    @property
    def keeps_states(self) -> bool:
        """Whether a checkpoint is complete only with the states of its workers."""
        return False

    @property
    def policy(self) -> dict[str, Any]:
        """The fields of `SchedulerRole` for lost and slow workers."""
        return {
            "on_worker_loss": "drop" if self.on_worker_loss == "reassign" else self.on_worker_loss,
            "elastic": self.on_worker_loss == "replace" or self.slow_workers == "backup",
            "slow_workers": self.slow_workers,
            "drop_after_s": self.sync_timeout_s if self.on_timeout == "drop" else 0.0,
        }

    def shared_with(self, schema: type[msgspec.Struct]) -> dict[str, Any]:
        """Return those of these options that a process of the run has by the same name."""
        names = [name for name in RunOptions.__struct_fields__ if name not in OF_THE_RUN]
        return {name: getattr(self, name) for name in names if name in schema.__struct_fields__}

    @property
    def room(self) -> Room:
        """What the processes need, for engines whose hosts have limited room."""
        memory = bytes_of(self.memory) if self.memory else 0
        return Room(self.worker_cpus, self.worker_gpus, self.server_cpus, memory, self.wait_s)

    @property
    def names(self) -> list[str]:
        """The names of the run's processes."""
        servers = self.servers if self.uses_servers else 0
        numbered = (
            [f"server-{n}" for n in range(servers)],
            [f"worker-{n}" for n in range(self.workers)],
        )
        return ["scheduler", *numbered[0], *numbered[1]]

    @property
    def loss_policy(self) -> LossPolicy:
        """The processes that the run may lose, and those that are started again."""
        sizes = self.servers, self.replicas, self.workers
        return loss_policy(*sizes, self.on_worker_loss, self.slow_workers)


def check_replicas(replicas: int, servers: int) -> None:
    """Refuse more replicas than servers: each copy of a row is on a server of its own.

    >>> check_replicas(3, 1)
    Traceback (most recent call last):
        ...
    shoal.errors.InvalidValue: --replicas 3 needs at least 3 servers (got 1)
    """
    if replicas > max(servers, 1):
        raise InvalidValue(
            f"--replicas {replicas} needs at least {replicas} servers (got {servers})"
        )


def check_backup(run: RunOptions) -> None:
    """Refuse a backup for slow workers in a run that leases no batches.

    >>> check_backup(RunOptions(slow_workers="backup"))
    Traceback (most recent call last):
        ...
    shoal.errors.InvalidValue: slow_workers 'backup' has other workers do the batches of a slow one: add --on-worker-loss reassign
    """
    if run.slow_workers == "backup" and run.on_worker_loss != "reassign":
        raise InvalidValue(
            "slow_workers 'backup' has other workers do the batches of a slow one: add "
            "--on-worker-loss reassign"
        )


def check_collective(collective: Collective) -> None:
    """Refuse MPI among workers that are no ranks of it.

    >>> check_collective("mpi")
    Traceback (most recent call last):
        ...
    shoal.errors.InvalidValue: --collective mpi: the workers have to be ranks of MPI, as in `mpirun -n 4 shoal train JOB.toml --collective mpi`; without a launcher use --collective ring
    """
    if collective == "mpi":
        raise InvalidValue(
            "--collective mpi: the workers have to be ranks of MPI, as in `mpirun -n 4 shoal train "
            "JOB.toml --collective mpi`; without a launcher use --collective ring"
        )


def check_staleness(staleness: int, strategy: str) -> None:
    """Refuse a staleness for a strategy without such a bound.

    >>> check_staleness(2, "sync")
    Traceback (most recent call last):
        ...
    shoal.errors.InvalidValue: staleness belongs to strategy 'ssp', not to 'sync'
    """
    if staleness and strategy != "ssp":
        raise InvalidValue(f"staleness belongs to strategy 'ssp', not to {strategy!r}")


def need_servers(servers: int) -> None:
    """Refuse zero servers for a run whose tables are on servers."""
    if servers < 1:
        raise InvalidValue("--servers 0: the parameters of this run are on servers, give 1 or more")
