"""What an engine is, and the tasks that it starts as processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shoal.protocol.supervision.supervisor import LossPolicy
from shoal.storage.run_folder import RunFolder

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


class Engine(Protocol):
    """Starts the processes of a run, and waits for them.

    An engine tells a `Supervisor` which processes have ended and what the scheduler's events say of
    them, and carries out its decisions: start one again, end one, report a death. The standard
    error of a process is its log in the run's folder; its error is in a file beside it, as
    `engines.launcher.run_entry` writes it. `LocalEngine` has processes of this machine.

    Attributes:
        folder: the run's folder, which all processes can reach.
        sockets: a private folder for sockets and small files, as long as the engine lives.
        token: the shared secret of the processes, if others can reach them; "" for none.
        at_stop: the functions to call when all processes have ended.
    """

    folder: RunFolder
    sockets: Path
    token: str
    at_stop: ExitStack

    def address(self, name: str) -> str:
        """Return the address on which a process of this run listens."""

    def start(self, task: Task) -> None:
        """Start a process; one of its name has ended, or was never started."""

    def join(self, tick: Callable[[], None], tick_s: float = ..., policy: LossPolicy = ...) -> None:
        """Wait for every process; after a failure, end all processes and raise its cause.

        tick:    the function to call every `tick_s`, for progress displays
        policy:  the reaction to lost processes
        """

    def stop(self) -> None:
        """End the processes that still run."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *raised: object) -> None: ...
