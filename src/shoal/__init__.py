"""Shoal: distributed training around a parameter server, for PyTorch.

Servers hold sharded tables; workers pull rows, compute and push updates. Consistency ranges from
bulk synchronous through bounded staleness to asynchronous. The names in `__all__` are the public
API. They are imported on first use, so that programs that need no torch start without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import ctr, nn, word2vec
    from shoal.apps.compare.command import compare
    from shoal.apps.train.command import TrainResult, train
    from shoal.client.client import Client
    from shoal.client.connect import connect
    from shoal.client.context import Context
    from shoal.client.leases import Lease, leases
    from shoal.client.log import log
    from shoal.client.row_cache import RowCache
    from shoal.data.sampler import Sampler
    from shoal.engines.joining import init
    from shoal.keys import KeyRange
    from shoal.node.future import Future
    from shoal.pytorch.clipping import clip_grad_norm_
    from shoal.pytorch.flat_parameters import FlatParams
    from shoal.pytorch.loop.module_state import broadcast
    from shoal.pytorch.optimizer import Optimizer
    from shoal.pytorch.saving import load, save
    from shoal.pytorch.table_state import TableState
    from shoal.reports.comparison import CellRuns, ComparedRuns, load_comparison
    from shoal.reports.curves import Curves, Point
    from shoal.reports.events import Run, load_run
    from shoal.tables.consistency import Consistency, Cover, Quorum, asp, bsp, ssp
    from shoal.tables.custom.calls import Pairs
    from shoal.tables.custom.shard import handler
    from shoal.tables.init import Init
    from shoal.tables.sparse.user_methods import access_method
    from shoal.tables.spec import Access, Span, TableSpec

_NAMES = {  # by the module that has them
    "shoal.apps.compare.command": "compare",
    "shoal.apps.train.command": "TrainResult train",
    "shoal.client.client": "Client",
    "shoal.client.connect": "connect",
    "shoal.client.context": "Context",
    "shoal.client.leases": "Lease leases",
    "shoal.client.log": "log",
    "shoal.client.row_cache": "RowCache",
    "shoal.data.sampler": "Sampler",
    "shoal.engines.joining": "init",
    "shoal.keys": "KeyRange",
    "shoal.node.future": "Future",
    "shoal.pytorch.clipping": "clip_grad_norm_",
    "shoal.pytorch.flat_parameters": "FlatParams",
    "shoal.pytorch.loop.module_state": "broadcast",
    "shoal.pytorch.optimizer": "Optimizer",
    "shoal.pytorch.saving": "load save",
    "shoal.pytorch.table_state": "TableState",
    "shoal.reports.comparison": "CellRuns ComparedRuns load_comparison",
    "shoal.reports.curves": "Curves Point",
    "shoal.reports.events": "Run load_run",
    "shoal.tables.custom.calls": "Pairs",
    "shoal.tables.custom.shard": "handler",
    "shoal.tables.sparse.user_methods": "access_method",
    "shoal.tables.init": "Init",
    "shoal.tables.consistency": "Consistency Cover Quorum asp bsp ssp",
    "shoal.tables.spec": "Access Span TableSpec",
}
_MODULES = ("ctr", "nn", "word2vec")
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [
    "Access",
    "CellRuns",
    "Client",
    "ComparedRuns",
    "Consistency",
    "Context",
    "Cover",
    "Curves",
    "FlatParams",
    "Future",
    "Init",
    "KeyRange",
    "Lease",
    "Optimizer",
    "Pairs",
    "Point",
    "Quorum",
    "RowCache",
    "Run",
    "Sampler",
    "Span",
    "TableSpec",
    "TableState",
    "TrainResult",
    "access_method",
    "asp",
    "broadcast",
    "bsp",
    "clip_grad_norm_",
    "compare",
    "connect",
    "ctr",
    "handler",
    "init",
    "leases",
    "load",
    "load_comparison",
    "load_run",
    "log",
    "nn",
    "save",
    "ssp",
    "train",
    "word2vec",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"shoal.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
