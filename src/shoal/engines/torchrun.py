"""Under torchrun: rank 0 starts the cluster, and the others read its address from torch's store."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from shoal.engines.cluster import cluster_here
from shoal.engines.local import LocalEngine

KEY = "shoal/scheduler"


def gather(
    env: Mapping[str, str], servers: int, imports: Sequence[str] = (), script: Sequence[str] = ()
) -> tuple[str, str, LocalEngine | None, int]:
    """(scheduler address, token, the engine on rank 0, rank)."""
    import torch.distributed as torch_distributed

    dist: Any = torch_distributed  # its stubs leave the stores out

    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    agents = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.PrefixStore(
        env.get("TORCHELASTIC_RESTART_COUNT", "0"),
        dist.TCPStore(
            env["MASTER_ADDR"],
            int(env["MASTER_PORT"]),
            is_master=rank == 0 and not agents,
            timeout=timedelta(seconds=60),
        ),
    )
    if rank:
        address, _, token = store.get(KEY).decode().partition(" ")
        return address, token, None, rank
    address = token = server_listen = ""
    if int(env.get("LOCAL_WORLD_SIZE", "1")) != size:  # other hosts have to reach the cluster
        host = socket.gethostbyname(socket.gethostname())
        address, server_listen = f"tcp://{host}:{_free_port(host)}", f"tcp://{host}:0"
        token = secrets.token_urlsafe(24)
    reach: Any = {"listen": address, "server_listen": server_listen, "token": token}
    engine = cluster_here(servers, size, imports=imports, script=script, **reach)
    address = address or engine.address("scheduler")
    store.set(KEY, f"{address} {token}")
    return address, token, engine, rank


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
