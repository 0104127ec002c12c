"""Simulated training: strategies, with real models and data, on a simulated cluster and its clock.

Computing takes the time that a worker is given for a batch, and the network what its options say.
So two strategies can be compared on workers of unlike speed and on slow links, in seconds that do
not depend on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from shoal.errors import InvalidValue, ShoalError
from shoal.protocol.machine import Outcome
from shoal.protocol.messages import SCHEDULER
from shoal.protocol.requests import AwaitView, FinishWork
from shoal.protocol.scheduler.journal import SchedulerOptions
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.worker.machine import WorkerMachine, WorkerOptions
from shoal.simulation.network import NetworkOptions
from shoal.simulation.node import Sleep
from shoal.simulation.world import World
from shoal.strategies import StepResult, Strategy, train_program
from shoal.strategies.base import Model, Program
from shoal.strategies.loop import Batches
from shoal.tables.dense.shard import DenseShard

LIMIT_S = 1e6  # of simulated time
PATIENT = WorkerOptions(sync_timeout_s=LIMIT_S)  # a slow worker is no fault


class SimulatedWorker(msgspec.Struct):
    """A worker of a simulated run.

    Args:
        strategy: its own instance.
        model: its own.
        batches: its data.
        epochs: passes over them.
        batch_s: seconds that it takes for the gradient of a batch: a number, or a function of the
            number of batches so far.

    Attributes:
        results: of its steps.
        times: when each of them ended, in seconds.
        ended_s: when it had its final parameters.
    """

    strategy: Strategy
    model: Model
    batches: Batches
    epochs: int = 1
    batch_s: float | Callable[[int], float] = 0.0
    results: list[StepResult] = msgspec.field(default_factory=list)
    times: list[float] = msgspec.field(default_factory=list)
    ended_s: float = -1.0


def simulate_training(
    workers: Sequence[SimulatedWorker],
    servers: int = 1,
    seed: int = 0,
    network: NetworkOptions | None = None,
    max_steps: int = 0,
) -> World:
    """Train to the end; what came of it is in the workers, and in the world's network.

    Args:
        workers: by rank.
        servers: how many.
        seed: of the network.
        network: its delays and bandwidth.
        max_steps: of each worker; 0 for no limit.

    Raises:
        ShoalError: a worker's error, or a member has ended with one.
    """
    world = World(seed, network)
    world.add(SCHEDULER, SchedulerMachine(SchedulerOptions(servers, len(workers))))
    for rank in range(servers):
        session = Session(f"server-{rank}", "server", rank=rank)
        world.add(session.me, ServerMachine(session, DenseShard))
    failed: list[ShoalError] = []
    rounds = 0
    if any(worker.strategy.repeats for worker in workers):  # only these go by it without a resume
        rounds = max(sum(1 for _ in worker.batches.epoch(0)) for worker in workers)
    for rank, worker in enumerate(workers):
        session = Session(f"worker-{rank}", "worker", rank=rank)
        program = _program(world, worker, rank, max_steps, rounds, failed)
        world.add(session.me, WorkerMachine(session, PATIENT), program)
    world.run(until=LIMIT_S)
    for error in (*failed, *(sim.error for sim in world.nodes.values())):
        if error is not None:
            raise error
    if any(worker.ended_s < 0 for worker in workers):
        raise InvalidValue(f"the simulated run has not ended after {LIMIT_S:g} s")
    return world


def _program(
    world: World,
    worker: SimulatedWorker,
    rank: int,
    max_steps: int,
    rounds: int,
    failed: list[ShoalError],
) -> Program:
    def stepped(epoch: int, step: int, result: StepResult) -> None:
        worker.results.append(result)
        worker.times.append(world.now)

    hooks: Any = _Hooks(stepped)
    yield AwaitView()
    timed: Any = _Timed(worker)
    training = train_program(
        *(timed, worker.model, worker.batches, worker.epochs, rank, hooks, max_steps),
        rounds=rounds,
    )
    try:
        yield from raising(training)
    except ShoalError as error:
        failed.append(error)
        return
    worker.ended_s = world.now
    yield FinishWork()


class _Hooks:
    def __init__(self, stepped: Callable[[int, int, StepResult], None]) -> None:
        self.stepped = stepped

    def exchanged(self) -> None:
        pass

    def epoch_done(self, epoch: int, step: int) -> None:
        pass


class _Timed:
    """A worker's strategy, whose steps take the worker's time."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker
        self._batches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker.strategy, name)

    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        if batch is not None:
            took = self._worker.batch_s
            yield Sleep(took(self._batches) if callable(took) else took)
            self._batches += 1
        return (yield from self._worker.strategy.step(model, batch))


def raising(program: Program) -> Program:
    """A program in which the errors of its requests are raised, as `Client.drive` does."""
    value: Any = None
    error: ShoalError | None = None
    while True:
        try:
            request = program.throw(error) if error is not None else program.send(value)
        except StopIteration as stop:
            return stop.value
        value, error = (yield request), None
        if isinstance(value, Outcome):
            error = value.error
