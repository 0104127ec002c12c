"""The members of a simulated cluster: start, leave, restart, and their state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import cast

from msgspec.structs import replace

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.requests import GoAway
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.scheduler.rows.placement import replicas_of
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.requests.requests import RequestOptions
from shoal.protocol.server.state.shard_store import ShardStore
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId, View
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.lent import watch
from shoal.simulation.heartbeats import ProcessHeartbeats
from shoal.simulation.plan import GUESTS, REPLICATION, SESSION, WORKER, Plan
from shoal.simulation.workloads.listed import KEPT_BYTES
from shoal.simulation.workloads.programs import Workload
from shoal.simulation.world import World
from shoal.tables.opening import open_shard
from shoal.tables.spec import TableSpec

SILENCE_S = 3.0
ALONE_S = 9.0  # longer than any fault separates a living member
HANG_S = 4.0
UNREAD_BYTES = 3000  # so that pulls wait for slow readers
DROPPING, SLOW_SHARE = 0.25, 0.6  # share of the seeds; share of time that marks a straggler

ROOM_FOR_WORKERS = 6  # members that may start, kept for workers


class SimulatedCluster:
    """The members of a cluster.

    servers:        all servers that were ever started
    guests:         the workers of a second group, which are always restarted
    lost:           the members that the scheduler declared dead
    out_of_memory:  the servers that cannot open shards, and until when
    heartbeats:     the heartbeats of the members' processes
    """

    def __init__(self, world: World, plan: Plan, works: Mapping[str, Workload]) -> None:
        self.servers: dict[NodeId, ServerMachine] = {}
        self.guests: dict[NodeId, None] = {}
        self.lost: dict[NodeId, None] = {}
        self.refused: set[NodeId] = set()  # refused before the first view, with no incarnation
        self.out_of_memory: dict[NodeId, float] = {}
        self.heartbeats = ProcessHeartbeats(world)
        self._world = world
        self._plan = plan
        self._works = works
        self._guests_due = plan.guests  # guests to be started or restarted
        self._workers_started = self._servers_started = 0
        self._options = SchedulerOptions(
            servers=plan.servers,
            workers=plan.workers,
            join_timeout_s=20.0,
            failure_timeout_s=SILENCE_S,
            silence_most_s=12.0,
            broken_s=1.8,
            sole_replica_timeout_s=ALONE_S,
            hang_timeout_s=HANG_S,
            elastic=plan.elastic,
            replicas=plan.replicas,
            drain_s=0.5,
            pause_s=0.5,
            slow_share=SLOW_SHARE * world.draws.happens("slow workers are dropped", DROPPING),
            slow_window_s=0.5,
            checkpoint_every_s=plan.checkpoint_every_s,
        )

    def start(self) -> None:
        """Start all members, and guests a little later."""
        self._world.add(SCHEDULER, SchedulerMachine(self._options))
        for _ in range(self._plan.servers):
            self.add_server()
        for _ in range(self._plan.workers):
            self.add_worker()
        at = self._world.draws["guests start"].random() ** 2
        for _ in range(self._plan.guests):
            self._world.at(at, self.add_worker)

    def add_worker(self) -> NodeId | None:
        """Start another worker and return its node; None if the ledger has no keys for it.

        It is a guest if one is due and the first group has all its workers.
        """
        if self.full():
            return None
        node = f"worker-{self._workers_started}"
        self._workers_started += 1
        group, options = "", SESSION
        if self._guests_due and self._workers_started > self._plan.workers:
            self._guests_due -= 1
            self.guests[node] = None
            group, size = GUESTS, self._plan.guests
            options = replace(options, group=group, group_size=size, namespace=group)
        session = Session(node, "worker", "", self._host(), options=options, launch=self._launch)
        machine = WorkerMachine(session, WORKER)
        sim = self._world.add(node, machine, self._works[group].program(node, machine))
        self.heartbeats.begin(sim, session)
        return node

    def add_server(self) -> NodeId | None:
        """Start another server and return its node; None if only workers may still start."""
        if self.full(spare=ROOM_FOR_WORKERS):
            return None
        node = f"server-{self._servers_started}"
        self._servers_started += 1
        session = Session(node, "server", "", self._host(), options=SESSION, launch=self._launch)
        checkpoint_clocks = CheckpointClocks(self._plan.save_every)
        opened = partial(self._open, node)
        self.servers[node] = ServerMachine(
            session,
            opened,
            REPLICATION,
            checkpoint_clocks,
            lambda: "checkpoints",
            RequestOptions(
                unread_bytes=UNREAD_BYTES,
                long_bytes=self._plan.long_bytes,
                key_lists_bytes=KEPT_BYTES,
                borrowed_bytes=0 if self._plan.borrows else inf,
            ),
        )
        self.heartbeats.begin(self._world.add(node, self.servers[node]), session)
        return node

    def _open(self, node: NodeId, spec: TableSpec, rows: KeyRange) -> ShardStore:
        """Open a shard, unless the server is out of memory and the view has the table already."""
        there = self.view is not None and self.view.named(spec.name) is not None
        if there and self._world.now < self.out_of_memory.get(node, 0.0):
            raise InvalidValue(f"{spec.name}{rows} does not fit")
        shard = cast(ShardStore, open_shard(spec, rows))
        return watch(shard, lambda: self._world.at_work)

    def _host(self) -> str:
        """Return the host of the next member, in turn; empty if the plan has no hosts."""
        return f"host-{self._started % self._plan.hosts}" if self._plan.hosts else ""

    @property
    def _launch(self) -> str:
        return str(self._started) if self._plan.proves_death else ""

    @property
    def _started(self) -> int:
        return self._workers_started + self._servers_started

    def full(self, spare: int = 0) -> bool:
        """Return whether no more members may start, with `spare` of them kept back.

        Refused members count for nothing: the ledger has keys for incarnations, and they have none.
        """
        joining = self._started - len(self.refused)
        return joining >= self._plan.incarnations - 4 - spare

    def send_away(self, server: NodeId) -> None:
        """Ask a server to leave."""
        self._world.ask(server, GoAway())

    def repaired(self) -> bool:
        """Return whether all shards have as many in-sync replicas as they should."""
        view = self.view
        living = [n for n in self.servers if self.lives(n)]
        wanted = min(self._plan.replicas, len(living))
        return (
            view is not None
            and {m.id for m in view.servers} == set(living)
            and all(
                len(placement.in_sync) >= min(wanted, replicas_of(spec, self._plan.replicas))
                for spec, placements in zip(view.tables, view.placements, strict=True)
                for placement in placements
            )
        )

    def whole(self) -> bool:
        """Return whether the cluster is repaired and the first group has all its workers."""
        return self.repaired() and self.manned(stopped=True)

    def manned(self, stopped: bool = False) -> bool:
        """Return whether all workers of the first group run, or have ended if `stopped`."""
        nodes = self._world.nodes.items()
        there = [
            n for n, s in nodes if s.alive and n.startswith("worker") and (stopped or not s.stopped)
        ]
        return len([node for node in there if node not in self.guests]) >= self._plan.workers

    def lives(self, server: NodeId) -> bool:
        """Return whether a server runs and the scheduler has not declared it dead."""
        sim = self._world.nodes[server]
        return sim.alive and not sim.stopped and server not in self.lost

    def heads(self, group: str) -> list[NodeId]:
        """Return the living heads of a group's rows, while all its workers are there."""
        view = self.view
        if view is None or sum(m.group == group for m in view.workers) < self._plan.guests:
            return []
        ranks = {
            placement.head
            for spec, placements in zip(view.tables, view.placements, strict=True)
            for placement in placements
            if spec.group == group
        }
        return [m.id for m in view.servers if m.rank in ranks and self.lives(m.id)]

    def rejoined(self, node: NodeId) -> None:
        """Forget that a node was declared dead, if it is a member again.

        The scheduler's journal may lack a loss, or have a late Join of a node's former self.
        """
        member = self.scheduler.members.by_id.get(node)
        machine = self._world.nodes[node].machine
        assert isinstance(machine, ServerMachine | WorkerMachine)
        if member is not None and member.incarnation == machine.session.incarnation:
            self.lost.pop(node, None)

    def will_crash(self, worker: NodeId) -> None:
        """Record that a worker's pushes may be lost; a guest is to be restarted."""
        machine = self._world.nodes[worker].machine
        assert isinstance(machine, WorkerMachine)
        for work in self._works.values():
            work.ledger.crashed.add(machine.session.incarnation)
        if worker in self.guests:
            del self.guests[worker]
            self._guests_due += 1

    def needed(self) -> bool:
        """Return whether a group may be unable to begin without a replacement."""
        return self._guests_due > 0

    def restart_scheduler(self) -> None:
        """Start another scheduler from the journal of the former one."""
        record = self._world.nodes[SCHEDULER].disk.record
        self._world.add(SCHEDULER, SchedulerMachine(self._options, record))
        for node in self.scheduler.members.by_id:
            self.rejoined(node)

    @property
    def scheduler(self) -> SchedulerMachine:
        machine = self._world.nodes[SCHEDULER].machine
        assert isinstance(machine, SchedulerMachine)
        return machine

    @property
    def view(self) -> View | None:
        """The scheduler's view."""
        return self.scheduler.view

    def phase(self) -> str:
        """Return the cluster's phase, one of `plan.PHASES`."""
        if self.view is None:
            return "joining"
        servers = self.servers.values()
        if any(machine.frozen for machine in servers):
            return "view change"
        if any(machine.requests.wait_queue.pulls for machine in servers):
            return "waiting"
        return "open round" if any(machine.state.rounds for machine in servers) else "quiet"

    def over(self) -> bool:
        """Return whether the run has ended."""
        return self._world.nodes[SCHEDULER].stopped

    def at_work(self) -> bool:
        """Return whether any worker still has to push."""
        return any(
            isinstance(sim.machine, WorkerMachine)
            and not sim.stopped
            and sim.machine.clock < self._plan.clocks
            for sim in self._world.nodes.values()
            if sim.alive
        )
