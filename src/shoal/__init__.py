"""Shoal: distributed training around a parameter server, for PyTorch.

Servers hold sharded tables; workers pull rows, compute and push updates. Consistency ranges from
bulk synchronous through bounded staleness to asynchronous. The names in `__all__` are the public
API, with those of `shoal.tables`, `shoal.client`, `shoal.pytorch`, `shoal.reports` and
`shoal.errors`. They are imported on first use: programs that need no torch start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.lazy import public

if TYPE_CHECKING:
    from shoal import ctr, nn, word2vec
    from shoal.apps.compare.command import compare
    from shoal.apps.train.command import TrainResult, train
    from shoal.client.all_reduce import all_reduce
    from shoal.client.client import Client
    from shoal.client.connect import connect
    from shoal.client.leases import leases
    from shoal.client.log import log
    from shoal.client.row_cache import RowCache
    from shoal.data.sampler import Sampler
    from shoal.engines.joining import init
    from shoal.pytorch.clipping import clip_grad_norm_
    from shoal.pytorch.ddp import ddp_hook
    from shoal.pytorch.loop.module_state import broadcast
    from shoal.pytorch.optimizer import Optimizer
    from shoal.pytorch.saving import load, save
    from shoal.reports.events import Run, load_run
    from shoal.tables.consistency import asp, bsp, ssp
    from shoal.tables.custom.shard import handler
    from shoal.tables.own_methods import access_method
    from shoal.tables.spec import TableSpec
    from shoal.transport.tensors import shared_zeros

_HOMES = {
    "shoal.apps.compare.command": "compare",
    "shoal.apps.train.command": "TrainResult train",
    "shoal.client.all_reduce": "all_reduce",
    "shoal.client.client": "Client",
    "shoal.client.connect": "connect",
    "shoal.client.leases": "leases",
    "shoal.client.log": "log",
    "shoal.client.row_cache": "RowCache",
    "shoal.transport.tensors": "shared_zeros",
    "shoal.ctr": "",
    "shoal.data.sampler": "Sampler",
    "shoal.engines.joining": "init",
    "shoal.nn": "",
    "shoal.pytorch.clipping": "clip_grad_norm_",
    "shoal.pytorch.ddp": "ddp_hook",
    "shoal.pytorch.loop.module_state": "broadcast",
    "shoal.pytorch.optimizer": "Optimizer",
    "shoal.pytorch.saving": "load save",
    "shoal.reports.events": "Run load_run",
    "shoal.tables.consistency": "asp bsp ssp",
    "shoal.tables.custom.shard": "handler",
    "shoal.tables.own_methods": "access_method",
    "shoal.tables.spec": "TableSpec",
    "shoal.word2vec": "",
}
__all__ = [
    "Client",
    "Optimizer",
    "RowCache",
    "Run",
    "Sampler",
    "TableSpec",
    "TrainResult",
    "access_method",
    "all_reduce",
    "asp",
    "broadcast",
    "bsp",
    "clip_grad_norm_",
    "compare",
    "connect",
    "ctr",
    "ddp_hook",
    "handler",
    "init",
    "leases",
    "load",
    "load_run",
    "log",
    "nn",
    "save",
    "shared_zeros",
    "ssp",
    "train",
    "word2vec",
]

__getattr__, __dir__ = public(
    __name__, _HOMES, ("client", "errors", "pytorch", "reports", "strategies", "tables")
)
