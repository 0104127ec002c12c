"""A process's part in a run: tensors in and out of tables, sums, barriers and leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.lazy import public

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.client.context import Context
    from shoal.client.leases import Lease
    from shoal.node.future import Future

__all__ = [
    "Client",
    "Context",
    "Future",
    "Lease",
]

__getattr__, __dir__ = public(
    __name__,
    {
        "shoal.client.client": "Client",
        "shoal.client.context": "Context",
        "shoal.client.leases": "Lease",
        "shoal.node.future": "Future",
    },
)
