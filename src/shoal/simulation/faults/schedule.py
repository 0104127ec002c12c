"""Fault schedules: chosen faults, for the simulator or a real cluster (`shoal chaos`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from shoal.errors import InvalidValue
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.registry import unknown
from shoal.simulation.cluster import SimulatedCluster
from shoal.simulation.faults.injector import FaultInjector
from shoal.simulation.world import World

What = Literal["kill", "exit", "stop", "restart", "fill", "slow", "partition"]
ROLES = ("server", "worker", "scheduler")
FAULT_NAMES = tuple(
    f"{what}-{role}"
    for what in get_args(What)
    for role in ROLES
    # a worker's script decides what its errors end, and its files are its own
    if role != "worker" or what not in ("exit", "fill")
)
FORM = re.compile(
    r"(?P<name>[a-z]+-[a-z]+)(-(?P<rank>[0-9]+))?(@(?P<step>[0-9]+))?(:(?P<seconds>[0-9]+)s)?"
)
LASTING: tuple[What, ...] = ("stop", "fill", "slow", "partition")  # which end by themselves
LASTS_S, SLOW_S = 1.0, 0.2  # of virtual time; on a real cluster, one or two seconds
PAUSE_S = 0.2  # at most, from the end of a repair to the next fault


class Fault(msgspec.Struct, frozen=True):
    """A fault of one process.

    what:     kill: SIGKILL. exit: it ends by itself, with an error. stop: SIGSTOP for a second.
              restart: SIGTERM, after which a server leaves in order and another starts. fill: no
              room on its disk for two seconds. slow: 1 Mbit/s for two seconds. partition: no link
              for two seconds
    role:     the role of the process
    rank:     the rank of the process, or -1 for any
    step:     the training step at which the fault happens, or -1 for any time
    seconds:  the duration of the fault, in place of one or two seconds; 0 if not given
    """

    what: What
    role: str
    rank: int = -1
    step: int = -1
    seconds: int = 0

    def __str__(self) -> str:
        return f"{self.what}-{self.role}" + (f":{self.seconds}s" if self.seconds else "")


def fault_of(text: str) -> Fault:
    """Parse the text of a fault.

    `kill-server` is for any rank, `kill-server-1` for rank 1, `stop-worker@40` at step 40, and
    `stop-server:12s` lasts for 12 seconds.

    Raises:
        UnknownName: the text names no known fault
        InvalidValue: the text has a duration, and a fault of its kind has none

    >>> fault_of("partition-server-1@40:12s")
    Fault(what='partition', role='server', rank=1, step=40, seconds=12)
    """
    found = FORM.fullmatch(text.strip())
    if found is None or found["name"] not in FAULT_NAMES:
        raise unknown("fault", text, FAULT_NAMES)
    what, role = found["name"].split("-")
    if found["seconds"] and what not in LASTING:
        raise InvalidValue(f"{text}: it has no duration; these have one: {', '.join(LASTING)}")
    rank, step = (int(found[each] or -1) for each in ("rank", "step"))
    given = {"what": what, "role": role, "rank": rank, "step": step}
    return msgspec.convert({**given, "seconds": int(found["seconds"] or 0)}, Fault)


class ScheduledFaults:
    """Injects the faults of a schedule in turn, each when the cluster is whole again."""

    def __init__(
        self,
        fault_schedule: Sequence[Fault],
        world: World,
        cluster: SimulatedCluster,
        injector: FaultInjector,
    ) -> None:
        self._fault_schedule = fault_schedule
        self._world = world
        self._cluster = cluster
        self._injector = injector
        self._random = world.draws["scheduled faults"]
        self._injected = 0
        self._next_at = -1.0  # set when the cluster is whole

    def look(self) -> None:
        """Inject the next fault, if it is due after an event."""
        if not self._fault_schedule:
            return
        if self._injector.healed or not self._cluster.at_work() or not self._cluster.whole():
            self._next_at = -1.0
            return
        schedule, now = self._fault_schedule, self._world.now
        fault = schedule[self._injected % len(schedule)]
        if fault.step > self._step() or (fault.step >= 0 and self._injected >= len(schedule)):
            return
        if self._next_at < 0:
            self._next_at = now + self._random.random() * PAUSE_S
        elif now >= self._next_at:
            self._next_at = -1.0
            self._injected += 1
            self._world.at(now, lambda: self._inject(fault))

    def _step(self) -> int:
        machines = [sim.machine for sim in self._world.nodes.values() if sim.alive]
        return max((m.clock for m in machines if isinstance(m, WorkerMachine)), default=0)

    def _inject(self, fault: Fault) -> None:
        living = self._world.living()
        nodes = [n for n in living if n.startswith(fault.role) and self._is(n, fault.rank)]
        if not nodes or (fault.what in ("kill", "restart") and self._cluster.full()):
            return
        node = self._random.choice(sorted(nodes))
        now, network = self._world.now, self._world.network
        self._injector.count(f"scheduled {fault}")
        match fault.what, fault.role:
            case "stop", _:
                self._world.pause(node, now + (fault.seconds or LASTS_S))
            case "partition", _:
                network.partition(frozenset([node]), now + (fault.seconds or LASTS_S))
            case "slow", _:
                for other in living:
                    network.clog(node, other, now + (fault.seconds or SLOW_S))
                    network.clog(other, node, now + (fault.seconds or SLOW_S))
            case "fill", _:
                self._world.nodes[node].disk.full_until = now + (fault.seconds or LASTS_S)
            case "restart", "server":
                self._cluster.send_away(node)
                self._cluster.add_server()
            case _, role:
                self._injector.kill(node, role)

    def _is(self, node: NodeId, rank: int) -> bool:
        if node == SCHEDULER or rank < 0:
            return True
        machine = self._world.nodes[node].machine
        return isinstance(machine, ServerMachine | WorkerMachine) and machine.session.rank == rank
