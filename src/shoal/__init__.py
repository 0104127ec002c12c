"""Shoal: distributed training around a parameter server, for PyTorch.

Servers hold sharded tables; workers pull rows, compute and push updates. Consistency ranges from
bulk synchronous through bounded staleness to asynchronous. The names in `__all__` are the public
API. They are imported on first use, so that programs that need no torch start without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import nn
    from shoal.apps.train.command import TrainResult, train
    from shoal.client.client import Client
    from shoal.client.connect import connect
    from shoal.client.context import Context
    from shoal.client.leases import Lease, leases
    from shoal.data.sampler import Sampler
    from shoal.engines.joining import init
    from shoal.keys import KeyRange
    from shoal.node.future import Future
    from shoal.pytorch.flat_parameters import FlatParams
    from shoal.pytorch.optimizer import Optimizer
    from shoal.pytorch.table_state import TableState
    from shoal.reports.events import Run, load_run
    from shoal.tables.custom.calls import Pairs
    from shoal.tables.custom.shard import handler
    from shoal.tables.sparse.user_methods import access_method
    from shoal.tables.spec import Access, Consistency, Init, TableSpec, asp, bsp, ssp

_HOME = {
    "Access": "shoal.tables.spec",
    "Client": "shoal.client.client",
    "Consistency": "shoal.tables.spec",
    "Context": "shoal.client.context",
    "FlatParams": "shoal.pytorch.flat_parameters",
    "Future": "shoal.node.future",
    "Init": "shoal.tables.spec",
    "KeyRange": "shoal.keys",
    "Lease": "shoal.client.leases",
    "Optimizer": "shoal.pytorch.optimizer",
    "Pairs": "shoal.tables.custom.calls",
    "Run": "shoal.reports.events",
    "Sampler": "shoal.data.sampler",
    "TableSpec": "shoal.tables.spec",
    "TableState": "shoal.pytorch.table_state",
    "TrainResult": "shoal.apps.train.command",
    "access_method": "shoal.tables.sparse.user_methods",
    "asp": "shoal.tables.spec",
    "bsp": "shoal.tables.spec",
    "connect": "shoal.client.connect",
    "handler": "shoal.tables.custom.shard",
    "init": "shoal.engines.joining",
    "leases": "shoal.client.leases",
    "load_run": "shoal.reports.events",
    "ssp": "shoal.tables.spec",
    "train": "shoal.apps.train.command",
}
__all__ = [
    "Access",
    "Client",
    "Consistency",
    "Context",
    "FlatParams",
    "Future",
    "Init",
    "KeyRange",
    "Lease",
    "Optimizer",
    "Pairs",
    "Run",
    "Sampler",
    "TableSpec",
    "TableState",
    "TrainResult",
    "access_method",
    "asp",
    "bsp",
    "connect",
    "handler",
    "init",
    "leases",
    "load_run",
    "nn",
    "ssp",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module("shoal.nn")
    if name not in _HOME:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
