"""Workers without servers, and faults between them: what workloads of collectives share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from random import Random

import numpy as np

from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.requests import EnterBarrier, FinishWork
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions
from shoal.protocol.worker.peers.peers import Peers
from shoal.simulation.checkers.history import violated
from shoal.simulation.draws import Draws
from shoal.simulation.network import NetworkOptions
from shoal.simulation.node import Program
from shoal.simulation.plan import SESSION
from shoal.simulation.world import World

PIECE_BYTES, GATHERED_BYTES = 256, 60  # small: several pieces, and both algorithms
BREAKS = 6
KILLED = 0.25  # share of the seeds in which a worker crashes
PARTS = 0.5  # share of the seeds in which each worker ends by itself, not with the others


class PeersScenario(ABC):
    """A world of workers that run programs, of which one may crash.

    Attributes:
        victim: the worker that crashes, or "".
        parts: whether a worker that has finished ends, and does not wait for the others.
        failed: the reasons why workers have failed, by node.
        limit_s, most_events: the limits of a run, in seconds and in events.
    """

    limit_s = 200.0
    most_events = 60_000

    def __init__(
        self,
        draws: Draws,
        workers: int,
        keep_lines: bool,
        streams: bool = False,
        options: WorkerOptions = WorkerOptions(),  # noqa: B008 - frozen
    ) -> None:
        random, faults = draws["network"], draws["faults"]
        self.workers = workers
        self.failed: dict[NodeId, str] = {}
        network = NetworkOptions(
            loss=random.choice([0.0, 0.03, 0.1]),
            duplicate=random.choice([0.0, 0.05, 0.1]),
            reorder=random.choice([0.0, 0.3]),
            stall=random.choice([0.0, 0.05]),
            jitter_s=random.choice([0.0005, 0.01]),
            link_bytes=1 << 20,
            streams=streams,
        )
        self.world = world = World(draws, network, keep_lines)
        scheduled = SchedulerOptions(
            servers=0, workers=workers, failure_timeout_s=6.0, broken_s=4.0
        )
        world.add(SCHEDULER, SchedulerMachine(scheduled))
        for index in range(workers):
            node = f"worker-{index}"
            session = Session(node, "worker", rank=index, options=SESSION)
            session.announce(f"sim://{node}")
            peers = Peers(session, options, PIECE_BYTES, GATHERED_BYTES)
            machine = WorkerMachine(session, options, peers)
            world.add(node, machine, self.program(node, machine, draws[node]))
        self.parts = draws.happens("workers end one by one", PARTS)
        self.victim = ""
        if faults.random() < KILLED:
            self.victim = f"worker-{faults.randrange(workers)}"
            world.at(0.5 + 2 * faults.random(), lambda: world.crash(self.victim))
        for _ in range(BREAKS):
            ends = [f"worker-{index}" for index in faults.sample(range(workers), 2)]
            world.at(0.2 + 3 * faults.random(), partial(world.break_connection, *ends))

    def finish(self, node: NodeId) -> Program:
        """Finish the work of a worker; its process ends then, or with all others."""
        if not self.parts:
            yield EnterBarrier("end")
        yield FinishWork()
        if self.parts:
            self.world.at(self.world.now, partial(self.world.crash, node))

    @abstractmethod
    def program(self, node: NodeId, machine: WorkerMachine, random: Random) -> Program:
        """Run a worker."""

    def run(self) -> None:
        """Run to the end, and check it."""
        self.world.run(until=self.limit_s, most_events=self.most_events)
        self.check_end()

    def check_end(self) -> None:
        """Check that no worker still waits, and that failures name a reason."""
        if self.victim:
            for node, message in self.failed.items():
                if not message:
                    raise violated("named death", f"{node} failed without a reason")
        elif self.failed:
            raise violated("orderly", f"workers failed: {self.failed}")
        for node, sim in self.world.nodes.items():
            if sim.alive and not sim.stopped:
                waits = sim.machine.waiting() if isinstance(sim.machine, WorkerMachine) else ""
                raise violated("stuck", f"{node} did not end; {waits}")


def add(into: memoryview, other: memoryview) -> None:
    """Add float32 numbers: into += other."""
    target = np.frombuffer(into, np.float32)
    target += np.frombuffer(other, np.float32)
