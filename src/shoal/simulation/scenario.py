"""A scenario: one seeded run of a cluster with faults and all checkers (`shoal simulate`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf

import msgspec

from shoal.errors import ClusterFull, LeftAlone, ShoalError
from shoal.protocol.admin.question import Question
from shoal.protocol.machine import Event, Note, Received, Save
from shoal.protocol.messages.admin import DeathReport, DeathReportSeen
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.scheduler.failure_detector import LOOK_S
from shoal.protocol.scheduler.leases.log import LogEntry
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.notes import MemberJoined, MemberLost, ViewMade, ViewOffered
from shoal.protocol.scheduler.rows.placement import lost
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.notes import (
    Declined,
    Landed,
    Pushed,
    ReplicasDiffer,
    RoundMerged,
    Served,
    Thawed,
)
from shoal.protocol.session import HELD_UP_S, Admitted, ViewAdopted
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.checkpoints import Cuts
from shoal.simulation.checkers.history import (
    Durability,
    Views,
    Violation,
    check_served,
    check_waiting,
    violated,
)
from shoal.simulation.checkers.rounds import ClosedRounds
from shoal.simulation.cluster import SILENCE_S, SimulatedCluster
from shoal.simulation.draws import Draws
from shoal.simulation.end_state import check_holdings, check_remaining, evicting
from shoal.simulation.faults.injector import FaultInjector
from shoal.simulation.faults.kinds import ALL, MOVES
from shoal.simulation.faults.schedule import Fault, ScheduledFaults
from shoal.simulation.node import SimNode
from shoal.simulation.plan import GUESTS, Plan
from shoal.simulation.supervised import SupervisedScenario
from shoal.simulation.trace import place_of
from shoal.simulation.workloads.all_reduce import RingScenario
from shoal.simulation.workloads.programs import Workload
from shoal.simulation.world import World
from shoal.tables.consistency import Quorum

LIMIT_S = 120.0
EVENT_S, WRITE_S = 0.05, 0.4  # at most; the mean of events is 1.6 ms, as some take long
RESTART_S = 0.3
REPAIR_S = 24.0  # after the last fault: eight servers, of which two leave, took 18
EVERY_WORKER_DIED = "every worker has died"
MOST_EVENTS = 400_000  # of a seed; more with a fault schedule


class Report(msgspec.Struct):
    """The result of a run.

    checker, violation:  the checker that found a violation, and its message; otherwise empty
    """

    seed: int
    events: int
    faults: int
    trace_hash: str
    coverage: dict[str, int]
    checker: str = ""
    violation: str = ""
    lines: list[str] = []


class Scenario:
    """A cluster, its faults and its checkers, from one seed."""

    def __init__(
        self,
        seed: int,
        keep_lines: bool = False,
        fault_schedule: Sequence[Fault] = (),
        simple: bool = False,
    ) -> None:
        """Make the cluster of a seed.

        simple:  whether its requests are simple (`Plan.of_simple_requests`)
        """
        plan = Plan.of(seed).for_fault_schedule() if fault_schedule else Plan.of(seed)
        self.plan = plan = plan.of_simple_requests() if simple else plan
        draws = Draws(seed, "simple") if simple else Draws(seed)
        self.world = World(draws, plan.network, keep_lines)
        self.work = Workload(self.world, plan)
        kinds = {
            "sparse ledger": self.work.sparse,
            "bounded table": self.work.bounded is not None,
            "leased batches": self.work.leased is not None,
            "custom table": self.work.calls is not None,
            "optimizer table": self.work.optimizer is not None,
            "assigned states": self.work.state is not None,
            "encoded pushes": self.work.encoded is not None,
            "encoded pulls": self.work.pulled is not None,
            "lists of keys": self.work.listed is not None,
            "large cluster": plan.servers > 3,
            "several hosts": plan.hosts > 1,
            "fixed size": not plan.elastic,
            "guests": plan.guests > 0,
            "constant faults": plan.constant_faults,
            "moving rows": plan.moving_rows,
            "streams": plan.network.streams,
            "costly events": plan.costly,
            "scheduler unheard": plan.unheard,
            "long work": plan.long_bytes < inf,
            "borrowed payloads": plan.borrows,
        }
        self.world.coverage.update(kind for kind, here in kinds.items() if here)
        self.world.write_s = lambda: WRITE_S * draws["slow write"].random()
        if plan.costly:
            self.world.event_s = self._costs
        self.works = {"": self.work}
        if plan.guests:
            self.works[GUESTS] = Workload(self.world, plan.for_guests(), self.work)
        for work in self.works.values():
            work.may_end = self._may_end
        self.cluster = SimulatedCluster(self.world, plan, self.works)
        self.world.phase = self.cluster.phase
        self.faults = FaultInjector(self.world, self.cluster)
        self._views = Views()
        self._durability = Durability()
        self._cuts = Cuts()
        closes = plan.consistency.closes
        self._closed = ClosedRounds(closes) if isinstance(closes, Quorum) else None
        self._left_out = False  # whether a part of a checkpoint was left out
        self.world.on_note = self._on_note
        self.world.on_event = self._on_event
        self.world.on_save = self._on_save
        self.world.on_left_out = self._on_left_out
        self.world.on_crash = self._on_crash
        self.world.on_send = self._on_send
        self._scheduled = ScheduledFaults(fault_schedule, self.world, self.cluster, self.faults)
        self.cluster.start()
        victim = f"server-{draws['victim'].randrange(plan.servers)}" if plan.kill_server else None
        self.faults.plan(plan.faults, plan.phases(), victim, plan.replicas > 1)
        if plan.guests > 1 and plan.replicas > 1 and not fault_schedule:
            self.faults.kill_head_of(GUESTS)
        if plan.constant_faults:
            self.faults.go_on("constant faults", plan.phases(), plan.heal_at_s, ALL)
        if plan.moving_rows:
            self.faults.go_on("moving rows", plan.phases(), plan.heal_at_s, MOVES)
        self.world.at(plan.heal_at_s, self.faults.heal)

    # ------------------------------------------------------------------ hooks

    def _costs(self, node: NodeId, event: Event) -> float:
        """Return how long an event takes."""
        kind = type(event.message if isinstance(event, Received) else event).__name__
        return EVENT_S * self.world.draws["cost", node, kind].random() ** 30

    def _on_send(self, sim: SimNode, target: NodeId, message: Message) -> None:
        if sim.node == SCHEDULER:
            self._durability.sent(target, message, sim.disk.record)
        else:
            self._views.sent(sim.node, message)

    def _on_save(self, save: Save) -> None:
        self._cuts.add(save, len(self.world.nodes[SCHEDULER].disk.log))

    def _on_left_out(self, server: NodeId) -> None:
        """Tell a server, as its writer does, that no file may build on the one left out."""
        self.cluster.servers[server].requests.checkpointer.begin_anew()
        self._left_out = True

    def _on_note(self, node: NodeId, note: Note) -> None:
        machine = self.world.nodes[node].machine
        match note:
            case Admitted() | ViewAdopted() if node in self.cluster.lost:
                self.cluster.rejoined(node)  # as the node itself has heard, of itself or by a view
            case MemberJoined():  # may be a rejoin
                self.cluster.lost.pop(note.node, None)
            case MemberLost():
                self._on_declared_dead(note.node, note.how)
            case ViewOffered(view, before):
                self._views.offered(view, before)
            case ViewMade() if isinstance(machine, SchedulerMachine) and machine.view:
                self._views.made(machine.view)
        if isinstance(note, ViewAdopted):
            self._views.adopted(node, note.view)
        if isinstance(machine, ServerMachine):
            self._on_note_of_server(node, machine, note)

    def _on_note_of_server(self, node: NodeId, machine: ServerMachine, note: Note) -> None:
        match note:
            case ViewAdopted(view):
                if self.plan.unheard:
                    self.faults.adopted(view)
                if self._closed is not None:
                    self._closed.adopted(machine)
            case RoundMerged(group="") if self._closed is not None:
                self._closed.closed(machine, note, self.world.now)
            case Thawed(view, refused):
                present = machine.session.view
                rows = present is not None and bool(present.tables)
                self._views.thawed(node, view, refused, rows)
            case Declined("misfit"):
                raise violated("misfit", f"{node} lacks the rows of a request: {note}")
            case ReplicasDiffer():
                raise violated("replicas", f"{node} differs from the head: {note}")
            case Served(pulls):
                check_served(node, machine, pulls)
            case Pushed(request) | Landed(request):
                self._views.pushed(node, request, machine.session.view_id)

    def _on_declared_dead(self, node: NodeId, how: str) -> None:
        self.cluster.lost[node] = None
        sim, scheduler = self.world.nodes[node], self.world.nodes[SCHEDULER]
        was_running = sim.alive and sim.paused_until < scheduler.paused_until
        just_back = self.world.now < scheduler.paused_until + LOOK_S
        noticed = scheduler.paused_until - scheduler.paused_at > HELD_UP_S
        if was_running and just_back and noticed and how.startswith("not heard"):
            raise violated("blamed", f"{node} is {how}, but it was the scheduler that was stopped")
        unheard_s = self.cluster.heartbeats.unheard_s(node)
        if unheard_s < SILENCE_S - LOOK_S and how.startswith("not heard") and "broke" not in how:
            raise violated("busy", f"{node} is {how}, {unheard_s:.1f} s after its process was")
        if "broke" in how and node not in self.world.closed:
            raise violated("broken", f"{node} is {how}, which was only replaced")
        self.world.coverage["declared hung"] += how.startswith("hung")
        if node in self.cluster.servers:
            if sim.alive:
                self._check_given_up(node)
            return
        self.cluster.will_crash(node)
        if sim.alive:
            self.world.coverage["declared dead alive"] += 1
            self.world.at(self.world.now + 0.1, self.faults.replace_worker)

    def _check_given_up(self, server: NodeId) -> None:
        """Check `given up`: a living server is declared dead only if others have its rows."""
        self.world.coverage["server declared dead alive"] += 1
        view = self.cluster.view
        if view is not None and view.member(server) is not None:
            others = {m.rank for m in view.servers if m.id not in self.cluster.lost}
            if gone := lost(view.tables, view.placements, others):
                raise violated("given up", f"{server} lives, and no other server has {gone}")

    def _on_crash(self, node: NodeId) -> None:
        """Record a crash; report the death, in the seeds with death reports."""
        machine = self.world.nodes[node].machine
        for work in self.works.values():
            work.crashed(node)
        if self.plan.proves_death and isinstance(machine, ServerMachine | WorkerMachine):
            launch = machine.session.launch
            self.world.at(self.world.now, lambda: self._report_death(launch))

    def _report_death(self, launch: str) -> None:
        reporter = Question(DeathReport(launch), (DeathReportSeen,), 1.0)
        self.world.add(f"engine-{launch}", reporter)

    def _on_event(self, sim: SimNode) -> None:
        if sim.alive and isinstance(sim.error, LeftAlone):
            self.world.coverage["server left alone"] += 1
            self.faults.deaths.late(sim.node)  # to the others it has crashed
        refused = sim.stopped and isinstance(sim.error, ClusterFull) and self.cluster.view is None
        if refused and not self.cluster.manned():
            # its predecessor does not count as dead yet: engines start the worker again
            self.cluster.refused.add(sim.node)
            self.world.at(self.world.now + RESTART_S, self.faults.replace_worker)
        if sim.node in self.cluster.servers:
            if not self.cluster.servers[sim.node].suspended:
                check_waiting(sim.node, self.cluster.servers[sim.node])
            if self._closed is not None and sim.alive:
                self._closed.look(self.cluster.servers[sim.node], self.world.now)
        else:
            for work in self.works.values():
                work.check_buffers(sim.node)
        self.faults.look()
        self._scheduled.look()

    def _may_end(self) -> bool:
        """Return whether chains have their full length.

        `short`: after the last fault, they grow back to it.
        """
        if self.cluster.repaired():
            return True
        if self.world.now > max(self.plan.heal_at_s, self.faults.deaths.late_at) + REPAIR_S:
            raise violated("short", f"rows are on fewer servers than wanted: {self._waiting()}")
        return False

    def run(self, most_events: int = MOST_EVENTS) -> None:
        """Run to the end, and check it."""
        self.world.run(until=LIMIT_S, most_events=most_events)
        taken = [each.requests.fast_path.taken for each in self.cluster.servers.values()]
        self.world.coverage["fast path"] += sum(taken)
        self.check_end()

    def check_end(self) -> None:
        """Check the end of a run: all nodes have ended, and every push counts as it should."""
        if living := self.world.living():
            raise violated("stuck", f"{living} did not end; waiting: {self._waiting()}")
        error = self.world.nodes[SCHEDULER].error
        ended = error.message if error is not None else ""
        nodes, lost_nodes = self.world.nodes, self.cluster.lost
        there = [n for n, each in self.cluster.servers.items() if each.session.ends_by == inf]
        gone = [n for n in there if not nodes[n].alive or n in lost_nodes]
        view = self.cluster.view
        if view is None and gone and ended:
            self.world.coverage["end before the first view"] += 1
            return  # the cluster was never complete
        servers = {
            node: machine
            for node, machine in self.cluster.servers.items()
            if node not in gone and view is not None and view.member(node) is not None
        }
        if ended == EVERY_WORKER_DIED and not self.plan.elastic:
            self._check_remaining(servers, "end without workers")
            return
        if view is not None and gone:
            ranks = {member.rank for member in view.servers if member.id not in gone}
            bereft = bool(lost(view.tables, view.placements, ranks))
            if any(self.cluster.servers[node].session.name in ended for node in gone):
                if not bereft and ranks:
                    raise violated("named death", f"without {gone} the run ended with {ended!r}")
                self._check_remaining(servers, "end without all rows")
                return
            if bereft:
                raise violated("named death", f"{gone} died and the run ended with {ended!r}")
        for node, sim in nodes.items():
            expected = node in lost_nodes or self._never_joined(sim)
            if sim.alive and sim.error is not None and not expected:
                raise violated("orderly", f"{node} ended with: {sim.error.message}")
        late = view is not None and any(view.member(node) is not None for node in gone)
        if late or len({machine.session.view_id for machine in servers.values()}) > 1:
            self._check_remaining(servers, "end in a view change")
            return
        # accepted pushes are lost with their head; living workers send them again
        whole = not (gone and self.work.ledger.crashed)
        rule = self.plan.consistency
        stayed = len(self.cluster.servers) == self.plan.servers and not gone
        self._check_cuts(rule.apply_at == "round_end", whole and rule.closes is None, stayed)
        self.world.coverage["replicas evicted"] += evicting(servers)
        for group, work in self.works.items():
            leases = self.cluster.scheduler.ledgers.of(group).record()
            closed = None if group else self._closed
            check_holdings(servers, work, group, leases, self._views.departed, whole, closed)

    def _check_remaining(self, servers: Mapping[NodeId, ServerMachine], how: str) -> None:
        self.world.coverage[how] += 1
        for group, work in self.works.items():
            check_remaining(servers, work, group)

    def _check_cuts(self, closes: bool, whole: bool, stayed: bool) -> None:
        planned = self.work.checkpoints.planned
        if stayed and not self._left_out:
            found = self._cuts.check_planned(planned)
            self.world.coverage["checkpoint that was asked for"] += found
        if self.plan.consistency.name == "asp":
            return
        ledger = self.work.ledger
        acknowledged = {key: ledger.intended[key] for key in ledger.acknowledged}
        atomic = whole and (closes or not ledger.crashed)
        found = self._cuts.check(self.plan.incarnations, acknowledged, atomic)
        self.world.coverage["checkpoint" if closes else "checkpoint under ssp"] += found
        if self.plan.checkpoint_every_s:
            self.world.coverage["checkpoint by time"] += found
        if self.work.leased is not None and closes and atomic:
            log = self.world.nodes[SCHEDULER].disk.log
            entries = [msgspec.json.decode(entry, type=LogEntry) for entry in log]
            leased = self._cuts.check_leases(entries, self.work.leased.unsure)
            self.world.coverage["checkpoint of leased batches"] += leased

    def _never_joined(self, sim: SimNode) -> bool:
        """Return whether a node was in no view."""
        machine = sim.machine
        return isinstance(machine, WorkerMachine | ServerMachine) and machine.session.view is None

    def _waiting(self) -> list[str]:
        lines = []
        for node, sim in self.world.nodes.items():
            machine = sim.machine
            if sim.alive and isinstance(machine, ServerMachine | WorkerMachine):
                lines += [f"{node}: {what} {why}" for what, why in machine.waiting()]
                lines += [f"{node}: {question}" for question in machine.session.questions()]
        return lines[:8]


def simulate(
    seed: int,
    keep_lines: bool = False,
    fault_schedule: Sequence[Fault] = (),
    planted: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Report:
    """Run one seed to its end; a violation is reported, not raised.

    fault_schedule:  the faults to inject in turn, in place of those that the seed draws
    planted:         a context in which a bug is planted, to test the checkers
    """
    checker = violation = ""
    with planted():
        scenario = Scenario(seed, keep_lines, fault_schedule)
        plan, worlds = scenario.plan, [scenario.world]
        try:
            scenario.run(MOST_EVENTS * (4 if fault_schedule else 1))
            if not fault_schedule:
                for other in _others(seed, plan, keep_lines):
                    worlds.append(other.world)
                    other.run()
        except Violation as found:
            checker, violation = found.checker, found.message
        except ShoalError as found:  # a machine must not raise one
            checker, violation = "invariant", str(found)
        except Exception as found:
            checker, violation = "crashed", f"{type(found).__name__}: {found}, {place_of(found)}"
    sums = plan.sums and not fault_schedule
    coverage = Counter({"sums around a ring": 1} if sums else {})
    for world in worlds:
        coverage.update(world.coverage)
    hits = [sum(world.network.hits.values()) for world in worlds]
    return Report(
        seed=seed,
        events=sum(world.events for world in worlds),
        faults=sum(scenario.faults.counts.values()) + sum(hits),
        trace_hash="-".join(world.trace.hash for world in worlds),
        coverage=dict(sorted(coverage.items())),
        checker=checker,
        violation=violation,
        lines=[line for world in worlds for line in world.trace.lines],
    )


def _others(
    seed: int, plan: Plan, keep_lines: bool
) -> Iterator[Scenario | RingScenario | SupervisedScenario]:
    """Yield the other scenarios of a seed, each when the one before has ended."""
    if plan.as_simple:
        yield Scenario(seed, keep_lines, simple=True)
    if plan.sums:
        yield RingScenario(seed, keep_lines)
    yield SupervisedScenario(seed, keep_lines)
