"""Peers, with a tensor that another process holds and updates: torch.distributed, and Ray.

Both push an update, wait until it is applied, and pull the rows, as a client does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.apps.bench.rows import Call
from shoal.engines.base import Task
from shoal.engines.processes import Processes

END, PUSH, PULL = 0, 1, 2
LR = 1e-3
TIMEOUT = timedelta(seconds=60)  # until an operation of gloo fails

Calls = tuple[Call, Call]  # push the next of some buffers; pull


@contextmanager
def gloo_group(rank: int, rendezvous: str) -> Iterator[None]:
    """Join a group of two processes of this host in torch.distributed over gloo."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo asks for the host's name otherwise
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=TIMEOUT
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def gloo(processes: Processes, buffers: Iterator[Tensor], out: Tensor) -> Iterator[Calls]:
    """Push and pull with `send` and `recv` over gloo, which uses TCP."""
    rendezvous = f"file://{processes.private}/peer-{out.numel()}"
    entry = f"{__name__}:gloo_holder"
    processes.start(Task("gloo", entry, {"rendezvous": rendezvous, "elements": out.numel()}))
    what = [torch.tensor([each]) for each in (END, PUSH, PULL)]
    done = torch.zeros(1)

    def push() -> None:
        dist.send(what[PUSH], 1)
        dist.send(next(buffers), 1)
        dist.recv(done, 1)

    def pull() -> None:
        dist.send(what[PULL], 1)
        dist.recv(out, 1)

    with gloo_group(0, rendezvous):
        try:
            yield push, pull
        finally:
            dist.send(what[END], 1)


def gloo_holder(rendezvous: str, elements: int) -> None:
    """Hold the rows for `gloo`, in a process of its own."""
    torch.set_num_threads(1)
    rows, update, done = torch.zeros(elements), torch.zeros(elements), torch.zeros(1)
    what = torch.zeros(1, dtype=torch.int64)
    with gloo_group(1, rendezvous):
        while True:
            dist.recv(what, 0)
            if what == END:
                break
            if what == PUSH:
                dist.recv(update, 0)
                rows.add_(update, alpha=-LR)
                dist.send(done, 0)
            else:
                dist.send(rows, 0)


@contextmanager
def ray_actor(buffers: Iterator[Tensor], out: Tensor) -> Iterator[Calls | None]:
    """Push and pull with a Ray actor that holds the rows; yield None where Ray is not installed."""
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray: Any = import_module("ray")  # its types do not fit its own functions
    except ImportError:
        yield None
        return
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
        object_store_memory=1 << 30,
    )
    try:
        holder = ray.remote(_Holder).remote(out.numel())
        target = out.numpy()

        def push() -> None:
            ray.get(holder.push.remote(next(buffers).numpy()))

        def pull() -> None:
            target[:] = ray.get(holder.pull.remote())

        yield push, pull
    finally:
        ray.shutdown()


class _Holder:
    def __init__(self, elements: int) -> None:
        import numpy as np

        self.rows = np.zeros(elements, np.float32)

    def push(self, update: Any) -> None:
        self.rows -= LR * update

    def pull(self) -> Any:
        return self.rows
