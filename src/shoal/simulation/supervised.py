"""A supervised run: processes that an engine starts, watches and starts again, in virtual time.

The engine's decisions are those of `protocol/supervision`. Its news of exits, of the scheduler's
events and of finished work is simulated, each with other delays: a member may be declared dead
while its process lives, return, or end with status 0 before its work was done.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Literal, get_args

import msgspec
import numpy as np

from shoal.errors import ProcessDied, RequestTimeout, ShoalError
from shoal.keys import KeyRange
from shoal.protocol.admin.question import Question
from shoal.protocol.machine import Machine, Note
from shoal.protocol.messages.admin import DeathReport, DeathReportSeen
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.requests import (
    AwaitView,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
)
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.notes import MemberJoined, MemberLost, ViewMade
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.supervision.supervisor import (
    Decision,
    Exit,
    Kill,
    Report,
    Start,
    Supervisor,
    loss_policy,
)
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.simulation.draws import Draws
from shoal.simulation.network import NetworkOptions
from shoal.simulation.node import Program, SimNode, Sleep
from shoal.simulation.plan import REPLICATION, SESSION, WORKER
from shoal.simulation.world import World
from shoal.tables.consistency import bsp
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec

OnLoss = Literal["stop", "drop", "replace"]
Kind = Literal["kill", "stop", "cut", "status 0", "status 1", "raise"]
OF_HOSTS: tuple[Kind, ...] = ("kill", "stop", "cut")
OF_SCRIPTS: tuple[Kind, ...] = ("status 0", "status 1", "raise")
SILENCE_S, ALONE_S = 3.0, 9.0
BREAKS_S = 2.0  # until a connection whose path is cut breaks
LOOK_S, FORK_S, READ_S = 0.05, 0.3, 0.2  # of the engine, at most: polls, forks, reads of the log
REPORT_S = 5.0
FIRST_S, APART_S = 0.3, 14.0  # when faults begin, and from one to the next: all has healed by then
LASTS_S = (0.5, 1.5, 3.5, 5.0, 8.0, inf)  # of stops and cuts: within the time-out, and beyond it
CLOCKS, STEP_S = 40, 1.2
LIMIT_S = 200.0
MOST_EVENTS = 150_000


class SupervisedFault(msgspec.Struct, frozen=True):
    """A fault of a process.

    lasts_s:  the duration of a stop or a cut; infinite if it is for good
    """

    kind: Kind
    name: str
    at: float
    lasts_s: float = inf


class SupervisedScenario:
    """A run, the engine that supervises it, and its faults: one at a time.

    outcome:  "" while the run goes on; then "success", or the reason why the command fails
    """

    def __init__(self, seed: int, keep_lines: bool = False) -> None:
        draws = Draws(seed, "supervised")
        random = draws["run"]
        self.on_loss: OnLoss = random.choice(get_args(OnLoss))
        self.servers, self.workers = random.randint(1, 3), random.randint(2, 3)
        self.replicas = min(self.servers, random.choice([1, 2, 2]))
        self.world = world = World(draws, _network(draws["network"]), keep_lines)
        self.supervisor = Supervisor()
        self.supervisor.policy = loss_policy(
            self.servers, self.replicas, self.workers, self.on_loss
        )
        self.options = SchedulerOptions(
            self.servers,
            self.workers,
            join_timeout_s=20.0,
            failure_timeout_s=SILENCE_S,
            silence_most_s=6.0,
            broken_s=random.choice([0.5, 1.8]),
            sole_replica_timeout_s=ALONE_S,
            replicas=self.replicas,
            elastic=self.on_loss == "replace",
            on_worker_loss=self.on_loss,
        )
        self.outcome = ""
        self.began = False
        self.finished: set[str] = set()  # the workers whose work is done, by name
        self.acknowledged: dict[tuple[str, int], None] = {}  # pushes, by worker and clock
        self._launches = 0
        self._nodes: dict[str, NodeId] = {}  # of running processes, by name
        self._launch_of: dict[NodeId, str] = {}
        self._errors: dict[NodeId, ShoalError] = {}  # with which a script has ended
        self._status: dict[NodeId, int] = {}
        self._reported: dict[NodeId, str] = {}  # the processes whose ends are being reported
        self._held: list[SupervisedFault] = []
        self._early = False  # whether a fault came before the run had begun
        self._joined: set[str] = set()  # the processes that the scheduler knows
        self._unknown = False  # whether one that it does not know is stopped for good
        self.faults = self._draw(draws["faults"])
        world.on_note = self._on_note
        for name in self._names():
            self._start(name)
        for fault in self.faults:
            world.at(fault.at, partial(self._inject, fault))
        world.at(LOOK_S, self._look)

    def _names(self) -> list[str]:
        servers = [f"server-{rank}" for rank in range(self.servers)]
        return [SCHEDULER, *servers, *(f"worker-{rank}" for rank in range(self.workers))]

    def _draw(self, random: Random) -> list[SupervisedFault]:
        faults = []
        at = FIRST_S + 4 * random.random()
        for _ in range(random.randint(1, 3)):
            name = random.choice(self._names())
            kinds = (*(2 * OF_HOSTS), *(OF_SCRIPTS if name.startswith("worker") else ()))
            kind = random.choice(kinds)
            lasts_s = random.choice(LASTS_S) if kind in ("stop", "cut") else inf
            faults.append(SupervisedFault(kind, name, at, lasts_s))
            at += APART_S * (1 + 0.3 * random.random())
        return faults

    # ------------------------------------------------------------------ processes

    def _start(self, name: str) -> None:
        """Start a process, as the fork server of an engine does."""
        self._launches += 1
        launch = str(self._launches)
        self.supervisor.starts(name, launch, self.world.now)
        at = self.world.now + FORK_S * self.world.draws["fork", name].random()
        self.world.at(at, partial(self._begin, name, launch))

    def _begin(self, name: str, launch: str) -> None:
        if self.outcome:
            return
        node = name if name == SCHEDULER else f"{name}.{launch}"
        self._nodes[name], self._launch_of[node] = node, launch
        role, _, rank = name.partition("-")
        machine: Machine
        program = None
        if name == SCHEDULER:
            before = self.world.nodes.get(node)
            machine = SchedulerMachine(self.options, before.disk.record if before else None)
        elif role == "server":
            session = Session(node, "server", options=SESSION, launch=launch)
            machine = ServerMachine(session, open_shard, REPLICATION)
        else:
            session = Session(node, "worker", rank=int(rank), options=SESSION, launch=launch)
            machine = WorkerMachine(session, WORKER)
            program = self._program(name, node, machine)
        self.world.add(node, machine, program)

    def _program(self, name: str, node: NodeId, machine: WorkerMachine) -> Program:
        """Push to the worker's own row at each clock, as long as the script does not fail."""
        spec = TableSpec(
            "w", self.workers, (), "int64", consistency=bsp(), merge="sum", access=Access("sum")
        )
        for first in (AwaitView(), DeclareTable(spec), EnterBarrier("begin")):
            if (outcome := (yield first)).error is not None:
                return self._ends(node, outcome.error)
        mine, rank = np.ones(1, np.int64).view(np.uint8).data, machine.session.rank
        out = np.zeros(self.workers, np.int64)
        while machine.clock < CLOCKS:
            yield Sleep(STEP_S * self.world.draws["step", name].random())
            if node in self._status:
                return
            clock = machine.clock
            pushes = (PushOp("w", KeyRange(rank, rank + 1), mine),)
            pulls = (PullOp("w", KeyRange(0, self.workers), out.view(np.uint8).data),)
            outcome = yield Exchange(pushes, advance=True, pulls=pulls)
            while isinstance(outcome.error, RequestTimeout) and not machine.session.ended:
                outcome = yield Exchange(pulls=pulls)  # the push counts, in the end
            if outcome.error is not None:
                return self._ends(node, outcome.error)
            self.acknowledged[name, clock] = None
        outcome = yield FinishWork()
        if outcome.error is not None:
            return self._ends(node, outcome.error)
        self.finished.add(name)
        self.world.at(self.world.now, partial(self._exits, node))

    def _exits(self, node: NodeId) -> None:
        """End a process with status 0."""
        if node in self._nodes.values():
            self._status[node] = 0
            self.world.crash(node)

    def _ends(self, node: NodeId, error: ShoalError) -> None:
        self._errors[node] = error

    # ------------------------------------------------------------------ faults

    def _inject(self, fault: SupervisedFault) -> None:
        node = self._nodes.get(fault.name, "")
        sim = self.world.nodes.get(node)
        if self.outcome or sim is None or not sim.alive or sim.stopped:
            return
        until = min(self.world.now + fault.lasts_s, LIMIT_S)
        role, lasts = fault.name.partition("-")[0], fault.kind in ("stop", "cut")
        if lasts and SILENCE_S < fault.lasts_s < inf:
            self.world.coverage["supervised return after a time-out"] += 1
        if fault.kind in OF_SCRIPTS:
            self.world.coverage["supervised end of a script"] += 1
        self.world.coverage[f"supervised {fault.kind} {role}"] += 1
        self._held.append(fault)
        self._early |= not self.began
        stays = lasts and fault.lasts_s == inf
        self._unknown |= stays and self._launch_of[node] not in self._joined
        match fault.kind:
            case "kill":
                self.world.crash(node)
            case "stop":
                self.world.pause(node, until)
            case "cut":
                self.world.network.partition(frozenset([node]), until)
                self.world.at(self.world.now + BREAKS_S, partial(self._breaks, node, until))
            case "status 0" | "status 1":  # it ends as `os._exit` ends it
                self._status[node] = int(fault.kind[-1])
                self.world.crash(node)
            case "raise":
                self._status[node] = 1
                self._ends(node, ProcessDied("RuntimeError: the loss is nan"))
                self.world.crash(node)

    def _breaks(self, node: NodeId, until: float) -> None:
        """Break the connections of a node whose path is cut: what it sends is not acknowledged."""
        for other in self._nodes.values():
            if self.world.now < until and other != node and self.world.connected(node, other):
                self.world.break_connection(node, other, closed=False)

    # ------------------------------------------------------------------ the engine

    def _look(self) -> None:
        """Take a turn of the engine."""
        if self.outcome:
            return
        world, now = self.world, self.world.now
        for name, node in list(self._nodes.items()):
            sim = world.nodes[node]
            if not sim.alive or sim.stopped:
                del self._nodes[name]
                gone = self._exit(name, sim)
                world.crash(node)  # its connections are closed
                self._do(self.supervisor.ended(gone, now))
        for node, launch in list(self._reported.items()):
            reporter = world.nodes[node]
            if reporter.stopped:
                del self._reported[node]
                answer = getattr(reporter.machine, "answer", None)
                if isinstance(answer, DeathReportSeen) and not answer.finished:
                    self.supervisor.unfinished(launch, now)
        self._do(self.supervisor.tick(now))
        if self.supervisor.over(now):
            self._over()
            return
        world.at(now + LOOK_S, self._look)

    def _exit(self, name: str, sim: SimNode) -> Exit:
        node, launch = sim.node, self._launch_of[sim.node]
        error = self._errors.get(node) or (sim.error if sim.stopped else None)
        if node in self._status:
            return Exit(name, self._status[node], launch, error)
        if not sim.alive:
            return Exit(name, -9, launch)
        return Exit(name, 1 if error is not None else 0, launch, error)

    def _do(self, decisions: list[Decision]) -> None:
        for each in decisions:
            match each:
                case Start(name):
                    self.world.coverage[f"supervised start {name.partition('-')[0]}"] += 1
                    self._start(name)
                case Kill(name):
                    self.world.coverage["supervised kill of a dead member"] += 1
                    if name in self._nodes:
                        self.world.crash(self._nodes[name])
                case Report(launch, orderly):
                    reporter = f"engine-{launch}"
                    question = Question(DeathReport(launch, orderly), (DeathReportSeen,), REPORT_S)
                    self.world.add(reporter, question)
                    self._reported[reporter] = launch

    def _on_note(self, node: NodeId, note: Note) -> None:
        """Read the scheduler's log, a little later."""
        match note:
            case ViewMade():
                self.world.at(self._read_at(), self._begun)
            case MemberJoined():
                self._joined.add(note.launch)
            case MemberLost(name, how, launch):
                self.world.at(self._read_at(), lambda: self._declared(name, launch, how))

    def _read_at(self) -> float:
        """Return when the engine reads what is written to the log now."""
        return self.world.now + READ_S * self.world.draws["log"].random()

    def _begun(self) -> None:
        self.supervisor.begun()
        self.began = True

    def _declared(self, name: str, launch: str, how: str) -> None:
        if not self.outcome:
            self.supervisor.declared_dead(name, launch, how, self.world.now)

    def _over(self) -> None:
        """End all processes that still run, as an engine does, and set the outcome of the run."""
        self.outcome = "success"
        if self.supervisor.failed:
            self.outcome = self.supervisor.cause(lambda name: Path(f"{name}.log")).message
        how = "succeeds" if self.outcome == "success" else "fails"
        self.world.coverage[f"supervised run {how} under {self.on_loss}"] += 1
        for node in self._nodes.values():
            self.world.crash(node)

    # ------------------------------------------------------------------ the check

    def run(self) -> None:
        """Run to the end, and check it."""
        self.world.run(until=LIMIT_S, most_events=MOST_EVENTS)
        self.check_end()

    def check_end(self) -> None:
        """Check that the run ends, and that it ends as its option says."""
        hurt = Counter(fault.name[:6] for fault in self._held)
        told = f"{self.on_loss}, {self.servers} servers, {self.replicas} replicas, {self._held}"
        if not self.outcome and all(self._frozen(node) for node in self._nodes.values()):
            self.world.coverage["supervised end that waits for a frozen process"] += 1
            return
        if not self.outcome:
            raise violated("unending", f"the command goes on ({told}): {sorted(self._nodes)}")
        workers = {f"worker-{rank}" for rank in range(self.workers)}
        if self.outcome == "success":
            lost = {each.name for each in self.supervisor.lost}
            if undone := workers - self.finished - self._known_finished() - lost:
                raise violated("undone", f"success, and {sorted(undone)} had not finished ({told})")
            if lost and self.on_loss != "drop":
                raise violated("undone", f"success without {sorted(lost)} ({told})")
            return
        by_worker = hurt["worker"] and (self.on_loss == "stop" or self._early)
        by_rows = hurt["server"] or hurt["schedu"]
        stays = [f for f in self._held if f.kind != "kill" and f.lasts_s == inf]
        headless = any(fault.name == SCHEDULER for fault in stays)  # and nobody may replace it
        spared = (self.replicas > 1 or not by_rows) and not headless and not self._unknown
        gone = {each.name for each in self._held if each.lasts_s > SILENCE_S - 1}
        without = self.on_loss == "drop" and gone >= workers
        if spared and not by_worker and not without:
            raise violated(
                "healed", f"the run ended although it had healed ({told}): {self.outcome}"
            )
        stopped = hurt["worker"] and self.on_loss == "stop"
        if stopped and not by_rows and "worker-" not in self.outcome:
            raise violated("named death", f"{self.outcome!r} names no worker ({told})")

    def _known_finished(self) -> set[str]:
        """Return the names of the workers whose `Finish` the scheduler has."""
        scheduler = self.world.nodes[SCHEDULER].machine
        assert isinstance(scheduler, SchedulerMachine)
        by_id, finished = scheduler.members.by_id, scheduler.members.finished
        return {by_id[node].name for node in finished if node in by_id}

    def _frozen(self, node: NodeId) -> bool:
        """Return whether a process is stopped for good."""
        return self.world.nodes[node].paused_until >= LIMIT_S


def _network(random: Random) -> NetworkOptions:
    return NetworkOptions(
        loss=random.choice([0.0, 0.02]),
        jitter_s=random.choice([0.0005, 0.01]),
        streams=random.random() < 0.7,
    )
