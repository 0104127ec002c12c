"""Tasks: the processes that an engine starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DENSE = (
    "torch",
    "shoal.client.client",
    "shoal.tables.dense.shard",
    "shoal.protocol.server.machine",
)
SPARSE = (*DENSE, "shoal.tables.sparse.shard", "shoal.tables.sparse.jit:warm")


@dataclass(frozen=True)
class Task:
    """One process to start: "module:function" with keyword arguments that JSON can carry.

    preload:  the modules to import, and the functions to call ("module:function"), before the
              fork; once for this process and all later ones
    network:  the file of a network namespace; empty for the namespace of the engine
    """

    name: str
    entry: str
    args: dict[str, Any] = field(default_factory=dict)
    preload: tuple[str, ...] = DENSE
    env: dict[str, str] = field(default_factory=dict)
    inherit_output: bool = False
    network: str = ""
