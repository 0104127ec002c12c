"""The rendezvous of a world: every rank says something, and gets rank 0's answer to all of it.

    torchrun             torch's store, at MASTER_ADDR and MASTER_PORT
    mpirun, srun         one host: a file in a private folder; several: --rendezvous HOST:PORT, at
                         which rank 0 has such a store, or mpi4py

Only JSON travels. A store may be older than this world: torchrun starts a group again beside the
store of the earlier one, and may have put rank 0 on another host. So rank 0 draws an *epoch*, and
the others ask in the latest one: an answer counts for a rank if it names what this rank has asked.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any
from zlib import crc32

from shoal.collective.mpi import communicator
from shoal.engines.launchers.world import World
from shoal.errors import InvalidValue, JoinTimeout, ProcessDied, ShoalError, by_name
from shoal.ownership import private_folder
from shoal.transport.tcp import endpoint_of

log = logging.getLogger("shoal.engine")
_stores: dict[str, Any] = {}  # by address: rank 0's end with its process, not with a meeting

Said = dict[str, Any]
Answer = Callable[[list[Said]], Said]

SAY_S = 10.0  # before a rank says whom it waits for
LOOK_S = 0.02  # between two looks into a store: it has no way to wait for one of two keys
LOOK_MAX_S = 0.25  # the same after some seconds
OLD_S = 86_400  # after which a rendezvous of this host is removed
PORTS = range(20_000, 30_000)  # of stores in Slurm steps, one by each step's id
STARTERS = ("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "prted", "prterun", "orted")


class Rendezvous(ABC):
    """Where the ranks of a world meet."""

    @abstractmethod
    def meet(
        self, said: Said, answer: Answer, timeout_s: float, absent: Collection[int] = ()
    ) -> Said:
        """Say something, and return rank 0's answer.

        said:    what this rank says, as JSON has it
        answer:  the function that rank 0 calls with what all ranks have said, by rank; an error of
                 it is raised on all ranks
        absent:  on rank 0, the ranks that will not come; {} is what they have said

        Raises:
            JoinTimeout: not all ranks have come within `timeout_s`; the text names those that have
        """


class StoreRendezvous(Rendezvous):
    """At a key-value store of torch.

    store:  the store; its keys begin with "shoal/"
    where:  its place, for messages
    """

    def __init__(self, world: World, store: Any, where: str) -> None:
        self._world = world
        self._store = store
        self._where = where
        self._meetings = 0

    def meet(
        self, said: Said, answer: Answer, timeout_s: float, absent: Collection[int] = ()
    ) -> Said:
        world, until = self._world, monotonic() + timeout_s
        self._meetings += 1
        if world.rank:
            nonce = f"{self._meetings} {secrets.token_hex(8)}"
            return _told(self._ask({**said, "nonce": nonce}, until))
        epoch = secrets.token_hex(8)
        self._store.set("shoal/epoch", epoch)
        heard = [said]
        for rank in range(1, world.size):
            heard.append({} if rank in absent else self._hear(epoch, rank, until))
        reply, error = _answered(answer, heard)
        reply["nonces"] = [each.get("nonce", "") for each in heard]
        self._store.set(f"shoal/answer/{epoch}", json.dumps(reply))
        self._stay(epoch, world.size - 1 - len({*absent} - {0}))
        if error is not None:
            raise error
        return _told(reply)

    def _ask(self, said: Said, until: float) -> Said:
        asked = ""

        def answered() -> Said | None:
            nonlocal asked
            epoch = self._get("shoal/epoch")
            if epoch and epoch != asked:  # rank 0 has come, or come again
                asked = epoch
                self._store.set(f"shoal/ask/{epoch}/{self._world.rank}", json.dumps(said))
            found = self._get(f"shoal/answer/{asked}") if asked else ""
            reply: Said | None = json.loads(found) if found else None
            if reply is None or reply["nonces"][self._world.rank] != said["nonce"]:
                return None
            self._store.add(f"shoal/told/{asked}", 1)
            return reply

        return self._await(answered, until, "rank 0 has not answered")

    def _hear(self, epoch: str, rank: int, until: float) -> Said:
        def asked() -> Said | None:
            text = self._get(f"shoal/ask/{epoch}/{rank}")
            found: Said | None = json.loads(text) if text else None
            late = found is not None and not found["nonce"].startswith(f"{self._meetings} ")
            return None if late else found

        here = f"ranks 0 to {rank - 1} have come" if rank > 1 else "rank 0 has come"
        return self._await(asked, until, f"{here}, and rank {rank} has not")

    def _stay(self, epoch: str, others: int) -> None:
        """Wait until the others have the answer: the store may end with this process."""
        until = monotonic() + SAY_S
        while self._store.add(f"shoal/told/{epoch}", 0) < others:
            if monotonic() >= until:  # they have ended, or they say themselves what they lack
                return
            sleep(LOOK_S)

    def _await(self, look: Callable[[], Said | None], until: float, missing: str) -> Said:
        world, began = self._world, monotonic()
        say_at, pause = began + SAY_S, LOOK_S
        what = f"the {world.size} ranks of {world.launcher} at {self._where}: {missing}"
        while (found := look()) is None:
            now = monotonic()
            if now >= until:
                raise JoinTimeout(f"gave up waiting for {what}")
            if now >= say_at:
                say_at = now + (now - began)  # each wait is twice as long
                log.warning("waiting for %s", what)
            sleep(pause)
            pause = min(1.1 * pause, LOOK_MAX_S)
        return found

    def _get(self, key: str) -> str:
        try:
            return self._store.get(key).decode() if self._store.check([key]) else ""
        except Exception as error:  # the store's classes of errors are torch's own
            raise JoinTimeout(f"the store of the ranks at {self._where} is gone: {error}") from None


class MpiRendezvous(Rendezvous):
    """By collective operations of MPI, on arrays of bytes: mpi4py would pickle objects."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def meet(
        self, said: Said, answer: Answer, timeout_s: float, absent: Collection[int] = ()
    ) -> Said:
        import numpy as np

        comm = self._comm
        mine = np.frombuffer(json.dumps(said).encode(), np.uint8)
        sizes = np.empty(comm.Get_size(), np.int64)
        comm.Allgather(np.array([mine.size], np.int64), sizes)
        everything = np.empty(int(sizes.sum()), np.uint8)
        comm.Allgatherv(mine, (everything, sizes))
        reply, size = np.empty(0, np.uint8), np.zeros(1, np.int64)
        error: Exception | None = None
        if comm.Get_rank() == 0:
            ends = np.cumsum(sizes)
            texts = [bytes(everything[end - n : end]) for n, end in zip(sizes, ends, strict=True)]
            answered, error = _answered(answer, [json.loads(text) for text in texts])
            reply = np.frombuffer(json.dumps(answered).encode(), np.uint8)
            size[0] = reply.size
        comm.Bcast(size)
        if comm.Get_rank():
            reply = np.empty(int(size[0]), np.uint8)
        comm.Bcast(reply)
        if error is not None:
            raise error
        return _told(json.loads(bytes(reply)))


def rendezvous_of(
    world: World, env: Mapping[str, str], address: str = "", timeout_s: float = 60.0
) -> Rendezvous:
    """Return where the ranks of a world meet.

    address:  HOST:PORT of a store on rank 0's host, if it is given

    Raises:
        InvalidValue: the ranks are on several hosts, and nothing says where they meet
        JoinTimeout: nobody listens there
    """
    if address:
        return _at_store(world, f"tcp://{address}", world.rank == 0, timeout_s)
    if world.launcher == "torchrun":
        agents = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        where = f"tcp://{_needed(env, 'MASTER_ADDR', world)}:{_needed(env, 'MASTER_PORT', world)}"
        return _at_store(world, where, world.rank == 0 and not agents, timeout_s)
    if world.one_host:
        return _in_folder(world, env)
    if world.launcher == "mpirun":
        return MpiRendezvous(_mpi(world))
    return _at_store(world, _first_node(env), world.rank == 0, timeout_s)


def _mpi(world: World) -> Any:
    """Return the communicator of all ranks, by mpi4py."""
    return communicator(
        f"the {world.size} ranks of mpirun are on several hosts, where they meet by MPI",
        "or give --rendezvous HOST:PORT (SHOAL_RENDEZVOUS), an address of rank 0's host",
        (world.launcher, world.rank, world.size),
    )


def _needed(env: Mapping[str, str], name: str, world: World) -> str:
    if not env.get(name):
        raise InvalidValue(
            f"{world.launcher} has set {world.variables} and no {name}: set it to rank 0's host "
            "and a port there, or give --launcher none (SHOAL_LAUNCHER=none)"
        )
    return env[name]


def _at_store(world: World, where: str, serves: bool, timeout_s: float) -> Rendezvous:
    """Return a rendezvous at a store, which rank 0 serves there if nobody does."""
    import torch.distributed as torch_distributed

    dist: Any = torch_distributed  # its stubs leave the stores out
    host, port = endpoint_of(where)
    until = monotonic() + timeout_s
    while where not in _stores:
        limit = timedelta(seconds=max(1.0, min(SAY_S, until - monotonic())))
        try:
            store = dist.TCPStore(
                host, port, is_master=serves, timeout=limit, wait_for_workers=False
            )
            _stores[where] = store
        except Exception as error:  # torch's own classes
            if serves:
                raise InvalidValue(
                    f"rank 0 cannot serve the rendezvous at {where}: {_first_line(error)}"
                ) from None
            if monotonic() >= until:
                raise JoinTimeout(
                    f"nobody serves the rendezvous at {where}, where rank 0 has to: "
                    f"{_first_line(error)}"
                ) from None
            log.warning("nobody serves the rendezvous at %s yet", where)
    return StoreRendezvous(world, _stores[where], where)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _first_node(env: Mapping[str, str]) -> str:
    """Return the address of a store on the first node of a Slurm step, which has rank 0.

    >>> _first_node({"SLURM_STEP_NODELIST": "gpu[07-9,12],x1", "SLURM_JOB_ID": "4"})
    'tcp://gpu07:26141'
    """
    nodes = env.get("SLURM_STEP_NODELIST", "")
    match = re.match(r"([^\[,]*)(?:\[([^\],-]*))?", nodes)
    name = "".join(match.groups("")) if match else ""
    if not name:
        raise InvalidValue(
            f"srun has set SLURM_STEP_NODELIST={nodes!r}, which names no node: give --rendezvous "
            "HOST:PORT (SHOAL_RENDEZVOUS), an address of rank 0's host"
        )
    return f"tcp://{name}:{PORTS[crc32(_step(env).encode()) % len(PORTS)]}"


def _step(env: Mapping[str, str]) -> str:
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
    return ".".join(env.get(name, "") for name in names)


def _in_folder(world: World, env: Mapping[str, str]) -> Rendezvous:
    """Return a rendezvous at a file of this host, which is named by what has started the ranks."""
    import torch.distributed as torch_distributed

    dist: Any = torch_distributed
    folder = Path(tempfile.gettempdir(), f"shoal-{os.geteuid()}-ranks")
    private_folder(folder)
    for each in folder.iterdir() if world.rank == 0 else ():
        with suppress(OSError):
            if each.stat().st_mtime < time() - OLD_S:
                each.unlink()
    started_by = env.get("PMIX_NAMESPACE", "") if world.launcher == "mpirun" else _step(env)
    name = sha256((started_by or _starter()).encode()).hexdigest()[:32]
    return StoreRendezvous(world, dist.FileStore(str(folder / name), -1), str(folder))


def _starter() -> str:
    """Return which process has started the ranks: an ancestor by a known name, or the parent."""
    first = process = os.getppid()
    while process > 1:
        name, parent, began = _process(process)
        if name in STARTERS:
            return f"{process} {began}"
        process = parent
    return f"{first} {_process(first)[2]}"


def _process(process: int) -> tuple[str, int, str]:
    """Return a process's name, its parent, and when it began, in ticks since the system did."""
    before, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")
    fields = rest.split()
    return before.partition("(")[2], int(fields[1]), fields[19]


def _answered(answer: Answer, heard: list[Said]) -> tuple[Said, Exception | None]:
    """Return rank 0's answer, or what others are told of its error, and the error."""
    try:
        return {"answer": answer(heard)}, None
    except ShoalError as error:
        return {"error": type(error).__name__, "message": error.message}, error
    except Exception as error:
        told = f"rank 0 has failed: {type(error).__name__}: {error}"
        return {"error": ProcessDied.__name__, "message": told}, error


def _told(reply: Said) -> Said:
    """Return rank 0's answer, or raise its error."""
    if "error" in reply:
        raise by_name(reply["error"])(reply["message"])
    found: Said = reply["answer"]
    return found
