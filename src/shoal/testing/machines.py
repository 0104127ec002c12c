"""MachinesEngine: machines that share nothing but the network, on this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.engines.base import Engine, Host, Reservation
from shoal.engines.hosts import Hosts
from shoal.engines.local import LocalHost
from shoal.storage.run_folder import RunFolder


class MachinesEngine(Engine):
    """Network namespaces that stand for machines, which share nothing but the network.

    Each has a folder of its own and several processes, which one fork server of its own forks.

    hosts:   the namespaces
    folders: the parent of the machines' folders; the run's folder is elsewhere
    place:   the machine of each process, by the process's name
    """

    reports_ends = False

    def __init__(self, hosts: Hosts, folders: Path, place: Callable[[str], str]) -> None:
        self._hosts = hosts
        self._folders = folders
        self._place = place

    def reserve(self, folder: RunFolder, names: Sequence[str] = ()) -> Reservation:
        return _Machines(folder, self._hosts, self._folders, self._place)


class _Machines(Reservation):
    def __init__(
        self, run: RunFolder, hosts: Hosts, folders: Path, place: Callable[[str], str]
    ) -> None:
        self._place = place
        self._by_name = {name: _Machine(run, hosts, folders / name, name) for name in hosts.names}
        self.hosts = [*self._by_name.values()]

    def host(self, name: str) -> Host:
        return self._by_name[self._place(name)]


class _Machine(LocalHost):
    def __init__(self, run: RunFolder, hosts: Hosts, root: Path, name: str) -> None:
        own = RunFolder.begin_in(root / run.path.name, run.started_at())
        super().__init__(own, label=name, root=root)
        self._hosts = hosts

    def address(self, name: str) -> str:
        return self._hosts.address_of_any(self.label)

    def network(self, name: str) -> str:
        return self._hosts.namespace(self.label)
