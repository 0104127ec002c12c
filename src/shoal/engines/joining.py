"""`shoal.init`: join the run that this process belongs to, however it was started.

shoal run         the scheduler's address is in SHOAL_SCHEDULER
torchrun, mpirun  rank 0 starts a scheduler, the first rank of each host its share of the servers,
and srun          and all ranks learn where the scheduler listens (`engines/launchers/`)
python script.py  a scheduler and servers start on this machine, for this single worker
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.client.client import Client
from shoal.client.context import Context, joined, set_current
from shoal.client.options import ClientOptions
from shoal.client.places import scheduler_at, token_at
from shoal.collective.base import Collective
from shoal.engines.cluster import cluster_here
from shoal.engines.environment import OF_CLIENTS, ScriptEnvironment
from shoal.engines.launchers.meeting import join_cluster
from shoal.engines.launchers.world import world_of
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue
from shoal.factories import importable, main_script, refuse_while_importing
from shoal.node.memory import keep_memory
from shoal.protocol.worker.options import OnTimeout

RUNS = "shoal-runs"  # the parent folder of a run's folder that is not given


def init(
    *,
    servers: int | None = None,
    scheduler: str = "",
    token: str = "",
    sync_timeout_s: float | None = None,
    on_timeout: OnTimeout | None = None,
    collective: Collective | None = None,
    init_timeout_s: float | None = None,
    rank: int | None = None,
    listen: str | None = None,
    drop_messages: str | None = None,
    imports: Sequence[str] = (),
    group: str = "",
    group_size: int = 1,
    namespace: str | None = None,
) -> Context:
    """Join the run that this process belongs to; start a cluster here if there is none.

    Under `shoal run` and with `scheduler` the process joins that cluster. Under torchrun, mpirun
    and srun rank r is worker r: rank 0 starts a scheduler, and the first rank of each host its
    share of the servers. Under plain python they start for this single worker. Later
    calls return the first call's context. The context is closed when the process exits. The
    defaults of `shoal.Optimizer` are in SHOAL_STRATEGY, SHOAL_SET, SHOAL_STALENESS and
    SHOAL_OPTIMIZER_OPTIONS, which `shoal run` sets.

    Args:
        servers: the number of servers to start where there is no cluster yet. SHOAL_SERVERS or 1
            by default.
        scheduler: the address of a scheduler, or the folder of a run on this machine, to join.
            Empty for SHOAL_SCHEDULER or a new cluster.
        token: the cluster's shared secret. Empty for SHOAL_TOKEN.
        sync_timeout_s: the seconds until an unanswered request is probed urgently; it fails after
            twice this time. None for SHOAL_SYNC_TIMEOUT_S, which `shoal run` sets, or 10.
        on_timeout: the handling of such a request, as in `ClientOptions`. None for
            SHOAL_ON_TIMEOUT, which `shoal run` sets, or "ask".
        collective: the way of sums over all workers, "ring" or "mpi", as in `ClientOptions`. None
            for SHOAL_COLLECTIVE, which `shoal run` sets, or "ring".
        init_timeout_s: the seconds to wait until the cluster is complete. None for
            SHOAL_INIT_TIMEOUT_S, which `shoal run` sets to no limit, or 60.
        rank: the rank to ask for. None for SHOAL_RANK or any.
        listen: the address to listen at for other workers, as in `ClientOptions`. None for
            SHOAL_LISTEN, or the interface that leads to the scheduler.
        drop_messages: the percentage of messages that are not sent, as in `ClientOptions`. None for
            SHOAL_DROP_MESSAGES, which `shoal run` sets.
        imports: the modules or files that define access methods or handlers; this process and the
            servers started here import them. The script itself needs no entry: a server imports it,
            without the code under `if __name__ == "__main__":`.
        group: the worker group to attach as, with `scheduler`; "" is the first group.
        group_size: the number of workers that make an attached group complete.
        namespace: the prefix of this worker's table names. None for the group's name.

    Returns:
        The context: `rank`, `world_size`, `client`, and `resumed_at` for a resumed run.

    Raises:
        InvalidValue: an option or environment variable out of its range, or a group without a
            scheduler.
        NotImportable: one of `imports` fails, or this is called while a script is imported.
        DataMissing: no run is under way in the folder `scheduler`.
        JoinTimeout: the cluster was not complete, or not all ranks of the launcher came, within
            `init_timeout_s`.
        JoinRefused: the scheduler refused this worker, with its reason.

    Example:
        >>> import shoal
        >>> context = shoal.init()
        >>> context.rank, context.world_size
        (0, 1)
    """
    refuse_while_importing("shoal.init()")
    known = joined()
    if known is not None:
        known.client.check_process()
        return known
    env: Mapping[str, str] = os.environ
    told = ScriptEnvironment.read(
        env,
        rank=rank,
        servers=servers,
        init_timeout_s=init_timeout_s,
        sync_timeout_s=sync_timeout_s,
        on_timeout=on_timeout,
        collective=collective,
        listen=listen,
        drop_messages=drop_messages,
    )
    address = scheduler or told.scheduler
    secret = token or told.token or token_at(address)
    address = scheduler_at(address) if address else ""
    wish = told.rank
    if group and not address:
        raise InvalidValue(
            f"group {group!r} joins a run: give it as scheduler=ADDRESS or scheduler=RUN_FOLDER"
        )
    if told.servers < 1:
        raise InvalidValue(f"init needs at least one server, not {told.servers}")
    code: Any = {"imports": [importable(each) for each in imports], "script": main_script()}
    processes: Processes | None = None
    if not address:
        address, secret, processes, wish = _start_cluster(env, told, secret, **code)
    options = ClientOptions(
        token=secret,
        rank=wish,
        abort_on_error=told.on_worker_loss == "stop",
        group=group,
        group_size=group_size,
        namespace=namespace,
        **{name: getattr(told, name) for name in OF_CLIENTS},
    )
    keep_memory()
    try:
        client = Client(
            address, options, processes.check if processes is not None else lambda: None
        )
    except BaseException:
        if processes is not None:
            processes.stop()
        raise
    before = frozenset(spec.name for spec in client.view.tables) if client.clock else frozenset()
    context = Context(
        client.rank,
        client.world_size if group else _world_size(client, told.world_size),
        client,
        told.resumed.clock,
        frozenset(told.resumed.tables),
        before,
        began_at=told.resumed.clock + client.clock,
        steps_before=told.resumed.steps,
        on_worker_loss=told.on_worker_loss,
        run_dir=_run_dir(scheduler, told, client.run),
        defaults=told.defaults,
    )
    if processes is not None:
        context.at_close(processes.finish)
    set_current(context)
    atexit.register(context.close)
    return context


def _start_cluster(
    env: Mapping[str, str], told: ScriptEnvironment, token: str, **code: Any
) -> tuple[str, str, Processes | None, int]:
    """Return the address, the token, the processes here and the rank in a new cluster.

    It is the cluster of all ranks of a launcher, or else of this process alone.
    """
    world = world_of(env, told.launcher or "auto")
    if world is not None:
        how = told.rendezvous, told.init_timeout_s, told.drop_messages
        address, token, processes = join_cluster(world, env, told.servers, *how, **code)
        return address, token, processes, world.rank
    drops = told.drop_messages
    alone = cluster_here(told.servers, 1, token=token, drop_messages=drops, **code)
    return alone.scheduler, token, alone, told.rank


def _run_dir(scheduler: str, told: ScriptEnvironment, run: str) -> Path:
    """Return the folder of the run that this worker has joined; a new one if none is given.

    scheduler:  the argument of `init`, which may be that folder
    run:        the name of the run, which is also the name of a new folder
    """
    where = scheduler or told.run_dir or told.scheduler
    folder = Path(where) if where and "://" not in where else Path(RUNS, run)
    return folder.absolute()


def set_variables(variables: Mapping[str, str]) -> None:
    """Set environment variables that `init` reads, in this process."""
    os.environ.update(variables)


def _world_size(client: Client, told: int) -> int:
    """Return the number of workers, with those that had finished or were lost before."""
    return max(client.world_size, client.rank + 1, told)
