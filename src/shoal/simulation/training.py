"""Simulated training: strategies, with real models and data, on a simulated cluster and its clock.

Computing takes the time that a worker is given for a batch, and the network what its options say.
So two strategies can be compared on workers of unlike speed and on slow links, in seconds that do
not depend on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from shoal.collective.base import AllGather, AllReduce
from shoal.collective.figures import WorkerFigures
from shoal.collective.tensors import prepared
from shoal.errors import InvalidValue, ShoalError
from shoal.protocol.machine import Event, Outcome
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.requests import AwaitView, DeclareTable, FinishWork, Start, Wait
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId, View
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions
from shoal.protocol.worker.peers.peers import Peers
from shoal.simulation.codec_times import CodecTimes
from shoal.simulation.draws import Draws
from shoal.simulation.network import NetworkOptions
from shoal.simulation.node import Sleep
from shoal.simulation.world import World
from shoal.strategies import StepResult, Strategy, train_program
from shoal.strategies.base import Model, Program
from shoal.strategies.loop import Batches, Hooks
from shoal.tables.dense.shard import DenseShard
from shoal.tables.opening import checked
from shoal.tables.spec import TableSpec

LIMIT_S = 1e6  # of simulated time
STALLED = 1_000_000  # events without a step of any worker
PATIENT = WorkerOptions(sync_timeout_s=LIMIT_S)  # a slow worker is no fault


class SimulatedClient(WorkerFigures):
    """The figures of a worker in a simulated run, as `Client` has them.

    Attributes:
        codecs: the seconds that codecs take; None if they take none.
        computed_s: the seconds that the worker's gradients and codecs have taken.
    """

    def __init__(
        self, world: World, machine: WorkerMachine, codecs: CodecTimes | None = None
    ) -> None:
        self._world = world
        self._machine = machine
        self.codecs = codecs
        self._began_s = 0.0
        self._ended_s: float | None = None
        self.computed_s = 0.0

    def begin(self) -> None:
        """Start the worker's time: the cluster is complete, and training begins."""
        self._began_s = self.now

    def end(self) -> None:
        """Stop the worker's time: it has its final parameters."""
        self._ended_s = self.now

    @property
    def now(self) -> float:
        """The simulated seconds since the run began."""
        return self._world.now if self._ended_s is None else self._ended_s

    @property
    def idle_s(self) -> float:
        """The seconds that this worker has waited for its requests."""
        return self.now - self._began_s - self.computed_s

    @property
    def view(self) -> View:
        """The current view."""
        view = self._machine.session.view
        assert view is not None
        return view

    def table(self, name: str) -> TableSpec:
        """Return the specification of a table."""
        number = self._machine.number_of(name)
        assert number is not None
        return self.view.tables[number]


def _of_codecs(world: World, codecs: CodecTimes) -> Callable[[NodeId, Event], float]:
    """Return the seconds that each node takes for the codecs of an event."""

    def seconds(node: NodeId, event: Event) -> float:
        machine = world.nodes[node].machine
        view = machine.session.view if isinstance(machine, ServerMachine) else None
        return codecs.of_event(event, view.tables) if view is not None else 0.0

    return seconds


class SimulatedWorker(msgspec.Struct):
    """A worker of a simulated run.

    Args:
        strategy: the worker's own instance of the strategy.
        model: the worker's own model.
        batches: the worker's data.
        epochs: the number of passes over the data.
        batch_s: the seconds that the gradient of a batch takes: a number, or a function of the
            number of batches so far.
        watched: a function that makes further hooks of the training loop from the worker's client.

    Attributes:
        results: the results of the steps.
        times: the times at which the steps ended, in seconds.
        ended_s: the time at which the worker had its final parameters; -1 before.
        steps: the number of steps that the training loop has counted.
    """

    strategy: Strategy
    model: Model
    batches: Batches
    epochs: int = 1
    batch_s: float | Callable[[int], float] = 0.0
    watched: Callable[[SimulatedClient], Hooks] | None = None
    results: list[StepResult] = msgspec.field(default_factory=list)
    times: list[float] = msgspec.field(default_factory=list)
    ended_s: float = -1.0
    steps: int = 0


def simulate_training(
    workers: Sequence[SimulatedWorker],
    servers: int = 1,
    seed: int = 0,
    network: NetworkOptions | None = None,
    max_steps: int = 0,
    replicas: int = 1,
    codecs: CodecTimes | None = None,
) -> World:
    """Train to the end; the results are in the workers, and in the network of the returned world.

    Args:
        workers: the workers, by rank.
        servers: the number of servers; none are started if no strategy uses them.
        seed: the seed of the network.
        network: the delays and the bandwidth of the network.
        max_steps: the largest number of steps of each worker; 0 for no limit.
        replicas: the number of servers that have each row.
        codecs: the seconds that codecs take; None if they take none.

    Raises:
        ShoalError: the error of a worker, or of a member that has ended with one; or no worker
            takes a step any more.
    """
    world = World(Draws(seed, "training"), network)
    if not any(worker.strategy.traits.uses_servers for worker in workers):
        servers, replicas = 0, 1
    scheduled = SchedulerOptions(
        servers,
        len(workers),
        failure_timeout_s=LIMIT_S,  # what waits behind a large payload is no failure
        silence_most_s=LIMIT_S,
        sole_replica_timeout_s=LIMIT_S,
        replicas=replicas,
    )
    world.add(SCHEDULER, SchedulerMachine(scheduled))
    for rank in range(servers):
        session = Session(f"server-{rank}", "server", rank=rank)
        world.add(session.me, ServerMachine(session, DenseShard))
    if codecs is not None:
        world.event_s = _of_codecs(world, codecs)
    rounds = 0
    if any(each.strategy.traits.skips_closed_rounds for each in workers):  # for those that resume
        rounds = max(sum(1 for _ in worker.batches.epoch(0)) for worker in workers)
    for rank, worker in enumerate(workers):
        session = Session(f"worker-{rank}", "worker", rank=rank)
        session.announce(f"sim://{session.me}")
        machine = WorkerMachine(session, PATIENT, Peers(session, PATIENT))
        client = SimulatedClient(world, machine, codecs)
        program = worker_program(client, worker, rank, max_steps, rounds)
        world.add(session.me, machine, program)
    progress = -1
    while progress < (taken := sum(len(worker.results) for worker in workers)):
        progress, most = taken, world.events + STALLED
        world.run(LIMIT_S, most)
        if world.events < most:
            break
    for sim in world.nodes.values():
        if sim.error is not None:
            raise sim.error
    if any(worker.ended_s < 0 for worker in workers):
        raise InvalidValue(
            f"the simulated run has not ended after {world.now:g} s: no worker takes a step"
        )
    return world


def worker_program(
    client: SimulatedClient,
    worker: SimulatedWorker,
    rank: int,
    max_steps: int = 0,
    rounds: int = 0,
) -> Program:
    """Run a worker of a simulated run, which ends with the worker's error if it has one."""
    yield AwaitView()
    client.begin()
    hooks = _Recorded(worker, client)
    timed: Any = _Timed(worker, client)
    training = train_program(
        timed,
        timed.model,
        worker.batches,
        worker.epochs,
        rank,
        hooks,
        max_steps,
        rounds=rounds,
    )
    worker.steps = yield from raising(training)
    client.end()
    worker.ended_s = client.now
    yield FinishWork()


class _Recorded:
    """The hooks of a worker's loop, which note the results of its steps, and when they came."""

    def __init__(self, worker: SimulatedWorker, client: SimulatedClient) -> None:
        self._worker = worker
        self._client = client
        self._more = worker.watched(client) if worker.watched else None

    def stepped(self, epoch: int, step: int, result: StepResult) -> None:
        self._worker.results.append(result)
        self._worker.times.append(self._client.now)
        if self._more is not None:
            self._more.stepped(epoch, step, result)

    def exchanged(self) -> None:
        if self._more is not None:
            self._more.exchanged()

    def epoch_done(self, epoch: int, step: int) -> None:
        if self._more is not None:
            self._more.epoch_done(epoch, step)


class _Timed:
    """A worker's strategy, whose gradients take the worker's time.

    model:  the worker's model, which counts its gradients
    """

    def __init__(self, worker: SimulatedWorker, client: SimulatedClient) -> None:
        self._worker = worker
        self._client = client
        self._batches = 0
        self._started: dict[Any, object] = {}  # by ticket
        self.model = _CountedModel(worker.model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker.strategy, name)

    def step(self, model: Any, batch: Any) -> Generator[Any, Any, StepResult]:
        inner = self._worker.strategy.step(model, batch)
        value: Any = None
        error: ShoalError | None = None
        while True:
            try:
                request = inner.throw(error) if error is not None else inner.send(value)
            except StopIteration as stop:
                yield from self._compute()
                result: StepResult = stop.value
                return result
            yield from self._compute()
            codecs, table = self._client.codecs, self._client.table
            if codecs is not None:
                yield from self._take(codecs.before(request, table))
            started, ended = request, request
            if isinstance(request, Wait):
                ended = self._started.pop(request.ticket, None)
            try:
                value, error = (yield request), None
            except ShoalError as failed:
                value, error = None, failed
            if isinstance(started, Start):
                self._started[value] = started.request
            if codecs is not None:
                yield from self._take(codecs.after(ended, table))

    def _compute(self) -> Program:
        """Take the time of the gradients since the last request."""
        while self._batches < self.model.gradients:
            batch_s = self._worker.batch_s
            took = batch_s(self._batches) if callable(batch_s) else batch_s
            self._batches += 1
            yield from self._take(took)

    def _take(self, seconds: float) -> Program:
        if seconds:
            self._client.computed_s += seconds
            yield Sleep(seconds)


class _CountedModel:
    """A model that counts its gradients."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.gradients = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def gradient(self, batch: Any) -> tuple[float, float]:
        self.gradients += 1
        return self._model.gradient(batch)


def raising(program: Program) -> Program:
    """Run a program: check its requests and raise their errors in it, as `Client.drive` does."""
    value: Any = None
    error: ShoalError | None = None
    while True:
        try:
            request = program.throw(error) if error is not None else program.send(value)
        except StopIteration as stop:
            return stop.value
        match request:
            case AllReduce() | AllGather():
                request = prepared(request)
            case DeclareTable(spec) | Start(DeclareTable(spec)):
                checked(spec)
        value, error = (yield request), None
        if isinstance(value, Outcome):
            error = value.error
