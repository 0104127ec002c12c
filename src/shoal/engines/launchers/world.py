"""The world of a process that a launcher has started as one of several ranks: one table.

The first of the table that has set its variables is the launcher: torchrun may run under srun. In a
batch script of Slurm, SLURM_PROCID is 0 and there are no ranks: only a step has a number of tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from shoal.errors import InvalidValue

ROLE = "DMLC_ROLE"  # of ps-lite, whose processes are no ranks
NONE = "none"  # the name of no launcher, for --launcher and SHOAL_LAUNCHER
Env = Mapping[str, str]


class World(msgspec.Struct, frozen=True):
    """The ranks that a launcher has started, and this process's place among them.

    Attributes:
        launcher: the launcher, as a user calls it.
        rank, size: the place among all, and their number.
        local_rank, local_size: the same on this host.
        variables: the variables that say so, for messages.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    variables: str

    @property
    def one_host(self) -> bool:
        """Whether all ranks are on this host."""
        return self.local_size == self.size

    def check_workers(self, workers: int) -> None:
        """Refuse another number of workers than ranks: each rank is a worker.

        Raises:
            InvalidValue: the numbers differ
        """
        if workers != self.size:
            raise InvalidValue(
                f"--workers {workers} in a world of {self.size}: {self.launcher} has started "
                f"{self.size} processes ({self.variables}), each of which is a worker; leave out "
                "--workers, or give --launcher none to start a run of its own in each of them"
            )


@dataclass(frozen=True)
class _Launcher:
    """The variables of a launcher.

    local_size:  the variable with the number of ranks on this host, or a function that finds it
    whole:       whether it counts only with all of its variables: srun may set some of them, too
    """

    name: str
    called: str
    rank: str
    size: str
    local_rank: str
    local_size: str | Callable[[Env], str]
    whole: bool = False


def _tasks_of_node(env: Env) -> str:
    """Return the number of a step's tasks on this node, from a text such as "2(x3),1".

    >>> _tasks_of_node({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"})
    '1'
    """
    counts: list[str] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            counts += [match[1]] * int(match[2] or 1)
    node = env.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else ""


_OMPI = "OMPI_COMM_WORLD"
LAUNCHERS = (
    _Launcher("torchrun", "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher(
        "mpi",
        "mpirun",
        f"{_OMPI}_RANK",
        f"{_OMPI}_SIZE",
        f"{_OMPI}_LOCAL_RANK",
        f"{_OMPI}_LOCAL_SIZE",
    ),
    _Launcher("mpi", "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", True),
    _Launcher(
        "slurm", "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", _tasks_of_node
    ),
    _Launcher("mpi", "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
NAMES = ("auto", NONE, *dict.fromkeys(each.name for each in LAUNCHERS))
# what a process that a rank has started must not take for its own
PREFIXES = ("OMPI_", "PMIX_", "PMI_", "HYDI_", "MPI_LOCAL", "SLURM_STEP", "TORCHELASTIC_")


def world_of(env: Env, launcher: str = "auto") -> World | None:
    """Return the world of this process; None if it is no rank of several.

    launcher:  the launcher to look for; "auto" for any, "none" for no world

    Raises:
        InvalidValue: variables that contradict each other, or an unknown launcher; or those of
            ps-lite, which make no world of ranks
    """
    if launcher not in NAMES:
        raise InvalidValue(f"launcher is one of {', '.join(NAMES)}, not {launcher!r}")
    if launcher == "auto" and env.get(ROLE):
        raise InvalidValue(
            f"{ROLE}={env[ROLE]} is set: a script is started as ps-lite's by `shoal run SCRIPT`; "
            "give --launcher none (SHOAL_LAUNCHER=none) for a run of its own here"
        )
    for each in LAUNCHERS:
        if launcher in ("auto", each.name) and _has_started(each, env):
            world = _read(each, env)
            return world if world.size > 1 else None
    if launcher not in ("auto", NONE):
        sizes = " or ".join(each.size for each in LAUNCHERS if each.name == launcher)
        raise InvalidValue(f"--launcher {launcher}: it has not started this process: no {sizes}")
    return None


def without_world(env: Env) -> dict[str, str]:
    """Return an environment without the variables of launchers."""
    own = {name for each in LAUNCHERS for name in (each.rank, each.size, each.local_rank)}
    own |= {"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "GROUP_WORLD_SIZE"}
    return {
        name: text
        for name, text in env.items()
        if name not in own and not name.startswith(PREFIXES)
    }


def _has_started(each: _Launcher, env: Env) -> bool:
    if each.whole and str(each.local_size) not in env:
        return False
    return (each.rank if each.name == "torchrun" else each.size) in env  # a batch script has a rank


def _read(each: _Launcher, env: Env) -> World:
    local = each.local_size
    by_hand = each.name == "torchrun"  # such ranks are on hosts of their own if nothing says more
    told = {
        each.rank: env.get(each.rank),
        each.size: env.get(each.size),
        each.local_rank: env.get(each.local_rank, "0" if by_hand else None),
        local if isinstance(local, str) else "SLURM_STEP_TASKS_PER_NODE": (
            env.get(local, "1" if by_hand else None)
            if isinstance(local, str)
            else local(env) or None
        ),
    }
    shown = ", ".join(f"{name}={text}" for name, text in [*told.items()][:2] if text is not None)
    numbers = []
    for name, text in told.items():
        if text is None:
            raise InvalidValue(
                f"{each.called} has set {shown} and no {name}; set it, or give --launcher none "
                f"(SHOAL_LAUNCHER=none) for a process of its own"
            )
        if not re.fullmatch(r"[0-9]{1,6}", text):
            raise InvalidValue(f"{each.called} has set {shown}: {name}={text!r} is no number")
        numbers.append(int(text))
    rank, size, local_rank, local_size = numbers
    if not (rank < size and local_rank < local_size <= size):
        raise InvalidValue(
            f"{each.called} has set {shown}, local rank {local_rank} of {local_size}: "
            "there is no such rank"
        )
    return World(each.called, rank, size, local_rank, local_size, shown)
