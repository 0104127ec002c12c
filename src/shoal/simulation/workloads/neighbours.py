"""The workload of neighbours: workers exchange versions of their values with each other.

Every element of a version is the same number, which stands for its worker and the version. So a
checker sees which version came from which worker, and whether it came as a whole.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any, Literal

import numpy as np

from shoal.protocol.machine import Outcome
from shoal.protocol.requests import (
    AwaitView,
    NeighbourExchange,
    Neighbourhood,
    Reduce,
)
from shoal.protocol.views import FOREVER, NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.simulation.draws import Draws
from shoal.simulation.node import Program, Sleep
from shoal.simulation.workloads.peers import PeersScenario, add

NAME = "values"
PHASES = 2
ROUNDS = 8
SIZES = (1, 3, 40, 200, 700)  # elements of float64
Code = tuple[int, int, int]  # rank, phase, round


class NeighboursScenario(PeersScenario):
    """Workers in a graph, the versions of their values, and the faults between them.

    Attributes:
        graph: the graph of the workers.
        ordered: whether each worker takes all versions of its neighbours, in order.
        taken: the number of versions that were taken.
    """

    def __init__(self, seed: int, keep_lines: bool = False) -> None:
        draws = Draws(seed, "neighbours")
        random = draws["versions"]
        workers = random.randint(2, 6)
        self.graph: Literal["complete", "ring"] = random.choice(("complete", "ring"))
        self.ordered = random.random() < 0.5
        self.sizes = random.choice(SIZES), random.choice(SIZES)
        self.rounds = [
            ROUNDS if self.ordered else random.randint(1, 2 * ROUNDS) for _ in range(workers)
        ]
        self.taken = 0
        self._reached: dict[int, tuple[int, int]] = {}  # by rank, what it has sent
        self._last: dict[tuple[int, int], tuple[int, int]] = {}  # by taker and neighbour
        self._ended: dict[int, set[int]] = {}  # by rank, neighbours whose last versions it took
        self._has_all: set[int] = set()  # ranks that have taken the last version of each neighbour
        super().__init__(draws, workers, keep_lines, streams=random.random() < 0.3)

    def program(self, node: NodeId, machine: WorkerMachine, random: Random) -> Program:
        outcome = yield AwaitView()
        if outcome.error is not None:
            return
        rank = machine.session.rank
        for phase in range(PHASES):
            for number in range(1, self.rounds[rank] + 1):
                yield Sleep(random.choice([0.0, 0.0, 0.02, 0.4]) * random.random())
                if not (yield from self._exchange(node, rank, phase, number)):
                    return
            if not self.ordered and not (yield from self._until_all_have_sent(node, rank, phase)):
                return
            together = np.ones(1, np.float32)
            outcome = yield Reduce(together.view(np.uint8).data, add)
            if outcome.error is not None:
                self.failed[node] = outcome.error.message
                return
        yield from self.finish(node)

    def _exchange(self, node: NodeId, rank: int, phase: int, number: int) -> Answered:
        """Send a version, and take the versions of the neighbours."""
        values = [np.full(size, _code(rank, phase, number)) for size in self.sizes]
        clock = FOREVER if number == self.rounds[rank] else number
        self._reached[rank] = phase, number
        outcome = yield NeighbourExchange(
            NAME,
            self.graph,
            tuple(each.view(np.uint8).data for each in values),
            self.ordered,
            "all" if self.ordered else "none",
            phase=phase,
            clocks={rank: clock},
        )
        for each in values:  # they belong to the caller again
            each.fill(-1)
        return self._look(node, rank, phase, outcome)

    def _until_all_have_sent(self, node: NodeId, rank: int, phase: int) -> Answered:
        """Wait for the last version of each neighbour, without sending values."""
        while rank not in self._has_all:
            outcome = yield NeighbourExchange(NAME, self.graph, (), False, "any", phase=phase)
            if not self._look(node, rank, phase, outcome):
                return False
        self._has_all.remove(rank)
        self._ended.pop(rank)
        return True

    def _look(self, node: NodeId, rank: int, phase: int, outcome: Outcome) -> bool:
        """Check the versions that were taken; return False if the exchange has failed."""
        if outcome.error is not None:
            self.failed[node] = outcome.error.message
            return False
        found: Neighbourhood = outcome.value
        if self.ordered and len(found.values) < found.degree:
            raise violated("lead", f"{node} has {len(found.values)} of {found.degree} neighbours'")
        for each in found.values:
            arrays = [np.frombuffer(buffer, np.float64) for buffer in each.buffers]
            codes = np.unique(np.concatenate(arrays))
            if len(codes) != 1 or tuple(map(len, arrays)) != self.sizes:
                raise violated("version", f"{node} took {codes} of worker {each.rank} together")
            of, its_phase, number = _decoded(codes[0])
            version = its_phase, number
            if of != each.rank or (self._reached[of] < version):
                raise violated("version", f"{node} took {(of, *version)} as worker {each.rank}'s")
            if each.clocks[of] != (number if number < self.rounds[of] else FOREVER):
                raise violated("version", f"worker {of} told {node} {each.clocks} in {version}")
            if its_phase != phase:
                raise violated("lead", f"{node} took {version} of worker {of} in phase {phase}")
            before = self._last.get((rank, of), (0, 0))
            if before > version or (before == version and not self.ordered):
                raise violated("lead", f"{node} took {version} of worker {of} after {before}")
            self._last[rank, of] = version
            due = self._reached[rank]
            if self.ordered and version < due:
                raise violated("lead", f"{node} took {version} of worker {of} in {due}")
            if self.ordered and version != due and not self.victim:
                raise violated("lead", f"{node} took {version} of worker {of} in {due}")
            self.taken += 1
        ended = self._ended.setdefault(rank, set())
        ended.update(each.rank for each in found.values if each.clocks[each.rank] == FOREVER)
        if len(ended & {*found.ranks}) == found.degree:
            self._has_all.add(rank)
        return True


Answered = Generator[Any, Any, bool]


def _code(rank: int, phase: int, number: int) -> float:
    return float(1 + (rank * PHASES + phase) * 100 + number)


def _decoded(code: float) -> Code:
    owner, number = divmod(int(code) - 1, 100)
    return *divmod(owner, PHASES), number
