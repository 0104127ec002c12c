"""What an engine starts, and what it reports: tasks and exits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.errors import ShoalError

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


class Exit(msgspec.Struct, frozen=True):
    """A process has ended.

    code:   its exit status, or minus the signal that killed it
    error:  what it has left in its error file
    how:    how it ended, where the code does not say it
    """

    name: str
    code: int
    pid: int = 0
    error: ShoalError | None = None
    how: str = ""
