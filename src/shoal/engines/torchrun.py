"""Under torchrun: rank 0 starts the cluster, and the others read its address from torch's store."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

from shoal.engines.cluster import cluster_here
from shoal.engines.processes import Processes
from shoal.engines.roles import own_address
from shoal.errors import InvalidValue
from shoal.transport.tcp import endpoint_of, tcp_address

KEY = "shoal/scheduler"
ELSEWHERE = "tcp://192.0.2.1:9"  # no host has it (RFC 5737): the default route leads there


def gather(
    env: Mapping[str, str], servers: int, imports: Sequence[str] = (), script: Sequence[str] = ()
) -> tuple[str, str, Processes | None, int]:
    """Return (scheduler address, token, processes, rank).

    Rank 0 starts the cluster and gets its processes; other ranks get None.
    """
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
        host = reachable(env)
        address = server_listen = tcp_address(host, 0)
        token = secrets.token_urlsafe(24)
    reach: Any = {"listen": address, "server_listen": server_listen, "token": token}
    processes = cluster_here(servers, size, imports=imports, script=script, **reach)
    address = processes.scheduler
    store.set(KEY, f"{address} {token}")
    return address, token, processes, rank


def reachable(env: Mapping[str, str]) -> str:
    """Return the address of this host that the other hosts of the job can reach.

    It is the address of the interface SHOAL_INTERFACE, of the interface that leads to MASTER_ADDR,
    or of that of the default route. The host's own name is not used: it may stand for loopback, or
    be unknown.

    Raises:
        InvalidValue: no such address is known.
    """
    interface = env.get("SHOAL_INTERFACE", "")
    ways = [f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}", ELSEWHERE]
    for way in ways[: 1 if interface else None]:
        with suppress(OSError):
            host, _ = endpoint_of(own_address(way, interface))
            if interface or not ip_address(host).is_loopback:
                return host
    raise InvalidValue(
        f"no address of this host is known that other hosts can reach (MASTER_ADDR is "
        f"{env['MASTER_ADDR']}): set SHOAL_INTERFACE to the name of its network interface"
    )
