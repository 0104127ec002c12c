"""What an engine is: hosts for the processes of a run, and the tasks that they start as processes.

    Engine     reserves hosts for the processes of a run, or refuses
    Host       starts and signals processes on one machine, and reports how they end
    Processes  a run's processes on the hosts of an engine: `engines/processes.py`, for all engines

`shoal.testing.engines` has the laws that every engine obeys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from shoal.engines.host_files import HostFiles
from shoal.protocol.supervision.supervisor import Exit
from shoal.storage.run_folder import RunFolder

DENSE = (
    "torch",
    "shoal.client.client",
    "shoal.tables.dense.shard",
    "shoal.protocol.server.machine",
)
SPARSE = (*DENSE, "shoal.tables.sparse.shard", "shoal.jit:warm")
ENCODED = (*DENSE, "shoal.codecs", "shoal.jit:warm")


@dataclass(frozen=True)
class Input:
    """Files of the command's host that a process reads.

    argument:  the names that lead to the task's argument with the path: a folder or a file in it
    folder:    the folder of the files
    files:     their names, relative to it
    later:     the argument with the folder into which those files of tensors come whole for which
               the process asks; until then it has their headers. "" for files that it gets at once
    """

    argument: tuple[str, ...]
    folder: str
    files: tuple[str, ...]
    later: str = ""


@dataclass(frozen=True)
class Task:
    """One process to start: "module:function" with keyword arguments that JSON can carry.

    Its paths are those of the command's host, as `engines.placing.placed` changes them.

    preload:  the modules to import, and the functions to call ("module:function"), before the
              fork; once for a host and all of its later processes
    inputs:   the files that go to its host before it starts, if that host does not see them
    """

    name: str
    entry: str
    args: dict[str, Any] = field(default_factory=dict)
    preload: tuple[str, ...] = DENSE
    env: dict[str, str] = field(default_factory=dict)
    inherit_output: bool = False
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True)
class Room:
    """What the processes of a run need, for engines whose hosts have limited room.

    worker_cpus, server_cpus:  the processors of each worker and server
    worker_gpus:               the GPUs of each worker
    server_memory:             the bytes of each server; 0 for no limit
    wait_s:                    the time to wait until all of it is free
    """

    worker_cpus: float = 1.0
    worker_gpus: float = 0.0
    server_cpus: float = 1.0
    server_memory: int = 0
    wait_s: float = 60.0

    def of(self, name: str) -> dict[str, float]:
        """Return what a process needs, as Ray names it.

        >>> Room(server_cpus=2, server_memory=500).of("server-1"), Room().of("scheduler")
        ({'CPU': 2, 'memory': 500}, {})
        """
        role = name.partition("-")[0]
        needs = {
            "worker": {"CPU": self.worker_cpus, "GPU": self.worker_gpus},
            "server": {"CPU": self.server_cpus, "memory": self.server_memory},
        }.get(role, {})
        return {kind: amount for kind, amount in needs.items() if amount}


@dataclass(frozen=True)
class Started:
    """A process runs; reported once more when it listens.

    pid:      its id on its host
    address:  the address at which it listens; "" before it does
    """

    name: str
    launch: str
    pid: int
    address: str = ""


@dataclass(frozen=True)
class Wants:
    """A process waits for a file of those that its task's `Input` sends later."""

    name: str
    launch: str
    file: str


HostReport = Started | Exit | Wants


class Host(ABC):
    """Starts and signals processes on one machine.

    The standard error of a process is its log in the host's folder; its error is in a file beside
    it, as `engines.fork_server.run_entry` writes it. All processes end with the host.

    Attributes:
        label: what fails as a whole, such as the machine's name.
        folder: the run's folder on this host, in which its processes write.
        files: the same folder, for the command's host.
        private: a private folder for sockets and small files, as long as the host lives.
    """

    label: str
    folder: RunFolder
    files: HostFiles
    private: Path

    @abstractmethod
    def address(self, name: str) -> str:
        """Return the address on which a process of that name is to listen here; port 0 for any."""

    @abstractmethod
    def start(self, task: Task) -> str:
        """Start a process, and return its launch; one of its name has ended, or never started.

        A launch is an id, unique among all hosts, which the process says where it joins.
        """

    @abstractmethod
    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process; do nothing if it has ended."""

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that is readable when there are reports."""

    @abstractmethod
    def reports(self) -> Sequence[HostReport]:
        """Return what has happened since the last call; do not wait.

        When the host is lost, it reports the ends of all processes that it had, as kills.
        """

    @abstractmethod
    def stop(self) -> None:
        """End all processes, and remove what they had for their time; may be called again."""


class Reservation(ABC):
    """The hosts of one run.

    Attributes:
        hosts: all of them.
    """

    hosts: Sequence[Host]

    @abstractmethod
    def host(self, name: str) -> Host:
        """Return the host of a process, by the process's name."""


class Engine(ABC):
    """Reserves hosts for the processes of runs.

    Attributes:
        reports_ends: whether the scheduler is told of a process's end; False for hosts that stand
            for machines, which are lost with all that could tell it.
        replaces_hosts: whether processes that end with their host can be started again, on another
            that takes its place; they are not reported as lost with it.
    """

    reports_ends: ClassVar[bool] = True
    replaces_hosts: ClassVar[bool] = False

    @abstractmethod
    def reserve(self, folder: RunFolder, names: Sequence[str] = ()) -> Reservation:
        """Reserve hosts for a run, all or none.

        folder:  the run's folder, of the process that calls this
        names:   the names of the run's processes; others may be started beside them

        Raises:
            InvalidValue: there cannot be such hosts; the text says what is missing where
        """
