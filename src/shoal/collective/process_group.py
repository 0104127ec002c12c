"""A collective on torch.distributed (gloo on CPUs)."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from shoal.errors import PeerError

TIMEOUT = timedelta(seconds=60)  # until an operation fails


class ProcessGroup:
    """torch.distributed as a `Collective`.

    Args:
        rank: the rank of this worker.
        world_size: the number of workers.
        rendezvous: a torch init method, such as file:///PATH or tcp://HOST:PORT.
    """

    def __init__(self, rank: int, world_size: int, rendezvous: str) -> None:
        self.rank = rank
        self.world_size = world_size
        self._mine = not dist.is_initialized()
        if self._mine:
            if rendezvous.startswith("file:"):  # all on this host; gloo asks for its name otherwise
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group(
                "gloo",
                init_method=rendezvous,
                rank=rank,
                world_size=world_size,
                timeout=TIMEOUT,
            )

    def all_reduce(self, tensor: Tensor, mean: bool = False) -> None:
        try:
            dist.all_reduce(tensor)
            if mean:
                tensor.div_(self.world_size)
        except RuntimeError as error:
            raise PeerError(f"allreduce of {self.world_size} workers failed: {error}") from error

    def close(self) -> None:
        if self._mine and dist.is_initialized():
            dist.destroy_process_group()
