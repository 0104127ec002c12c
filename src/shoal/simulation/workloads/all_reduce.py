"""The workload of all-reduce: workers sum tensors around a ring, without servers."""

from __future__ import annotations

from random import Random

import numpy as np

from shoal.protocol.requests import AwaitView, Reduce
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.simulation.node import Program, Sleep
from shoal.simulation.workloads.peers import PeersScenario, add

SUMS = 12
SIZES = (1, 3, 40, 200, 700)  # elements


class RingScenario(PeersScenario):
    """Workers around a ring, their tensors, and the faults between them."""

    def __init__(self, seed: int, keep_lines: bool = False) -> None:
        random = Random(seed * 7919 + 3)
        workers = random.randint(2, 5)
        self.sizes = [random.choice(SIZES) for _ in range(SUMS)]
        self.summed: dict[tuple[int, NodeId], np.ndarray] = {}
        self._given_back: list[np.ndarray] = []
        super().__init__(seed, random, workers, keep_lines)

    def values(self, worker: int, number: int) -> np.ndarray:
        """Return a worker's tensor: whole numbers, so that a sum is exact in any order."""
        start = 1 + worker * 1000 + number
        return np.arange(start, start + self.sizes[number], dtype=np.float32)

    def program(self, node: NodeId, machine: WorkerMachine, random: Random) -> Program:
        outcome = yield AwaitView()
        if outcome.error is not None:
            return
        rank = machine.session.rank
        for number, size in enumerate(self.sizes):
            yield Sleep(random.choice([0.0, 0.0, 0.02, 0.4]) * random.random())
            tensor = self.values(rank, number)
            outcome = yield Reduce(tensor.view(np.uint8).data, add, _halve)
            if outcome.error is None:
                self.summed[number, node] = tensor.copy()
            tensor.fill(-size)  # belongs to the caller again
            self._given_back.append(tensor)
            if outcome.error is not None:
                self.failed[node] = outcome.error.message
                return
        yield from self.finish(node)

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
        super().check_end()


def _halve(into: memoryview, workers: int) -> None:
    del workers
    np.frombuffer(into, np.float32)[:] /= 2
