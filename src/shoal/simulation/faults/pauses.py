"""Faults that stop a process, or only its loop, for a short time or until it is declared dead."""

from __future__ import annotations

from collections.abc import Callable

from shoal.protocol.views import NodeId
from shoal.simulation.cluster import HANG_S, SILENCE_S
from shoal.simulation.world import World

STOPS_APART_S = 9.0  # after this time sole replicas are abandoned
DEAD_S = 3.2  # a member that is separated for this long is declared dead
BUSY_S = 3.8  # at most: a loop that makes no turn for longer is hung
LONGEST_S = 8.5  # less than the time for which a sole replica is waited for
HUNG_S = HANG_S + DEAD_S  # a member whose loop hangs for this long is declared dead


class Pauses:
    """Stops nodes, and lets them continue.

    may_lose:  whether the group of a given worker can continue without it
    """

    def __init__(
        self,
        world: World,
        count: Callable[[str], None],
        may_lose: Callable[[NodeId], bool],
    ) -> None:
        self._world = world
        self._count = count
        self._may_lose = may_lose
        self._stopped_at = -STOPS_APART_S  # the last long stop of a server

    def stop(self, what: str, names: list[NodeId]) -> None:
        """Stop a node for a short time, or for so long that it may be declared dead."""
        random = self._world.draws["fault", what]
        seconds = 0.1 + random.random() * 1.2
        if random.random() < 0.5 and not what.endswith("worker"):
            seconds += DEAD_S
        if names:
            self._count(what + (" for long" if seconds > DEAD_S else ""))
            self._pause(random.choice(names), seconds)

    def be_busy(self, what: str, names: list[NodeId]) -> None:
        """Have a node's loop make no turn, for a short time or for longer than `SILENCE_S`."""
        random = self._world.draws["fault", what]
        least = DEAD_S if random.random() < 0.5 else 0.1
        if names:
            seconds = least + (BUSY_S - least) * random.random()
            self._count("busy for longer than silence" if seconds > SILENCE_S else what)
            self._pause(random.choice(names), seconds, busy=True)

    def stop_for_long(self, what: str, names: list[NodeId]) -> None:
        """Stop a node for so long that it is declared dead before it continues."""
        random, now = self._world.draws["fault", what], self._world.now
        of_server, hangs = what.split()[1] == "server", what == "hang server"
        if of_server and now < self._stopped_at + STOPS_APART_S:
            return
        if what == "stop worker for long":
            names = [name for name in names if self._may_lose(name)]
        if names:
            self._count(what)
            self._stopped_at = max(self._stopped_at, now * of_server)
            seconds = HUNG_S + random.random() if hangs else DEAD_S + 3 * random.random()
            self._pause(random.choice(names), seconds, busy=hangs)

    def _pause(self, node: NodeId, seconds: float, busy: bool = False) -> None:
        """Pause a node; pauses that overlap are together no longer than `LONGEST_S`."""
        sim, now = self._world.nodes[node], self._world.now
        began = sim.paused_at if now < sim.paused_until else now
        self._world.pause(node, min(now + seconds, began + LONGEST_S), busy=busy)
