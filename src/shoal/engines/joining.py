"""shoal.init(): join the run that this process belongs to, however it was started.

shoal run         the run's address is in SHOAL_SCHEDULER
torchrun          rank 0 starts a scheduler and servers and tells the others through the store
python script.py  a scheduler and servers start here, for this only worker
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from shoal.client.client import Client
from shoal.client.connect import scheduler_at
from shoal.client.context import Context, joined, set_current
from shoal.client.options import ClientOptions
from shoal.engines.cluster import cluster_here
from shoal.engines.local import LocalEngine
from shoal.engines.torchrun import gather
from shoal.errors import InvalidValue
from shoal.factories import importable, main_script, refuse_while_importing

Number = TypeVar("Number", int, float)


def init(
    *,
    servers: int | None = None,
    scheduler: str = "",
    token: str = "",
    sync_timeout_s: float | None = None,
    init_timeout_s: float = 60.0,
    rank: int | None = None,
    imports: Sequence[str] = (),
    group: str = "",
    group_size: int = 1,
    namespace: str | None = None,
) -> Context:
    """Join the run; the first call counts, later ones return the same context.

    servers:     number of servers to start under plain python and torchrun; SHOAL_SERVERS by
                 default, or 1
    scheduler:   address of the cluster to join, or the folder of its run
    token:       shared secret of the cluster; SHOAL_TOKEN by default
    sync_timeout_s:  seconds after which a waiting request is sent again; it fails after twice as
                 many. SHOAL_SYNC_TIMEOUT_S by default, which `shoal run` sets, or 10
    init_timeout_s:  seconds to wait until the cluster is complete
    rank:        the rank to ask for
    imports:     modules, or files, that define access methods or handlers; this process imports
                 them, and so do the servers that are started here. What the script itself defines
                 is found without it: where a table names a method that a server does not know, the
                 server imports the script, without what is under `if __name__ == "__main__":`
    group, group_size, namespace:  join a worker group of another run, as `ClientOptions` has it

    Returns the context: `rank`, `world_size`, `client`, and `resumed_at`, the clock of the
    checkpoint that the run continues from. It is closed when the process ends.

    Raises:
        InvalidValue: an option or an environment variable is out of its range
        NotImportable: one of `imports` fails; or this is called while a script is imported
        JoinTimeout: the cluster was not complete in time

    >>> context = shoal.init()                      # doctest: +SKIP
    >>> context.rank, context.world_size            # doctest: +SKIP
    (0, 1)
    """
    refuse_while_importing("shoal.init()")
    known = joined()
    if known is not None:
        return known
    env: Mapping[str, str] = os.environ
    address = scheduler or env.get("SHOAL_SCHEDULER", "")
    address = scheduler_at(address) if address else ""
    wish = _number(env, "SHOAL_RANK", -1) if rank is None else rank
    secret = token or env.get("SHOAL_TOKEN", "")
    count = servers if servers is not None else _number(env, "SHOAL_SERVERS", 1)
    if group and not address:
        raise InvalidValue(
            f"group {group!r} joins a run: give it as scheduler=ADDRESS or scheduler=RUN_FOLDER"
        )
    if count < 1:
        raise InvalidValue(f"init needs at least one server, not {count}")
    if sync_timeout_s is None:
        sync_timeout_s = _number(env, "SHOAL_SYNC_TIMEOUT_S", 10.0)
    code: Any = {"imports": [importable(each) for each in imports], "script": main_script()}
    engine: LocalEngine | None = None
    if not address and "RANK" in env and "WORLD_SIZE" in env and "MASTER_ADDR" in env:
        address, secret, engine, wish = gather(env, count, **code)
    elif not address:
        engine = cluster_here(servers=count, workers=1, token=secret, **code)
        address = engine.address("scheduler")
    options = ClientOptions(
        token=secret,
        rank=wish,
        init_timeout_s=init_timeout_s,
        sync_timeout_s=sync_timeout_s,
        group=group,
        group_size=group_size,
        namespace=namespace,
    )
    try:
        client = Client(address, options)
    except BaseException:
        if engine is not None:
            engine.stop()
        raise
    tables = frozenset(json.loads(env.get("SHOAL_RESUMED_TABLES", "[]")))
    passed = _number(env, "SHOAL_RESUMED_AT", 0)
    before = client.view.tables if client.clock else ()
    context = Context(
        client.rank,
        client.world_size,
        client,
        passed,
        tables,
        tables_before=frozenset(spec.name for spec in before),
    )
    if engine is not None:
        context.at_close(engine.finish)
    set_current(context)
    atexit.register(context.close)
    return context


def _number(env: Mapping[str, str], name: str, default: Number) -> Number:
    try:
        return type(default)(env.get(name, default))
    except ValueError:
        kind = "whole number" if isinstance(default, int) else "number"
        raise InvalidValue(f"{name}={env[name]!r} is not a {kind}") from None
