"""Crashes of servers: before a given message, after a silence, in a row, with replacements."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from shoal.protocol.machine import Send
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.requests import Reply
from shoal.protocol.views import NodeId
from shoal.simulation.cluster import ALONE_S, SimulatedCluster
from shoal.simulation.node import SimNode
from shoal.simulation.world import World

ABOUT_TO = ("", "replicate", "replicateack", "answer")  # the message before which a server crashes
UNHEARD = 0.5  # share of the other crashes before which a server's messages to others are delayed
AT_WORK_S = 0.3  # how long a group works before a head of its rows crashes
LATE, LATE_S = 0.3, 0.3  # share of the seeds in which a server crashes after the last push; when
ASLEEP, ASLEEP_S = 0.5, 5.0  # share of these crashes that a stopped scheduler does not see
REPAIRING = ("statechunk", "synced", "synced")  # messages of state transfer


class ServerDeaths:
    """Crashes the servers of one seed.

    healed:    whether all faults have ended
    late_at:   the latest time when a crash that may follow the other faults is noticed
    """

    def __init__(
        self, world: World, cluster: SimulatedCluster, count: Callable[[str], None]
    ) -> None:
        self.healed = False
        self.late_at = 0.0
        self._world = world
        self._cluster = cluster
        self._random = world.draws["server deaths"]
        self._count = count
        self._last = world.draws["server death at the end"]
        self._late = self._last.random() < LATE
        self._next: tuple[NodeId, str] | None = None  # the server, and before which message

    def heal(self) -> None:
        """End all faults."""
        self.healed, self._next = True, None

    def kill(self, victim: NodeId, least_events: int, about_to: str) -> None:
        """Crash a server after `least_events` events, while workers still have to push."""
        if self._idle() or not self._world.nodes[victim].alive:
            return
        if self._world.events < least_events or about_to:
            if self._world.events >= least_events:
                self._next, least_events = (victim, about_to), least_events + 200
                about_to = ""  # if it never sends that message
            again = self._world.now + 0.02
            self._world.at(again, lambda: self.kill(victim, least_events, about_to))
        elif self._random.random() < UNHEARD:
            self._silence(victim)
            at = self._world.now + 0.3 * self._random.random()
            self._world.at(at, lambda: self._crash(victim))
        else:
            self._crash(victim)

    def _idle(self) -> bool:
        """Return whether no server is to crash: the run is over, or no worker still has to push."""
        return self._cluster.over() or not self._cluster.at_work()

    def look(self) -> None:
        """Perhaps crash a server, once all is pushed and while the run has not ended."""
        if not self._late or self._cluster.view is None or not self._cluster.view.tables:
            return
        servers = [node for node in self._cluster.servers if self._cluster.lives(node)]
        if not self._idle() or self._cluster.over() or not servers:
            return
        self._late = False
        at = self._world.now + LATE_S * self._last.random()
        victim = self._last.choice(sorted(servers))
        if self._last.random() < ASLEEP:
            self._world.pause(SCHEDULER, at + ASLEEP_S * self._last.random())
        self._world.at(at, lambda: self._crash_late(victim))

    def _crash_late(self, victim: NodeId) -> None:
        sim = self._world.nodes[victim]
        if sim.alive and not sim.stopped:
            self._count("crash server at the end")
            self.late(victim)

    def late(self, victim: NodeId) -> None:
        """Crash a server, perhaps after the other faults: its death is noticed later than theirs.

        A stopped scheduler that runs again reads the last messages of the server first, and waits
        from then.
        """
        runs_at = max(self._world.now, self._world.nodes[SCHEDULER].paused_until)
        self.late_at = runs_at + ALONE_S
        self._world.crash(victim)

    def _crash(self, victim: NodeId) -> None:
        sim = self._world.nodes[victim]
        if sim.alive and not sim.stopped:  # the run may have ended since it was chosen
            self._next = None
            self._count("crash server")
            self._world.crash(victim)
            self._after_death()

    def _silence(self, victim: NodeId) -> None:
        """Delay a server's messages to other servers until after its crash."""
        for other in list(self._world.nodes):
            if other.startswith("server"):
                self._world.network.clog(victim, other, self._world.now + 1.0)
        self._count("server unheard")

    def _after_death(self) -> None:
        """Perhaps start a replacement after a crash, and crash another server.

        The other server crashes after the repair, or in the middle of it.
        """
        random = self._random
        self._meanwhile()
        if random.random() < 0.7:
            self._world.at(self._world.now + 2 * random.random() ** 2, self.replace)
        if random.random() < 0.4 and self._next is None:
            self._next = "", random.choice(REPAIRING)
        elif random.random() < 0.6:
            patient = random.random() < 0.7
            about_to = random.choice(ABOUT_TO)
            self._world.at(self._world.now + 0.1, lambda: self.kill_another(patient, about_to))

    def replace(self) -> None:
        if not self._cluster.over() and self._cluster.add_server() is not None:
            self._count("restart server")

    def kill_another(self, patient: bool, about_to: str) -> None:
        if self._idle() or self.healed:
            return
        if patient and not self._cluster.repaired():
            self._world.at(self._world.now + 0.02, lambda: self.kill_another(patient, about_to))
            return
        nodes = self._world.nodes
        servers = [n for n, s in nodes.items() if n.startswith("server") and s.alive]
        if len(servers) > 1:
            self._count("crash another server" + ("" if patient else " at once"))
            self.kill(self._random.choice(sorted(servers)), 0, about_to)

    def kill_head_of(self, group: str, at: float = inf) -> None:
        """Crash a head of a group's rows, once all its workers are there and chains are whole.

        What the head has accepted last is lost with it.

        at:  the earliest time; AT_WORK_S after the workers were first there, if not given
        """
        if self._cluster.over() or self.healed:
            return
        heads, now = self._cluster.heads(group), self._world.now
        if heads:
            at = min(at, now + AT_WORK_S)
        if not heads or now < at or not self._cluster.repaired():
            self._world.at(now + 0.02, lambda: self.kill_head_of(group, at))
            return
        victim = self._random.choice(heads)
        self._silence(victim)
        self._world.at(self._world.now + 0.1, lambda: self._crash(victim))

    def _meanwhile(self) -> None:
        """Perhaps start a worker or delay answers before a crash is detected."""
        random, world = self._random, self._world
        what = random.choice(("", "join", "clog"))
        if what == "join" and self._cluster.add_worker() is not None:
            self._count(what)
        elif what == "clog":
            for source in sorted(world.living("server")):
                for target in sorted(world.living("worker")):
                    if random.random() < 0.5:
                        world.network.clog(source, target, world.now + 2.5 + 3 * random.random())
            self._count(what)

    def crashes_at(self, sim: SimNode, effect: Send) -> bool:
        """Return whether a server crashes before it sends a message."""
        if self._next is None or not sim.node.startswith("server"):
            return False
        about_to, message = self._next[1], effect.message
        if sim.node != self._next[0] and about_to not in REPAIRING:
            return False
        final = isinstance(message, Reply) and message.code == "applied"
        if type(message).__name__.lower() != about_to and not (final and about_to == "answer"):
            return False
        if self._world.draws.happens(("crash", about_to), 0.5):  # wait for the next message
            return False
        self._next = None
        self._count(f"crash server about to {about_to}")
        self._world.at(self._world.now, self._after_death)
        return True
