"""The hosts of a world's ranks: rank 0 has processes on all of them.

The first rank of each other host answers for it: it starts the processes that rank 0 asks for, and
has the run's folder there. If rank 0's folder is visible to it, that is the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from shoal.engines.addresses import own_address
from shoal.engines.base import Engine, Host, Reservation, Task
from shoal.engines.launchers.meeting import Ranks
from shoal.engines.launchers.rendezvous import Said
from shoal.engines.placing import placed
from shoal.engines.remote import Desk, Keeper, ReachableHost
from shoal.errors import InvalidValue, NotTrusted
from shoal.ownership import others_may_write, others_owner
from shoal.storage.run_folder import RunFolder

COME_S = 60.0  # for the first rank of a host to connect, once all ranks have met


class RanksEngine(Engine, Reservation):
    """The hosts of ranks that have met; server r is on the r-th of them, in turn.

    Args:
        ranks: the ranks.
        folder: the run's folder, on this host.

    Attributes:
        folder: the same folder.
        token: the shared secret of the run; "" where only this user can connect.
        told: what the first ranks of other hosts have to know.
    """

    def __init__(self, ranks: Ranks, folder: RunFolder) -> None:
        self.folder = folder
        self.token = ranks.token
        self._ranks = ranks
        self._desk = Desk(ranks.listen, ranks.token) if ranks.listen else None
        self._by_leader: dict[int, Host] = {}
        self.told: Said = {
            "folder": str(folder.path.resolve()),
            "mark": folder.mark(),
            "desk": self._desk.address if self._desk is not None else "",
            "token": ranks.token,
        }

    def reserve(self, folder: RunFolder, names: Sequence[str] = ()) -> Reservation:
        first, *others = self._ranks.leaders
        self._by_leader[first] = ReachableHost(folder, self._ranks.listen)
        marks = {folder.mark()}
        for leader in others:
            assert self._desk is not None
            try:
                self._by_leader[leader] = host = self._desk.host(name_of(leader), COME_S)
                if host.files.mark() not in marks:  # nor is it the folder of a host before
                    host.files.begin(folder.started_at() + host.files.ahead_s)
                    marks.add(host.files.mark())
            except OSError as error:
                raise InvalidValue(f"rank {leader} cannot take part: {error}") from None
        self.hosts = [*self._by_leader.values()]
        return self

    def host(self, name: str) -> Host:
        role, _, number = name.partition("-")
        if role == "worker":
            return self._by_leader[self._ranks.leader_of(int(number))]
        return self.hosts[int(number) % len(self.hosts) if role == "server" else 0]

    def placed(self, workers: Sequence[Task]) -> list[Said]:
        """Return the tasks of all ranks' workers, each as it is on the rank's host."""
        found = []
        for rank, task in enumerate(workers):
            files = self.host(f"worker-{rank}").files
            found.append(asdict(replace(placed(task, files, self.folder), inputs=())))
        return found

    def close(self) -> None:
        """Hang up on the other hosts."""
        if self._desk is not None:
            self._desk.close()


def folder_here(told: Said, out: Path) -> RunFolder:
    """Return a run's folder on this host: rank 0's if this host sees it, or one of its own.

    told:  what rank 0 says of the run
    out:   the parent of the folder, if this host does not see rank 0's

    Raises:
        NotTrusted: rank 0's folder has a name that leads elsewhere
    """
    named, mark = Path(told["folder"]), told["mark"]
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", named.name) or not mark.isalnum():
        raise NotTrusted(f"the answer at the ranks' rendezvous names a folder {named.name!r}")
    own = out / named.name
    for shared in (named, own):
        if RunFolder(shared).mark() == mark and not _of_others(shared):
            return RunFolder(shared.resolve())
    return RunFolder((out / f"{named.name}-{mark}" if own.exists() else own).resolve())


def _of_others(folder: Path) -> str:
    """Return in words who else has, or may write to, a folder; "" for none."""
    return others_owner(folder) or others_may_write(folder)


@contextmanager
def keeping(
    rank: int, told: Said, folder: RunFolder, agree: Callable[[Task], None]
) -> Iterator[Keeper]:
    """Answer for this host in a `with` block.

    folder:  the run's folder here
    agree:   the function that raises an error for tasks that this process does not start
    """
    listen = own_address(told["desk"])
    host = ReachableHost(folder, listen)
    keeper = Keeper(name_of(rank), host, told["desk"], told["token"], agree)
    try:
        yield keeper
    finally:
        keeper.close()


def name_of(leader: int) -> str:
    """Return the name by which the first rank of a host is known."""
    return f"rank-{leader}"
