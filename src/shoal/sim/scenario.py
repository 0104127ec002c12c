"""One seeded run of a faulty cluster, with every checker watching: what `shoal simulate` runs.

The workload is made to be checkable. Table `ledger` has a key for each push (it must end as 1, 0
or either, by what became of the push); table `stamp` gets the same number on every element, so
that a torn or half-counted push shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

import msgspec
import numpy as np

from shoal.errors import InvariantBroken
from shoal.keys import KeyRange
from shoal.protocol.machine import Note, Outcome, Persist
from shoal.protocol.messages import SCHEDULER, NodeId, View
from shoal.protocol.requests import (
    AwaitView,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
    Start,
    Wait,
)
from shoal.protocol.scheduler import SchedulerMachine, SchedulerOptions
from shoal.protocol.server import ServerMachine
from shoal.protocol.session import Session, SessionOptions
from shoal.protocol.worker import WorkerMachine, WorkerOptions
from shoal.sim.checkers import (
    Acknowledgements,
    Ledger,
    Violation,
    check_canary,
    check_one_round,
    check_push_view,
    check_tiling,
    check_untorn,
    violated,
)
from shoal.sim.network import NetworkOptions
from shoal.sim.world import Program, SimNode, Sleep, World
from shoal.tables.dense import DenseShard
from shoal.tables.spec import Access, Consistency, TableSpec, asp, bsp, ssp

CLOCKS = 28
INCARNATIONS = 24
STAMP_ROWS = 36
STAMP_FRAGMENT = 3
CANARY = -7.0
HEAL_AT_S = 6.0
LIMIT_S = 120.0


class Plan(msgspec.Struct, frozen=True):
    """What a seed stands for."""

    seed: int
    servers: int
    workers: int
    consistency: Consistency
    network: NetworkOptions
    kill_server: bool
    churn: int  # crashes, restarts, joins and partitions
    clocks: int = CLOCKS

    @staticmethod
    def of(seed: int) -> Plan:
        """The plan of a seed: a pure function."""
        random = Random(seed * 7919 + 17)
        rules = [bsp(), bsp(), ssp(0, "close"), ssp(random.randint(1, 3)), asp()]
        network = NetworkOptions(
            loss=random.choice([0.0, 0.02, 0.06]),
            duplicate=random.choice([0.0, 0.03, 0.08]),
            reorder=random.choice([0.0, 0.2, 0.6]),
            jitter_s=random.choice([0.0005, 0.002, 0.01]),
        )
        return Plan(
            seed,
            random.randint(1, 3),
            random.randint(2, 4),
            random.choice(rules),
            network,
            random.random() < 0.08,
            random.randint(4, 7),
        )


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
        self.plan = Plan.of(seed)
        self.random = Random(seed * 104729 + 5)
        self.world = World(seed, self.plan.network, keep_lines)
        self.ledger = Ledger(self.plan.consistency, self.plan.clocks)
        self.acknowledgements = Acknowledgements()
        self.faults: Counter[str] = Counter()
        self.done: set[NodeId] = set()
        self.healed = False
        self._expecting: list[tuple[NodeId, np.ndarray]] = []
        self._workers_made = 0
        self.world.on_note = self._on_note
        self.world.on_event = self._on_event
        self.world.crash_at = self._crash_at
        self._scheduler_dies: str = ""
        plan = self.plan
        self._scheduler_options = SchedulerOptions(
            servers=plan.servers,
            workers=plan.workers,
            join_timeout_s=20.0,
            silence_s=2.0,
            broken_s=0.3,
            elastic=True,
        )
        self._session_options = SessionOptions(
            join_timeout_s=60, heartbeat_s=0.3, resend_s=0.1, silence_s=60
        )
        self.world.add(SCHEDULER, SchedulerMachine(self._scheduler_options))
        for index in range(plan.servers):
            session = Session(f"server-{index}", "server", options=self._session_options)
            self.world.add(session.me, ServerMachine(session, DenseShard))
        for _ in range(plan.workers):
            self.add_worker()
        self._plan_faults()

    # ------------------------------------------------------------------ the cast

    def add_worker(self) -> NodeId:
        node = f"worker-{self._workers_made}"
        self._workers_made += 1
        session = Session(node, "worker", options=self._session_options)
        options = WorkerOptions(
            sync_timeout_s=4.0, probe_s=0.05, probe_max_s=0.4, behind_s=0.005, credit_bytes=4096
        )
        machine = WorkerMachine(session, options)
        self.world.add(node, machine, self._program(node, machine))
        return node

    def tables(self) -> list[TableSpec]:
        rule = self.plan.consistency
        rows = INCARNATIONS * self.plan.clocks
        common: dict[str, Any] = {"access": Access("sum"), "consistency": rule, "merge": "sum"}
        return [
            TableSpec("ledger", rows, fragment_rows=rows // 6, **common),
            TableSpec("stamp", STAMP_ROWS, fragment_rows=STAMP_FRAGMENT, **common),
        ]

    # ------------------------------------------------------------------ the workload

    def _program(self, node: NodeId, machine: WorkerMachine) -> Program:
        outcome = yield AwaitView()
        if outcome.error is not None:
            return
        for spec in self.tables():
            outcome = yield DeclareTable(spec)
            if outcome.error is not None:
                return
        outcome = yield EnterBarrier("start", ("workers",))
        if outcome.error is not None:
            return
        incarnation = machine.session.incarnation
        if machine.clock > 0:
            self.world.coverage["join during training"] += 1
        random = Random(self.plan.seed * 31 + incarnation)
        while machine.clock < self.plan.clocks and not machine.session.ended:
            yield from self._clock(node, machine, incarnation, random)
            yield Sleep(random.choice([0.0, 0.01, 0.05, 0.3]) * random.random())
        while not machine.session.ended:
            outcome = yield Exchange(advance=True, last=True)
            if outcome.error is None:
                break
        if not machine.session.ended:
            yield EnterBarrier("end", ("workers",))
        if not machine.session.ended:
            yield FinishWork()
        self.done.add(node)

    def _clock(
        self, node: NodeId, machine: WorkerMachine, incarnation: int, random: Random
    ) -> Program:
        """One clock: push to both tables, advance, read them back, in one of several styles."""
        ledger = np.full(INCARNATIONS * self.plan.clocks, CANARY, np.float32)
        stamp = np.full(STAMP_ROWS, CANARY, np.float32)
        clock = machine.clock
        key = self.ledger.key(incarnation, clock)
        pushes = _pushes(key, len(ledger))
        pulls = (_pull("ledger", ledger), _pull("stamp", stamp))
        timeout = random.choice([None, None, None, 0.3])
        self.ledger.intended[key] = clock
        style = random.choice(["together", "apart", "overlapped", "after"])
        if style == "together":
            outcome = yield Exchange(pushes, advance=True, pulls=pulls, timeout_s=timeout)
            self._pushed(key, outcome)
        elif style == "apart":
            ticket = yield Start(Exchange(pushes))
            outcome = yield Exchange(advance=True, pulls=pulls, timeout_s=timeout)
            pushed = yield Wait(ticket)
            self._pushed(key, pushed)
        elif style == "overlapped":
            ticket = yield Start(Exchange(pushes))
            advanced = yield Start(Exchange(advance=True))
            yield Sleep(0.002 * random.random())
            outcome = yield Exchange(pulls=pulls, timeout_s=timeout)
            pushed = yield Wait(ticket)
            self._pushed(key, pushed)
            yield Wait(advanced)
        else:
            ticket = yield Start(Exchange(pushes))
            advanced = yield Start(Exchange(advance=True))
            outcome = yield Exchange(pulls=pulls, after=(ticket, advanced), timeout_s=timeout)
            pushed = yield Wait(ticket)
            self._pushed(key, pushed)
            yield Wait(advanced)
        if machine.session.ended:
            return
        if outcome.error is not None:
            self.world.coverage[f"failed {type(outcome.error).__name__}"] += 1
            ledger.fill(CANARY)
            self._expecting.append((node, ledger))
            return
        if clock + 1 == machine.clock:
            self.ledger.check_read(incarnation, machine.clock, ledger)
            check_untorn(stamp, STAMP_FRAGMENT)

    def _pushed(self, key: int, outcome: Outcome) -> None:
        if outcome.error is None:
            self.ledger.acknowledged.add(key)
        else:
            self.ledger.failed.add(key)

    # ------------------------------------------------------------------ faults

    def _plan_faults(self) -> None:
        menu = ["crash worker", "restart scheduler", "partition", "clog", "slow worker", "join"]
        for _ in range(self.plan.churn):
            what = self.random.choice(menu)
            when = 0.01 + 1.5 * self.random.random() ** 2
            self.world.at(when, lambda what=what: self._fault(what))  # type: ignore[misc]
        if self.plan.kill_server:
            victim = f"server-{self.random.randrange(self.plan.servers)}"
            least = 500 + self.random.randrange(500)
            self.world.at(0.3, lambda: self._kill_server(victim, least))
        self.world.at(HEAL_AT_S, self._heal)

    def _fault(self, what: str) -> None:
        if self.healed or self._over():
            return
        names = sorted(n for n, s in self.world.nodes.items() if s.alive and not s.stopped)
        workers = [n for n in names if n.startswith("worker")]
        until = self.world.now + 0.1 + self.random.random() * 1.2
        random = self.random
        match what:
            case "crash worker":
                if len(workers) > 1:
                    self._crash_worker(random.choice(workers))
            case "restart scheduler":
                self._scheduler_dies = random.choice(["now", "before", "after"])
                if self._scheduler_dies == "now":
                    self._crash_scheduler("now")
            case "partition":
                island = frozenset(random.sample(names, random.randint(1, max(1, len(names) // 2))))
                self.world.network.partition(island, until)
                self._count(f"partition ({self._phase()})")
            case "clog":
                if len(names) > 1:
                    source, target = random.sample(names, 2)
                    self.world.network.clog(source, target, until)
                    self._count("clog")
            case "slow worker":
                for target in names:
                    self.world.network.clog(random.choice(workers or names), target, until)
                self._count("slow worker")
            case "join":
                if self._workers_made < INCARNATIONS - self.plan.servers - 2:
                    self.add_worker()
                    self._count("join")

    def _crash_worker(self, node: NodeId) -> None:
        self._count(f"crash worker ({self._phase()})")
        machine = self.world.nodes[node].machine
        assert isinstance(machine, WorkerMachine)
        self.ledger.crashed.add(machine.session.incarnation)
        self.world.crash(node, tell=self.random.random() < 0.5)
        if self.random.random() < 0.7 and self._workers_made < INCARNATIONS - 6:
            delay = self.random.random()
            self.world.at(self.world.now + delay, self._restart_worker)

    def _restart_worker(self) -> None:
        if not self._over():
            self._count("restart worker")
            self.add_worker()

    def _crash_scheduler(self, how: str) -> None:
        self._scheduler_dies = ""
        self._count(f"crash scheduler ({how})")
        self.world.crash(SCHEDULER, tell=False)
        self.world.at(self.world.now + 0.05 + self.random.random(), self._restart_scheduler)

    def _restart_scheduler(self) -> None:
        disk = self.world.nodes[SCHEDULER].disk
        self.world.add(SCHEDULER, SchedulerMachine(self._scheduler_options, disk))

    def _crash_at(self, sim: SimNode, effect: object) -> bool:
        """Kill the scheduler just before or just after a record is durable."""
        if sim.node != SCHEDULER or not self._scheduler_dies or not isinstance(effect, Persist):
            return False
        how = self._scheduler_dies
        if how == "after":
            sim.disk = effect.record
        self._scheduler_dies = ""
        self._count(f"crash scheduler ({how} persist)")
        self.world.at(self.world.now + 0.05 + self.random.random(), self._restart_scheduler)
        return True

    def _kill_server(self, victim: NodeId, least_events: int) -> None:
        if self._over():
            return
        if self.world.events < least_events:
            again = self.world.now + 0.05
            self.world.at(again, lambda: self._kill_server(victim, least_events))
        else:
            self._count(f"crash server ({self._phase()})")
            self.world.crash(victim)

    def _heal(self) -> None:
        self.healed = True
        self._scheduler_dies = ""
        self.world.network.heal()

    def _phase(self) -> str:
        """What the cluster is doing, for the coverage counters."""
        view = self._view()
        if view is None:
            return "joining"
        servers = self._servers()
        if any(machine.frozen for machine in servers):
            return "view change"
        if any(machine._rounds for machine in servers):
            return "open round"
        return "parked" if any(machine.waiting() for machine in servers) else "quiet"

    def _count(self, fault: str) -> None:
        self.faults[fault] += 1
        self.world.coverage[fault] += 1
        self.world.note_line(f"FAULT {fault}")

    # ------------------------------------------------------------------ checks

    def _on_note(self, node: NodeId, note: Note) -> None:
        machine = self.world.nodes[node].machine
        if note.kind == "pushed" and isinstance(machine, ServerMachine):
            check_push_view(node, note, machine)
        elif note.kind == "view" and isinstance(machine, SchedulerMachine) and machine.view:
            check_tiling(machine.view)

    def _on_event(self, sim: SimNode) -> None:
        for node, buffer in self._expecting:
            if node == sim.node:
                check_canary(buffer, CANARY)

    def _view(self) -> View | None:
        machine = self.world.nodes[SCHEDULER].machine
        assert isinstance(machine, SchedulerMachine)
        return machine.view

    def _servers(self) -> list[ServerMachine]:
        machines = [sim.machine for sim in self.world.nodes.values() if sim.alive]
        return [machine for machine in machines if isinstance(machine, ServerMachine)]

    def _over(self) -> bool:
        return any(sim.stopped for sim in self.world.nodes.values() if sim.node == SCHEDULER)

    def check_end(self) -> None:
        """Faults healed: everything resolved, and every push's own key as it should be."""
        stuck = [n for n, s in self.world.nodes.items() if s.alive and not s.stopped]
        killed = any(fault.startswith("crash server") for fault in self.faults)
        living = [n for n in stuck if not n.startswith("worker") or n not in self.done]
        if living:
            raise violated("stuck", f"{living} did not end; waiting: {self._waiting()}")
        if killed:
            end = self.world.nodes[SCHEDULER].error
            if end is None or "server-" not in end.message:
                raise violated("named death", f"a dead server ended the run with {end!r}")
            return
        shards: dict[str, list[np.ndarray]] = {"ledger": [], "stamp": []}
        for machine in sorted(self._servers(), key=lambda each: each.session.rank):
            for shard in machine.shards:
                assert isinstance(shard, DenseShard)
                shards[shard.spec.name].append(shard.rows.numpy())
        self.ledger.check_end(np.concatenate([s.ravel() for s in shards["ledger"]]))
        for stamps in shards["stamp"]:
            check_untorn(stamps.ravel(), STAMP_FRAGMENT)
        if self.plan.consistency.settles == "close":
            check_one_round(shards["stamp"])

    def _waiting(self) -> list[str]:
        lines = []
        for node, sim in self.world.nodes.items():
            machine = sim.machine
            if sim.alive and isinstance(machine, ServerMachine | WorkerMachine):
                lines += [f"{node}: {what} {why}" for what, why in machine.waiting()]
                lines += [f"{node}: {question}" for question in machine.session.questions()]
        return lines[:8]


def _pushes(key: int, rows: int) -> tuple[PushOp, ...]:
    ones = np.ones(STAMP_ROWS, np.float32)
    return (
        PushOp(
            "ledger",
            KeyRange(0, rows),
            np.ones(1, np.float32).view(np.uint8).data,
            np.array([key], np.int64).data,
        ),
        PushOp("stamp", KeyRange(0, STAMP_ROWS), ones.view(np.uint8).data),
    )


def _pull(table: str, out: np.ndarray) -> PullOp:
    return PullOp(table, KeyRange(0, len(out)), out.view(np.uint8).data)


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
        except InvariantBroken as found:
            checker, violation = "invariant", str(found)
    network = world.network.hits
    coverage = world.coverage
    faults = sum(scenario.faults.values()) + sum(network.values())
    return Report(
        seed=seed,
        events=world.events,
        faults=faults,
        trace_hash=world.trace_hash,
        coverage=dict(sorted(coverage.items())),
        virtual_s=world.now,
        checker=checker,
        violation=violation,
        lines=world.lines or [],
    )
