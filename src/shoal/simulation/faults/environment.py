"""Faults of what processes run on: disks, memory, and the paths between hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from shoal.protocol.machine import Append, Persist
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.views import NodeId
from shoal.simulation.cluster import SimulatedCluster
from shoal.simulation.node import SimNode
from shoal.simulation.world import World

OF_STREAMS = ("blackhole", "mute connection", "hang connects")  # only where links are streams
ENVIRONMENT = ("refuse memory", "fill disk", "slow disk", "power loss", "sync fails", *OF_STREAMS)
REPLACED_S = (0.6, 2.4)  # until a connection whose packets vanish is replaced


class EnvironmentFaults:
    """Injects the faults of the environment.

    count:  called with the name of each fault
    restart_scheduler:  called to start the scheduler again after a crash
    """

    def __init__(
        self,
        world: World,
        cluster: SimulatedCluster,
        count: Callable[[str], None],
        restart_scheduler: Callable[[], None],
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._draws = world.draws
        self._count = count
        self._restart_scheduler = restart_scheduler
        self._sync_fails = False

    def heal(self) -> None:
        """End all faults."""
        self._sync_fails = False
        self._cluster.out_of_memory.clear()
        disk = self._world.nodes[SCHEDULER].disk
        disk.full_until = disk.slow_until = 0.0

    def inject(self, what: str, names: Sequence[NodeId], until: float) -> None:
        """Inject a fault; one of a disk or of memory lasts until `until` or somewhat longer."""
        world, random = self._world, self._draws["fault", what]
        disk = world.nodes[SCHEDULER].disk
        match what:
            case "fill disk":
                disk.full_until = until + random.random()
            case "slow disk":
                disk.slow_until = until + random.random()
            case "sync fails":
                self._sync_fails = True
                return  # counted when it happens
            case "power loss" if world.nodes[SCHEDULER].alive:
                disk.lose_power()
                world.crash(SCHEDULER, tell=False)
                self._restart_scheduler()
            case "blackhole" if world.network.options.streams and len(names) > 1:
                one, other = random.sample(list(names), 2)
                at = world.now + random.uniform(*REPLACED_S)
                world.network.blackhole(one, other, at)
                world.at(at, lambda: world.break_connection(one, other, closed=False))
            case "mute connection" if world.network.options.streams and len(names) > 1:
                one, other = random.sample(list(names), 2)  # until one of them dials anew
                world.network.blackhole(one, other, inf)
            case "hang connects" if world.network.options.streams:
                node = random.choice(list(names))
                world.hang_connects(node, until)
                for other in names:  # so that they connect
                    if other != node and random.random() < 0.5:
                        world.break_connection(node, other)
            case "refuse memory":
                servers = [name for name in names if name in self._cluster.servers]
                for server in random.sample(servers, min(len(servers), 2)):
                    self._cluster.out_of_memory[server] = until + 2 * random.random()
            case _:
                return
        self._count(what)

    def fails_to_sync(self, sim: SimNode, effect: object) -> bool:
        """Return whether the scheduler ends at a write, which may or may not be on the disk."""
        if not self._sync_fails or sim.node != SCHEDULER:
            return False
        if not isinstance(effect, Persist | Append):
            return False
        self._sync_fails = False
        if self._draws.happens("a write is on the disk", 0.5):
            sim.disk.write(effect)
        self._count("sync fails")
        self._restart_scheduler()
        return True
