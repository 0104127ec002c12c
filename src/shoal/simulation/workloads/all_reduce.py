"""The workload of collectives: workers sum and gather around a ring, without servers."""

from __future__ import annotations

from random import Random

import numpy as np

from shoal.protocol.requests import AwaitView, Cancel, Gather, Reduce, Start, Wait
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.simulation.draws import Draws
from shoal.simulation.node import Program, Sleep
from shoal.simulation.workloads.peers import PeersScenario, add

SUMS = 12
CANCELS = 0.3  # share of the seeds without a crash, and with workers that end one by one
SIZES = (1, 3, 40, 200, 700)  # elements
GATHERED = 0.3  # share of the collectives that gather


class RingScenario(PeersScenario):
    """Workers around a ring, their tensors, and the faults between them."""

    def __init__(self, seed: int, keep_lines: bool = False) -> None:
        draws = Draws(seed, "ring")
        random = draws["tensors"]
        workers = random.randint(2, 5)
        self.sizes = [random.choice(SIZES) for _ in range(SUMS)]
        gathers = draws["gathers"]
        self.gathers = [gathers.random() < GATHERED for _ in range(SUMS)]
        self.summed: dict[tuple[int, NodeId], np.ndarray] = {}
        self.gathered: dict[tuple[int, NodeId], memoryview] = {}
        self._given_back: list[np.ndarray] = []
        super().__init__(draws, workers, keep_lines)
        cancels = self.parts and not self.victim and draws.happens("cancels", CANCELS)
        self.canceller = f"worker-{draws['canceller'].randrange(workers)}" if cancels else ""

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
            if self.gathers[number]:
                outcome = yield Gather(tensor.view(np.uint8).data)
                self.gathered[number, node] = outcome.value
            else:
                outcome = yield Reduce(tensor.view(np.uint8).data, add, _halve)
            if outcome.error is None and not self.gathers[number]:
                self.summed[number, node] = tensor.copy()
            tensor.fill(-size)  # belongs to the caller again
            self._given_back.append(tensor)
            if outcome.error is not None:
                self.failed[node] = outcome.error.message
                return
        if self.canceller:
            yield from self._two_at_once(node)
        yield from self.finish(node)

    def _two_at_once(self, node: NodeId) -> Program:
        """Begin two sums, of which one worker cancels the first; the second is complete."""
        tickets = []
        for _ in range(2):
            tensor = np.ones(1, np.float32)
            tickets.append((yield Start(Reduce(tensor.view(np.uint8).data, add))))
        if node == self.canceller:
            yield Start(Cancel(tickets[0]))
        outcomes = []
        for ticket in reversed(tickets):
            outcomes.append((yield Wait(ticket)))
        if outcomes[0].error is not None:
            self.failed[node] = outcomes[0].error.message

    def check_end(self) -> None:
        """Check that results are right, no worker still waits, and failures name a reason."""
        self._check_gathered()
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

    def _check_gathered(self) -> None:
        for (number, node), found in self.gathered.items():
            each = [self.values(worker, number) for worker in range(self.workers)]
            if found is not None and bytes(found) != np.concatenate(each).tobytes():
                raise violated("gathered", f"{node} has other bytes in allgather {number}")


def _halve(into: memoryview, workers: int) -> None:
    del workers
    np.frombuffer(into, np.float32)[:] /= 2
