"""The fault injector of a simulated cluster: draws faults from the seed and injects them.

A fault waits for its phase of the cluster, because faults in the middle of a view change are the
most useful ones, and hardly any would come by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from shoal.protocol.machine import Persist, Send
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.membership import Joined, Leave
from shoal.protocol.messages.requests import Request
from shoal.protocol.views import NodeId, ViewId
from shoal.simulation.cluster import SimulatedCluster
from shoal.simulation.faults.environment import ENVIRONMENT, EnvironmentFaults
from shoal.simulation.faults.kinds import BY_PHASE, FAULTS, LASTING, ONE_SIDED
from shoal.simulation.faults.pauses import DEAD_S, Pauses
from shoal.simulation.faults.server_deaths import ABOUT_TO, ServerDeaths
from shoal.simulation.node import SimNode
from shoal.simulation.world import World

RECORDS_BEFORE = (0, 0, 0, 1, 2)  # of a handler, before the one at which the scheduler crashes
EXITS = 0.3  # chance of each effect to be the one before which a process ends
PAUSE_S = 1.2  # at most, from one fault to the next where faults are constant
UNANSWERED, BEREFT = 0.5, 0.5  # shares of joins and leaves: with late answers, with a crash
UNHEARD, UNHEARD_S = 0.5, 0.5  # share of adopted views; how long the scheduler is cut off
BEREFT_S = 1.5  # at least, between two workers that crash as rows move
UNNOTICED_S = 1.5  # the death of a worker is noticed later
WITH_A_SERVER = 0.3  # share of the crashes of workers after which a server crashes
PHASE_WAIT_S = 2.0  # how long a fault waits for its phase


class PendingFault(msgspec.Struct):
    """A fault that waits for its phase, until `until` at most."""

    what: str
    phase: str
    until: float


class FaultInjector:
    """Draws and injects the faults of one seed.

    counts:  the number of times that each fault was injected
    healed:  whether all faults have ended
    """

    def __init__(self, world: World, cluster: SimulatedCluster) -> None:
        self.counts: Counter[str] = Counter()
        self.healed = False
        self._world = world
        self._cluster = cluster
        self._draws = world.draws
        self._unheard_at = 0.0
        self._replicated = False
        self._bereft_at = 0.0  # rows may move with a worker's death after this time
        self._pending: list[PendingFault] = []
        self._at_persist = ""  # "before" or "after": the scheduler is to crash there
        self._records_before = 0
        self._handler, self._records = 0, 0  # the scheduler's handler, and what it has written
        self._in_payload = False  # a worker is to crash half-way through a payload
        self._breaks_payload = False  # a connection is to break half-way through a payload
        self._in_advance = False  # a worker is to crash between two sends of an advance
        self._exits: NodeId = ""  # a process that is to end in the middle of an event
        self.deaths = ServerDeaths(world, cluster, self.count)
        self._environment = EnvironmentFaults(world, cluster, self.count, self._restart_scheduler)
        self._pauses = Pauses(world, self.count, self._may_lose)
        self._advanced: tuple[NodeId, int] | None = None  # worker and request of the last advance
        world.crash_at = self._crash_at
        world.cut_short = self._cut_short

    def plan(
        self, number: int, phases: tuple[str, ...], kill_server: NodeId | None, replicated: bool
    ) -> None:
        """Draw `number` faults, each with one of the phases of this cluster."""
        random = self._draws["faults"]
        self._replicated = replicated
        for _ in range(number):
            what, phase = random.choice(FAULTS), random.choice(phases)
            spread = 0.02 if phase == "joining" else 1.5
            self._world.at(0.001 + spread * random.random() ** 2, partial(self._add, what, phase))
        if kill_server is not None:
            least = 500 + random.randrange(300)
            about_to = random.choice(ABOUT_TO) if replicated else ""
            self._world.at(0.1, lambda: self.deaths.kill(kill_server, least, about_to))

    def kill_head_of(self, group: str) -> None:
        """Crash a head of a group's rows, once all its workers are there."""
        self.deaths.kill_head_of(group)

    def go_on(
        self, concern: str, phases: tuple[str, ...], until: float, faults: Sequence[str]
    ) -> None:
        """Draw overlapping faults, one after the other, until `until` or the end of the run."""
        random = self._draws[concern]
        if self.healed or self._cluster.over():
            return
        self._add(random.choice(faults), random.choice(phases))
        pause = PAUSE_S * random.random()
        if self._world.now + pause < until:
            again = partial(self.go_on, concern, phases, until, faults)
            self._world.at(self._world.now + pause, again)

    def heal(self) -> None:
        """End all faults."""
        self.healed = True
        self._pending.clear()
        self._at_persist, self._in_payload, self._in_advance = "", False, False
        self._breaks_payload, self._exits = False, ""
        self.deaths.heal()
        self._environment.heal()
        self._world.network.heal()

    def look(self) -> None:
        """Inject the pending faults whose phase has come, or whose wait for it is over."""
        if self._world.events % 8 == 0:
            self.deaths.look()
        if not self._pending:
            return
        now, phase = self._world.now, self._cluster.phase()
        due = [each for each in self._pending if each.phase == phase or now >= each.until]
        for each in due:
            self._pending.remove(each)
            self._world.at(now, partial(self._inject, each.what))

    # ------------------------------------------------------------------ injection

    def _add(self, what: str, phase: str) -> None:
        if not self.healed:
            self._pending.append(PendingFault(what, phase, self._world.now + PHASE_WAIT_S))

    def _inject(self, what: str) -> None:
        if self.healed or self._cluster.over():
            return
        random, network = self._draws["fault", what], self._world.network
        names = sorted(self._world.living())
        if not names:
            return
        workers = [name for name in names if name.startswith("worker")]
        until = self._world.now + 0.1 + random.random() * 1.2
        match what:
            case "crash worker" | "crash worker as rows move":
                if lost := [name for name in workers if self._may_lose(name)]:
                    self.count(what)
                    self._crash_worker(random.choice(lost))
            case "crash worker in mid-payload":
                self._in_payload = True
            case "break in mid-payload":
                self._breaks_payload = True
            case "crash worker in mid-advance":
                self._in_advance = len(workers) > 1
            case "crash scheduler" if self._world.nodes[SCHEDULER].alive:
                self.count(what)
                self._world.crash(SCHEDULER, tell=random.random() < 0.5)
                self._restart_scheduler()
            case "crash scheduler before persist" | "crash scheduler after persist":
                self._at_persist = what.split()[2]
                self._records_before = random.choice(RECORDS_BEFORE)
            case "partition":
                island = frozenset(random.sample(names, random.randint(1, max(1, len(names) // 2))))
                network.partition(island, until)
                self.count(what)
            case "clog" if len(names) > 1:
                source, target = random.sample(names, 2)
                network.clog(source, target, until)
                self.count(what)
            case "break" if len(names) > 1:
                self.count(what)
                self._world.break_connection(*random.sample(names, 2))
            case "slow worker":
                slow = random.choice(workers or names)
                for target in names:
                    network.clog(slow, target, until)
                self.count(what)
            case "take for dead":
                if lost := [name for name in workers if self._may_lose(name)]:
                    network.partition(frozenset([random.choice(lost)]), until + DEAD_S)
                    self.count(what)
            case "stop worker" | "stop server" | "stop scheduler":
                self._pauses.stop(what, _of(what, names))
            case "busy worker" | "busy server":
                self._pauses.be_busy(what, _of(what, names))
            case _ if what in LASTING and what != "kill server":
                self._pauses.stop_for_long(what, _of(what, names))
            case "kill server" if self._replicated:
                self.deaths.kill_another(True, random.choice(ABOUT_TO))
            case "join" | "join server":
                add = self._cluster.add_worker if what == "join" else self._cluster.add_server
                if add() is not None:
                    self.count(what)
            case _ if what in ENVIRONMENT:
                self._environment.inject(what, names, until)
            case "exit scheduler" | "exit worker":
                self._exit(what, _of(what, names))
            case "leave server":
                here = self._cluster.servers
                servers = [n for n in names if n in here and here[n].session.incarnation]
                if len(servers) > 1:
                    self.count(what)
                    self._cluster.send_away(random.choice(servers))

    def _exit(self, what: str, names: list[NodeId]) -> None:
        """Have a process end in the middle of its next event, as an unexpected error ends it.

        Its connections are closed at once, and it is started again.
        """
        if what == "exit worker":
            names = [name for name in names if self._may_lose(name)]
        if names:
            self._exits = self._draws["fault", what].choice(names)

    def _restart_scheduler(self) -> None:
        self._later(self._cluster.restart_scheduler)

    def _may_lose(self, worker: NodeId) -> bool:
        """Return whether a worker's group can continue without it."""
        guests, living = self._cluster.guests, self._world.living("worker")
        return worker in guests or any(n != worker and n not in guests for n in living)

    def _crash_worker(self, node: NodeId) -> None:
        self._cluster.will_crash(node)
        random = self._draws["crashed worker"]
        self._world.crash(node, tell=random.random() < 0.5)
        begins = self._cluster.phase() in ("joining", "view change")  # a group may be empty
        replaced = random.random() < 0.7 or begins
        if replaced or self._cluster.needed():
            self._replace_later()
        self._with_a_server()

    def kill(self, node: NodeId, role: str) -> None:
        """Crash a node and start a replacement; a scheduler restarts from its journal."""
        if role == "worker":
            self._cluster.will_crash(node)
        self._world.crash(node)
        restarts = {"worker": self.replace_worker, "server": self.deaths.replace}
        self._later(restarts.get(role, self._cluster.restart_scheduler))

    def replace_worker(self) -> None:
        """Start a worker in the place of a crashed one."""
        if not self._cluster.over() and self._cluster.add_worker() is not None:
            self.count("restart worker")

    def _replace_later(self) -> None:
        at = self._world.now + self._draws["replace worker"].random()
        self._world.at(at, self.replace_worker)

    def _later(self, restart: Callable[[], object]) -> None:
        self._world.at(self._world.now + 0.05 + self._draws["restart"].random(), restart)

    def _crash_at(self, sim: SimNode, effect: object) -> bool:
        """Return whether a node crashes before an effect.

        The scheduler crashes just before or after a record is durable, a worker half-way through
        its advance, a server before it sends a given message.
        """
        if sim.node == self._exits and self._draws.happens("exit", EXITS):
            return self._ends(sim.node)
        if self._environment.fails_to_sync(sim, effect):
            return True
        if isinstance(effect, Send):
            moves = isinstance(effect.message, Joined | Leave)
            if moves and "server" in sim.node + effect.to and self._cluster.at_work():
                self._as_rows_move()
            if self._in_advance:
                return self._half_advanced(sim.node, effect.message)
            return self.deaths.crashes_at(sim, effect)
        if sim.node != SCHEDULER or not isinstance(effect, Persist):
            return False
        self._records = self._records + 1 if sim.turns == self._handler else 0
        self._handler = sim.turns
        if not self._at_persist or self._records < self._records_before:
            return False
        if self._records:
            self.count("crash scheduler within a handler")
        if self._at_persist == "after":
            sim.disk.write(effect)
        self.count(f"crash scheduler {self._at_persist} persist")
        self._at_persist = ""
        self._restart_scheduler()
        return True

    def _ends(self, node: NodeId) -> bool:
        """Have a process end now; return False if its group cannot continue without it."""
        self._exits = ""
        if node != SCHEDULER and not self._may_lose(node):
            return False
        if node == SCHEDULER:
            self._restart_scheduler()
        else:
            self._cluster.will_crash(node)
            self._replace_later()
        self.count(f"exit {'scheduler' if node == SCHEDULER else 'worker'}")
        return True

    def adopted(self, view: ViewId) -> None:
        """Perhaps cut the scheduler off, as a server adopts its next view.

        The scheduler then does not hear of that, and makes another view meanwhile.
        """
        known = self._cluster.view
        if self.healed or known is None or view <= known.id or self._world.now < self._unheard_at:
            return
        random = self._draws["scheduler unheard"]
        if random.random() < UNHEARD:
            self._unheard_at = self._world.now + UNHEARD_S * (1 + random.random())
            self._world.network.partition(frozenset([SCHEDULER]), self._unheard_at - UNHEARD_S)
            self.count("scheduler cut off as its view is adopted")

    def _as_rows_move(self) -> None:
        """Perhaps delay answers, and crash a worker, while rows are about to move."""
        if self.healed:
            return
        random = self._draws["rows move"]
        if random.random() < UNANSWERED:
            self._delay_answers()
        begun = self._cluster.phase() != "joining" and not self._cluster.full()
        if begun and self._world.now > self._bereft_at and random.random() < BEREFT:
            self._bereft_at = self._world.now + BEREFT_S
            at = self._world.now + 0.05 * random.random()
            self._world.at(at, partial(self._inject, "crash worker as rows move"))

    def _delay_answers(self) -> None:
        """Delay answers, so that workers resend to other servers."""
        nodes, network, now = list(self._world.nodes), self._world.network, self._world.now
        for server in [node for node in nodes if node.startswith("server")]:
            network.clog(SCHEDULER, server, now + 0.05)  # until servers have applied something
            for worker in [node for node in nodes if node.startswith("worker")]:
                network.clog(server, worker, now + 0.4)
        self.count("answers late as rows move")

    def _half_advanced(self, node: NodeId, message: Message) -> bool:
        if not isinstance(message, Request) or message.advance < 0 or not self._may_lose(node):
            return False
        before, self._advanced = self._advanced, (node, message.seq)
        if before != self._advanced:
            return False
        self._in_advance, self._advanced = False, None
        self._lose_worker("crash worker in mid-advance", node)
        return True

    def _cut_short(self, source: NodeId, target: NodeId, message: Message) -> bool:
        """Return whether a worker crashes half-way through its payload.

        Its connection may also break there, and rows move before it can send again.
        """
        if self._breaks_payload and isinstance(message, Request) and message.pushes:
            self._breaks_payload = False
            self.count("break in mid-payload")
            self._world.break_connection(source, target)
            self._world.network.clog(source, target, self._world.now + 0.8)
            if self._cluster.add_server() is not None:
                self.count("join server")
        workers = [n for n, s in self._world.nodes.items() if n.startswith("worker") and s.alive]
        if not self._in_payload or not isinstance(message, Request) or workers in ([], [source]):
            return False
        self._in_payload = False
        if not self._world.nodes[source].alive or not self._may_lose(source):
            return False
        self._lose_worker("crash worker in mid-payload", source)
        return True

    def _lose_worker(self, how: str, worker: NodeId) -> None:
        """Record that the world is about to crash a worker, and start another one later."""
        self.count(how)
        self._cluster.will_crash(worker)
        self._replace_later()
        self._with_a_server()

    def _with_a_server(self) -> None:
        """Perhaps crash a server as well before a worker's death is noticed: one view has both."""
        random = self._draws["with a server"]
        if self._replicated and random.random() < WITH_A_SERVER:
            at = self._world.now + UNNOTICED_S * random.random()
            self._world.at(at, lambda: self.deaths.kill_another(True, ""))

    def count(self, fault: str) -> None:
        """Count a fault; one that may come in any phase is counted by phase."""
        phased = f"{fault} ({self._cluster.phase()})"
        name = phased if fault in ONE_SIDED else fault
        self.counts[name] += 1
        if fault in BY_PHASE:
            self._world.coverage[phased] += 1
        self._world.coverage[name] += 1
        self._world.note_line(f"FAULT {name}")


def _of(what: str, names: list[NodeId]) -> list[NodeId]:
    """Return the nodes of the role that a fault names."""
    return [name for name in names if name.startswith(what.split()[1])]
