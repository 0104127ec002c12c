"""The meeting of a world's ranks: rank 0 hears of all hosts, starts the cluster, and tells it.

The scheduler is on rank 0's host. The servers are spread over the hosts, and the first rank of each
host starts those that are there.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from math import ceil, inf
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from shoal.engines.addresses import between_hosts, reachable
from shoal.engines.base import ENCODED, SPARSE, Task
from shoal.engines.cluster import processes_here, start_cluster
from shoal.engines.launchers.rendezvous import Said, rendezvous_of
from shoal.engines.launchers.seal import Seal
from shoal.engines.launchers.world import World
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue, NotTrusted, ShoalError, by_name
from shoal.transport.tcp import tcp_address

SERVER = "shoal.engines.roles:run_server"


class Heard(msgspec.Struct, frozen=True):
    """What a rank says of its place.

    host:     the name of its host
    machine:  what tells whether another process can connect to its loopback address
    asked:    a digest of what its command was asked to do
    """

    local_rank: int
    host: str
    machine: str
    asked: str = ""


class Ranks:
    """The ranks that have met, as rank 0 knows them.

    heard:      what each has said, by rank
    token:      the shared secret that all ranks have been given; "" to draw one
    interface:  the network interface to listen on; "" for the one that leads to the others

    Attributes:
        leaders: the first rank of each host.
        listen: the address at which processes on rank 0's host listen; "" for Unix sockets.
        token: the shared secret of the cluster; "" where only this user can connect.
    """

    def __init__(self, heard: list[Heard], interface: str = "", token: str = "") -> None:
        self._heard = heard
        self.leaders = [rank for rank, each in enumerate(heard) if each.local_rank == 0]
        if self.leaders[:1] != [0]:
            raise InvalidValue(
                "rank 0 is not the first rank of its host: let the launcher number ranks by host"
            )
        others_asked = [rank for rank, each in enumerate(heard) if each.asked != heard[0].asked]
        if others_asked:
            raise InvalidValue(
                f"ranks 0 and {others_asked[0]} have different options: give all ranks the same"
            )
        self.listen = self.token = ""
        if len(self.leaders) > 1:
            others = [each.host for each in heard if each.machine != heard[0].machine]
            ways = [tcp_address(each, 9) for each in others[:1]]
            self.listen = between_hosts(reachable(ways, interface) if ways else "127.0.0.1")
            self.token = token or secrets.token_urlsafe(24)
        self._tasks: dict[int, list[Said]] = {rank: [] for rank in self.leaders}

    def start(self, processes: Processes, task: Task) -> None:
        """Start a task here, or keep it for the first rank of its host."""
        name, _, number = task.name.partition("-")
        hosts = len(self.leaders)
        leader = self.leaders[int(number) % hosts] if name == "server" else 0
        if name == "server" and (servers := task.args.get("servers_here", 1)) > 1:
            here = ceil(servers / hosts)  # they share this host's memory
            task = replace(task, args={**task.args, "servers_here": here})
        if not leader:
            processes.start(task)
            return
        # where a process listens is found out on its own host
        self._tasks[leader].append(asdict(replace(task, args={**task.args, "listen": ""})))

    def leader_of(self, rank: int) -> int:
        """Return the first rank of a rank's host, with which it shares all folders.

        Raises:
            InvalidValue: it has none
        """
        own = self._heard[rank]
        there = [
            leader
            for leader in self.leaders
            if (self._heard[leader].machine, self._heard[leader].host) == (own.machine, own.host)
        ]
        if there:  # two nodes may be one machine: ranks are mostly numbered by node
            return max((each for each in there if each <= rank), default=there[0])
        raise InvalidValue(f"rank {rank} on {own.host} sees no process of the first rank there")

    @property
    def tasks(self) -> dict[str, list[Said]]:
        """The tasks that are started by the first ranks of other hosts, by rank."""
        return {str(rank): tasks for rank, tasks in self._tasks.items() if tasks}


class Meeting:
    """The place where the ranks of a world meet, as often as they want.

    Args:
        world: the world.
        env: the environment of this process, which says where its launcher's ranks meet.
        rendezvous: HOST:PORT, where launchers do not say it.
        timeout_s: the time that the others have to come.

    Attributes:
        begun: whether any rank of this process has taken part in a meeting.

    Raises:
        InvalidValue, JoinTimeout: the ranks cannot meet
    """

    begun: ClassVar[bool] = False

    def __init__(
        self,
        world: World,
        env: Mapping[str, str],
        rendezvous: str = "",
        timeout_s: float = 60.0,
    ) -> None:
        self.world = world
        self._interface = env.get("SHOAL_INTERFACE", "")
        self._timeout_s = timeout_s
        self._seal = Seal(env.get("SHOAL_TOKEN", ""), world.rank)
        self._place = rendezvous_of(world, env, rendezvous, timeout_s)

    def meet(self, answer: Callable[[Ranks], Said], asked: bytes = b"") -> Said:
        """Wait for the other ranks, and return rank 0's answer to them.

        answer:  the function that makes it; called on rank 0
        asked:   what this command was asked to do, the same on all ranks

        Raises:
            JoinTimeout: some have not come
            NotTrusted: some have another SHOAL_TOKEN, or what they say is not theirs
            ShoalError: the error of `answer`, on all ranks
        """
        digest = sha256(asked).hexdigest()
        said = Heard(self.world.local_rank, socket.gethostname(), _machine(), digest)

        Meeting.begun = True

        def answered(heard: list[Said]) -> Said:
            _raise_first(heard)
            said = [self._seal.opened(each, rank) for rank, each in enumerate(heard)]
            told = [msgspec.convert(each, Heard) for each in said]
            made = answer(Ranks(told, self._interface, self._seal.token))
            return self._seal.answered(made, heard)

        mine = self._seal.said(msgspec.to_builtins(said))
        return self._seal.checked(self._place.meet(mine, answered, self._timeout_s), mine)

    def refuse(self, error: ShoalError) -> None:
        """Have all ranks raise an error of this rank, in place of a meeting."""

        def refused(heard: list[Said]) -> Said:
            raise error

        with suppress(ShoalError):  # it is the same, or nobody hears it
            said = {"error": [type(error).__name__, error.message]}
            self._place.meet(said, refused, self._timeout_s)

    def told(self, told: Said, absent: Collection[int] = ()) -> Said:
        """Wait for the other ranks, and return what rank 0 has told them.

        absent:  the ranks that rank 0 knows to be absent
        """
        mine = self._seal.said({})

        def answered(heard: list[Said]) -> Said:
            for rank, each in enumerate(heard):
                if rank not in absent:
                    self._seal.opened(each, rank)
            return self._seal.answered(told, heard)

        reply = self._place.meet(mine, answered, inf, absent)
        return self._seal.checked(reply, mine)

    def tasks(
        self, reply: Said, imports: Sequence[str] = (), script: Sequence[str] = ()
    ) -> list[Task]:
        """Return the servers that this rank has to start, as rank 0's answer has them.

        imports, script:  the user's code that servers import, as this rank was asked

        Raises:
            NotTrusted: the answer has anything else: stores of torch have no password
        """
        tasks = [Task(**each) for each in reply["tasks"].get(str(self.world.rank), [])]
        for task in tasks:
            check_server(task, {"imports": [*imports], "script": [*script]})
        return tasks


def _raise_first(heard: list[Said]) -> None:
    """Raise the error of the first rank that has one."""
    for rank, each in enumerate(heard):
        if "error" in each:
            kind, message = each["error"]
            raise by_name(kind)(f"rank {rank}: {message}")


def join_cluster(
    world: World,
    env: Mapping[str, str],
    servers: int,
    rendezvous: str = "",
    timeout_s: float = 60.0,
    drop_messages: str = "",
    **code: Any,
) -> tuple[str, str, Processes | None]:
    """Return the scheduler's address, the token, and the processes that this rank has started.

    servers:     the number of servers on all hosts
    rendezvous:  HOST:PORT, where launchers do not say where ranks meet
    drop_messages:  what the scheduler and servers do not send, as the option
    code:        `imports` and `script` of `start_cluster`

    Raises:
        InvalidValue, JoinTimeout, ShoalError: as `Meeting.meet`
    """
    processes: Processes | None = None

    def answer(ranks: Ranks) -> Said:
        nonlocal processes
        processes = processes_here()
        reach = {"listen": ranks.listen, "server_listen": ranks.listen, "token": ranks.token}
        reach["drop_messages"] = drop_messages
        starts = partial(ranks.start, processes)
        address = start_cluster(processes, servers, world.size, starts=starts, **reach, **code)
        return {"scheduler": address, "token": ranks.token, "tasks": ranks.tasks}

    try:
        meeting = Meeting(world, env, rendezvous, timeout_s)
        told = meeting.meet(answer)
        for task in meeting.tasks(told, **code):
            processes = processes or processes_here()
            processes.start(task)
    except BaseException:
        if processes is not None:
            processes.stop()
        raise
    return told["scheduler"], told["token"], processes


def check_server(task: Task, code: Mapping[str, list[str]]) -> None:
    """Refuse a task that is not of a server, or that names other code than this rank was asked."""
    named = {name: [*task.args.get(name, ())] for name in code}
    ours = task.entry == SERVER and {*task.preload} <= {*SPARSE, *ENCODED} and not task.env
    ours = ours and not task.inputs
    if not (ours and named == code and re.fullmatch("server-[0-9]{1,4}", task.name)):
        raise NotTrusted(
            f"the answer at the ranks' rendezvous has a task {task.name!r} that is no server's, or "
            f"with other code than this rank's: {task.entry} {named}"
        )


def _machine() -> str:
    """Return what two processes have in common that can connect over loopback."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').stat().st_ino} {os.geteuid()}"
