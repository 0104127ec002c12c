"""The workload of all-reduce: workers sum tensors around a ring, without servers."""

from __future__ import annotations

from functools import partial
from random import Random

import numpy as np

from shoal.collective.worker import CollectiveWorker
from shoal.protocol.messages import SCHEDULER
from shoal.protocol.requests import AwaitView, EnterBarrier, FinishWork, Reduce
from shoal.protocol.scheduler.journal import SchedulerOptions
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId
from shoal.simulation.checkers.history import violated
from shoal.simulation.network import NetworkOptions
from shoal.simulation.node import Program, Sleep
from shoal.simulation.plan import SESSION
from shoal.simulation.world import World

SUMS = 12
PIECE_BYTES, GATHERED_BYTES = 256, 60  # small: several pieces, and both algorithms
LIMIT_S = 200.0
BREAKS = 6
KILLED = 0.25  # share of the seeds in which a worker crashes
SIZES = (1, 3, 40, 200, 700)  # elements


class RingScenario:
    """Workers around a ring, their tensors, and the faults between them."""

    def __init__(self, seed: int, keep_lines: bool = False) -> None:
        random = Random(seed * 7919 + 3)
        self.workers = random.randint(2, 5)
        self.sizes = [random.choice(SIZES) for _ in range(SUMS)]
        self.summed: dict[tuple[int, NodeId], np.ndarray] = {}
        self.failed: dict[NodeId, str] = {}
        self._given_back: list[np.ndarray] = []
        options = NetworkOptions(
            loss=random.choice([0.0, 0.03, 0.1]),
            duplicate=random.choice([0.0, 0.05, 0.1]),
            reorder=random.choice([0.0, 0.3]),
            stall=random.choice([0.0, 0.05]),
            jitter_s=random.choice([0.0005, 0.01]),
            link_bytes=1 << 20,
        )
        self.world = world = World(seed, options, keep_lines)
        scheduled = SchedulerOptions(servers=0, workers=self.workers, silence_s=6.0, broken_s=4.0)
        world.add(SCHEDULER, SchedulerMachine(scheduled))
        for index in range(self.workers):
            node = f"worker-{index}"
            session = Session(node, "worker", rank=index, options=SESSION)
            session.announce(f"sim://{node}")
            machine = CollectiveWorker(session, None, PIECE_BYTES, GATHERED_BYTES)
            world.add(node, machine, self._program(node, machine, Random(seed * 31 + index)))
        self.victim = ""
        if random.random() < KILLED:
            self.victim = f"worker-{random.randrange(self.workers)}"
            world.at(0.5 + 2 * random.random(), lambda: world.crash(self.victim))
        for _ in range(BREAKS):
            ends = [f"worker-{index}" for index in random.sample(range(self.workers), 2)]
            world.at(0.2 + 3 * random.random(), partial(world.break_connection, *ends))

    def values(self, worker: int, number: int) -> np.ndarray:
        """Return a worker's tensor: whole numbers, so that a sum is exact in any order."""
        start = 1 + worker * 1000 + number
        return np.arange(start, start + self.sizes[number], dtype=np.float32)

    def _program(self, node: NodeId, machine: CollectiveWorker, random: Random) -> Program:
        outcome = yield AwaitView()
        if outcome.error is not None:
            return
        rank = machine.session.rank
        for number, size in enumerate(self.sizes):
            yield Sleep(random.choice([0.0, 0.0, 0.02, 0.4]) * random.random())
            tensor = self.values(rank, number)
            outcome = yield Reduce(tensor.view(np.uint8).data, _add, _halve)
            if outcome.error is None:
                self.summed[number, node] = tensor.copy()
            tensor.fill(-size)  # belongs to the caller again
            self._given_back.append(tensor)
            if outcome.error is not None:
                self.failed[node] = outcome.error.message
                return
        yield EnterBarrier("end")
        yield FinishWork()

    def run(self) -> None:
        """Run to the end, and check it."""
        self.world.run(until=LIMIT_S, most_events=60_000)
        self.check_end()

    def check_end(self) -> None:
        """Check that every sum is exact, no worker still waits, and failures name a reason."""
        for (number, node), found in self.summed.items():
            each = [self.values(worker, number) for worker in range(self.workers)]
            expected = np.sum(each, axis=0) / 2
            if not np.array_equal(found, expected):
                shown = f"{found[:5]}, not {expected[:5]}"
                raise violated("sum", f"{node} has for sum {number} {shown}")
        for tensor in self._given_back:
            if np.any(tensor != -len(tensor)):
                raise violated("late", f"{tensor[:5]} landed in a tensor that was given back")
        if self.victim:
            for node, message in self.failed.items():
                if not message:
                    raise violated("named death", f"{node} failed without a reason")
        elif self.failed:
            raise violated("orderly", f"sums failed: {self.failed}")
        for node, sim in self.world.nodes.items():
            if sim.alive and not sim.stopped:
                waits = sim.machine.waiting() if isinstance(sim.machine, CollectiveWorker) else ""
                raise violated("stuck", f"{node} did not end; {waits}")


def _add(into: memoryview, other: memoryview) -> None:
    target = np.frombuffer(into, np.float32)
    target += np.frombuffer(other, np.float32)


def _halve(into: memoryview, workers: int) -> None:
    del workers
    np.frombuffer(into, np.float32)[:] /= 2
