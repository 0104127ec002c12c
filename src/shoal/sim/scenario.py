"""One seeded run of a faulty cluster, with every checker watching: what `shoal simulate` runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random

import msgspec
from msgspec.structs import replace

from shoal.errors import ShoalError
from shoal.protocol.machine import Note
from shoal.protocol.markers import Markers
from shoal.protocol.messages import SCHEDULER, Message
from shoal.protocol.obituary import Obituary
from shoal.protocol.placement import copies_of, lost
from shoal.protocol.record import SchedulerOptions
from shoal.protocol.requests import GoAway
from shoal.protocol.scheduler import SchedulerMachine
from shoal.protocol.server import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId, View
from shoal.protocol.worker import WorkerMachine
from shoal.sim.checkers import (
    Durability,
    Views,
    Violation,
    check_parked,
    check_served,
    violated,
)
from shoal.sim.cuts import Cuts
from shoal.sim.faults import Faults
from shoal.sim.holdings import check_holdings, made_room
from shoal.sim.plans import GUESTS, REPLICATION, SESSION, WORKER, Plan
from shoal.sim.workload import INCARNATIONS, Workload
from shoal.sim.world import SimNode, World
from shoal.tables.opening import open_shard

HEAL_AT_S = 6.0
LIMIT_S = 120.0
REPAIR_S = 12.0  # after the last fault
DROPPING, SLOW_SHARE = 0.25, 0.6  # of the seeds; of the time that a worker is waited for


class Report(msgspec.Struct):
    """What happened: `violation` names the checker and the find, or is empty."""

    seed: int
    events: int
    faults: int
    trace_hash: str
    coverage: dict[str, int]
    virtual_s: float
    checker: str = ""
    violation: str = ""
    lines: list[str] = []


class Scenario:
    """A cluster, its faults and its checkers, from one seed."""

    def __init__(self, seed: int, keep_lines: bool = False) -> None:
        self.plan = plan = Plan.of(seed)
        random = Random(seed * 104729 + 5)
        self.world = World(seed, plan.network, keep_lines)
        self.work = Workload(
            self.world, seed, plan.consistency, plan.clocks, plan.bounded, plan.leased
        )
        if self.work.sparse:
            self.world.coverage["sparse ledger"] += 1
        if self.work.visits is not None:
            self.world.coverage["bounded table"] += 1
        if self.work.harvest is not None:
            self.world.coverage["leased batches"] += 1
        if self.work.calls is not None:
            self.world.coverage["handled table"] += 1
        self.works = {"": self.work}
        if plan.guests:
            self.world.coverage["guests"] += 1
            rule, clocks = plan.guests_rule, plan.clocks // 2
            self.works[GUESTS] = Workload(
                self.world, seed * 47 + 1, rule, clocks, False, plan.guests_leased, self.work
            )
        for work in self.works.values():
            work.may_end = self._may_end
        self.guests: dict[NodeId, None] = {}
        self._guests_due = plan.guests  # who have to come, or to come again
        self.faults = Faults(self.world, self, random)
        self._views = Views()
        self._durability = Durability()
        self._cuts = Cuts()
        self._lost: dict[NodeId, None] = {}  # members that the scheduler took for dead
        self._workers_made = self._servers_made = 0
        self._servers: dict[NodeId, ServerMachine] = {}
        self.world.on_note = self._on_note
        self.world.on_event = self._on_event
        self.world.on_save = self._cuts.add
        self.world.on_crash = self._on_crash
        self.world.on_send = self._on_send
        self._scheduler_options = SchedulerOptions(
            servers=plan.servers,
            workers=plan.workers,
            join_timeout_s=20.0,
            silence_s=3.0,
            broken_s=1.8,
            elastic=True,
            replicas=plan.replicas,
            drain_s=0.5,
            pause_s=0.5,
            slow_share=SLOW_SHARE if Random(seed * 29 + 3).random() < DROPPING else 0.0,
            slow_s=0.5,
            checkpoint_s=plan.checkpoint_s,
        )
        self.world.add(SCHEDULER, SchedulerMachine(self._scheduler_options))
        for _ in range(plan.servers):
            self.add_server()
        for _ in range(plan.workers):
            self.add_worker()
        for _ in range(plan.guests):
            self.world.at(Random(seed * 53 + 1).random() ** 2, self._add_guest)
        victim = f"server-{random.randrange(plan.servers)}" if plan.kill_server else None
        self.faults.plan(plan.faults, plan.phases(), victim, plan.replicas > 1)
        self.world.at(HEAL_AT_S, self.faults.heal)

    # ------------------------------------------------------------------ the cast

    def add_worker(self) -> NodeId | None:
        """Start another worker; None where the ledger has no keys for one more.

        It is a guest where one is due, once the first group is there.
        """
        if self._full():
            return None
        node = f"worker-{self._workers_made}"
        self._workers_made += 1
        group, options = "", SESSION
        if self._guests_due and self._workers_made > self.plan.workers:
            self._guests_due -= 1
            self.guests[node] = None
            group, size = GUESTS, self.plan.guests
            options = replace(options, group=group, group_size=size, namespace=group)
        session = Session(node, "worker", options=options, process=self._made)
        machine = WorkerMachine(session, WORKER)
        self.world.add(node, machine, self.works[group].program(node, machine))
        return node

    def _add_guest(self) -> None:
        self.add_worker()

    def add_server(self) -> NodeId | None:
        """Start another server."""
        if self._full():
            return None
        node = f"server-{self._servers_made}"
        self._servers_made += 1
        session = Session(node, "server", options=SESSION, process=self._made)
        self._servers[session.me] = ServerMachine(
            session, open_shard, REPLICATION, Markers(self.plan.save_every)
        )
        self.world.add(session.me, self._servers[session.me])
        return session.me

    @property
    def _made(self) -> int:
        return self._workers_made + self._servers_made

    def _full(self) -> bool:
        return self._made >= INCARNATIONS - 4

    def send_away(self, server: NodeId) -> None:
        """Somebody wants a server to go."""
        self.world.ask(server, GoAway())

    def repaired(self) -> bool:
        """Whether all rows are on as many servers as they are to be."""
        view = self._view()
        living = [n for n in self._servers if self._lives(n)]
        wanted = min(self.plan.replicas, len(living))
        return (
            view is not None
            and {m.id for m in view.servers} == set(living)
            and all(
                len(arc.full) >= min(wanted, copies_of(spec, self.plan.replicas))
                for spec, arcs in zip(view.tables, view.arcs, strict=True)
                for arc in arcs
            )
        )

    def _lives(self, server: NodeId) -> bool:
        sim = self.world.nodes[server]
        return sim.alive and not sim.stopped and server not in self._lost

    def _may_end(self) -> bool:
        """`short`: once nothing goes wrong any more, chains grow back to what they are to be."""
        if self.repaired():
            return True
        if self.world.now > HEAL_AT_S + REPAIR_S:
            raise violated("short", f"rows are on fewer servers than wanted: {self._waiting()}")
        return False

    def will_crash(self, worker: NodeId) -> None:
        machine = self.world.nodes[worker].machine
        assert isinstance(machine, WorkerMachine)
        for work in self.works.values():
            work.ledger.crashed.add(machine.session.incarnation)
        if worker in self.guests:
            del self.guests[worker]
            self._guests_due += 1

    def needed(self, worker: NodeId) -> bool:
        """Whether its group may not begin without another in its place."""
        return self._guests_due > 0

    def restart_scheduler(self) -> None:
        disk = self.world.nodes[SCHEDULER].disk
        self.world.add(SCHEDULER, SchedulerMachine(self._scheduler_options, disk))

    def phase(self) -> str:
        """What the cluster is doing."""
        if self._view() is None:
            return "joining"
        servers = self._servers.values()
        if any(machine.frozen for machine in servers):
            return "view change"
        if any(machine.waiting() for machine in servers):
            return "parked"
        return "open round" if any(machine.execution.rounds for machine in servers) else "quiet"

    def over(self) -> bool:
        return self.world.nodes[SCHEDULER].stopped

    def at_work(self) -> bool:
        """Whether somebody still has to push."""
        return any(
            isinstance(sim.machine, WorkerMachine)
            and not sim.stopped
            and sim.machine.clock < self.plan.clocks
            for sim in self.world.nodes.values()
            if sim.alive
        )

    def _view(self) -> View | None:
        machine = self.world.nodes[SCHEDULER].machine
        assert isinstance(machine, SchedulerMachine)
        return machine.view

    # ------------------------------------------------------------------ checks

    def _on_send(self, sim: SimNode, target: NodeId, message: Message) -> None:
        if sim.node == SCHEDULER:
            self._durability.told(target, message, sim.disk)
        else:
            self._views.sent(sim.node, message)

    def _on_note(self, node: NodeId, note: Note) -> None:
        machine = self.world.nodes[node].machine
        if isinstance(machine, ServerMachine):
            if note.kind == "declined" and note.fields["kind"] == "misfit":
                raise violated("misfit", f"{node} has not what it is asked: {note.fields}")
            if note.kind == "differs":
                raise violated("replicas", f"{node} has not what the head has: {note.fields}")
            if note.kind == "served":
                check_served(node, machine, note.fields["copies"])
            if note.kind in ("pushed", "landed"):
                self._views.pushed(node, note.fields["request"], machine.session.view_id)
        elif isinstance(machine, SchedulerMachine):
            if note.kind == "view" and machine.view:
                self._views.made(machine.view)
            elif note.kind == "lost":
                self._took_for_dead(note.fields["node"])

    def _took_for_dead(self, node: NodeId) -> None:
        self._lost[node] = None
        if node in self._servers:
            return
        self.will_crash(node)
        if self.world.nodes[node].alive:
            self.world.coverage["taken for dead alive"] += 1
            self.world.at(self.world.now + 0.1, self.faults.replace_worker)

    def _on_crash(self, node: NodeId) -> None:
        """In some seeds somebody has started it, who sees it end and says so."""
        machine = self.world.nodes[node].machine
        if self.plan.proves_death and isinstance(machine, ServerMachine | WorkerMachine):
            process = machine.session.process
            self.world.at(self.world.now, lambda: self._report_death(process))

    def _report_death(self, process: int) -> None:
        self.world.add(f"engine-{process}", Obituary("", process, 1.0))

    def _on_event(self, sim: SimNode) -> None:
        if sim.node in self._servers:
            check_parked(sim.node, self._servers[sim.node])
        else:
            for work in self.works.values():
                work.check_buffers(sim.node)
        self.faults.look()

    def check_end(self) -> None:
        """Faults healed: everything resolved, and every push's own key as it should be."""
        living = [n for n, s in self.world.nodes.items() if s.alive and not s.stopped]
        if living:
            raise violated("stuck", f"{living} did not end; waiting: {self._waiting()}")
        error = self.world.nodes[SCHEDULER].error
        ended = error.message if error is not None else ""
        gone = [n for n in self._servers if not self.world.nodes[n].alive or n in self._lost]
        view = self._view()
        if view is None and gone and ended:
            return  # it was never complete
        if view is not None and view.tables and gone:
            ranks = {member.rank for member in view.servers if member.id not in gone}
            if any(self._servers[node].session.name in ended for node in gone):
                if not lost(view.tables, view.arcs, ranks):
                    raise violated("named death", f"without {gone} the run ended with {ended!r}")
                return
            if lost(view.tables, view.arcs, ranks):
                raise violated("named death", f"{gone} died and the run ended with {ended!r}")
        for node, sim in self.world.nodes.items():
            expected = node in self._lost or self._never_in(sim)
            if sim.alive and sim.error is not None and not expected:
                raise violated("orderly", f"{node} ended with: {sim.error.message}")
        servers = {
            node: machine
            for node, machine in self._servers.items()
            if node not in gone and view is not None and view.member(node) is not None
        }
        if len({machine.session.view_id for machine in servers.values()}) > 1:
            self.world.coverage["end in a view change"] += 1
            return
        # what was accepted by a head dies with it; its worker sends it again, if it lives
        whole = not (gone and self.work.ledger.crashed)
        self._check_cuts(self.plan.consistency.settles == "close", whole)
        self.world.coverage["copies made room"] += made_room(servers)
        scheduler = self.world.nodes[SCHEDULER].machine
        assert isinstance(scheduler, SchedulerMachine)
        for group, work in self.works.items():
            closes = work.ledger.consistency.settles == "close"
            leases = scheduler.ledgers.of(group).record()
            check_holdings(servers, work, group, leases, one_round=closes and whole, whole=whole)

    def _check_cuts(self, closes: bool, whole: bool) -> None:
        if self.plan.consistency.name == "asp":
            return
        ledger = self.work.ledger
        acknowledged = {key: ledger.intended[key] for key in ledger.acknowledged}
        atomic = whole and (closes or not ledger.crashed)
        found = self._cuts.check(self.plan.clocks, acknowledged, atomic)
        self.world.coverage["checkpoint" if closes else "marked checkpoint"] += found
        if self.plan.checkpoint_s:
            self.world.coverage["checkpoint by time"] += found

    def _never_in(self, sim: SimNode) -> bool:
        """Whether it came too late for any view."""
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
    planted: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Report:
    """Run one seed to its end and report; a violation is in the report, not raised.

    planted: a context in which a bug is planted, for the tests of the checkers.
    """
    checker = violation = ""
    with planted():
        scenario = Scenario(seed, keep_lines)
        world = scenario.world
        try:
            world.run(until=LIMIT_S, most_events=60_000)
            scenario.check_end()
        except Violation as found:
            checker, violation = found.checker, found.message
        except ShoalError as found:  # a machine has no business to raise one
            checker, violation = "invariant", str(found)
    return Report(
        seed=seed,
        events=world.events,
        faults=sum(scenario.faults.counts.values()) + sum(world.network.hits.values()),
        trace_hash=world.trace_hash,
        coverage=dict(sorted(world.coverage.items())),
        virtual_s=world.now,
        checker=checker,
        violation=violation,
        lines=world.lines or [],
    )
