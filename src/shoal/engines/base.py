"""What an engine starts: tasks."""

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

    preload:  modules to import, and functions to call ("module:function"), before it is forked;
              once for it and all later processes
    network:  file of a network namespace; this process's own if empty
    """

    name: str
    entry: str
    args: dict[str, Any] = field(default_factory=dict)
    preload: tuple[str, ...] = DENSE
    env: dict[str, str] = field(default_factory=dict)
    inherit_output: bool = False
    network: str = ""
