"""The training loop: one generator for every strategy, on clusters and in simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from shoal.protocol.messages import Leased
from shoal.protocol.requests import DeclareTable, TakeLease
from shoal.strategies.base import Model, Program, StepResult, Strategy


class Hooks(Protocol):
    """Callbacks of the training loop."""

    def stepped(self, epoch: int, step: int, result: StepResult) -> None: ...
    def epoch_done(self, epoch: int, step: int) -> None: ...


class Batches(Protocol):
    """One worker's data: the batches of an epoch, in order."""

    def epoch(self, epoch: int) -> Iterator[Any]: ...


class LeasedBatches(Protocol):
    """The data of all workers: `len` batches per epoch, of which a worker is granted some."""

    def __len__(self) -> int: ...
    def leased(self, lease: Leased) -> Iterator[Any]: ...


def train_program(
    strategy: Strategy,
    model: Model,
    batches: Batches,
    epochs: int,
    rank: int,
    hooks: Hooks,
    max_steps: int = 0,
    clock: int = 0,
    passed: int = 0,
    rounds: int = 0,
) -> Program:
    """Train a worker on its own batches.

    With strategies in step a worker whose data end first continues with weight 0 until a round has
    no weight at all, so that uneven splits neither block nor bias a round. With other strategies
    each worker goes on to its next epoch, and reads the final parameters when all have finished.

    Args:
        strategy: what a step exchanges.
        model: the worker's model.
        batches: the worker's batches of an epoch.
        epochs: passes over the data.
        rank: the worker's rank; rank 0 provides the initial parameters.
        hooks: called after each step and epoch.
        max_steps: steps at most; 0 for no limit.
        clock: clock at which this worker joins: it pulls the parameters and skips as many batches.
        passed: clocks of the checkpoint from which the run was resumed, skipped as well.
        rounds: batches of an epoch of the worker that has most, where all are in step.

    Returns:
        A generator of requests, which returns the number of steps.
    """
    yield from _begin(strategy, model, rank, clock)
    step, missed, enough = 0, clock + passed, False
    for epoch in range(epochs):
        own = 0
        for batch in batches.epoch(epoch):
            own += 1
            if missed:
                missed, step = missed - 1, step + 1
            else:
                result = yield from strategy.step(model, batch)
                step += 1
                hooks.stepped(epoch, step, result)
            if enough := 0 < max_steps <= step:
                break
        if missed and not enough:
            if not strategy.in_step:
                continue
            idle = min(missed, max(rounds - own, 0))  # rounds of others' batches
            missed, step = missed - idle, step + idle
            if missed:
                missed -= 1  # the round without any weight at the epoch's end
                continue
        while strategy.in_step and not enough:
            result = yield from strategy.step(model, None)
            if not result.others:
                break
            step += 1
            hooks.stepped(epoch, step, result)
            enough = 0 < max_steps <= step
        hooks.epoch_done(epoch, step)
        if enough:
            break
    yield from strategy.end(model)
    return step


def leased_program(
    strategy: Strategy,
    model: Model,
    batches: LeasedBatches,
    epochs: int,
    rank: int,
    hooks: Hooks,
    max_steps: int = 0,
    clock: int = 0,
    passed: int = 0,
) -> Program:
    """Train a worker on the batches that the scheduler leases to it.

    A worker without a lease takes steps without data while others still have batches, because it
    gets the batches of one that dies. With asynchronous tables it waits for a lease instead.
    Arguments and result are those of `train_program`.
    """
    yield from _begin(strategy, model, rank, clock)
    alone = all(spec.consistency.name == "asp" for spec in strategy.tables(model))
    step, epoch = clock + passed, -1
    while not max_steps or step < max_steps:
        lease = (yield TakeLease(epochs, len(batches), alone)).value
        if lease.over:
            break
        if lease.epoch > epoch and lease.count:
            if epoch >= 0:
                hooks.epoch_done(epoch, step)
            epoch = lease.epoch
        for batch in batches.leased(lease) if lease.count else [None]:
            result = yield from strategy.step(model, batch)
            step += 1
            hooks.stepped(epoch, step, result)
            if step == max_steps:
                break
    if epoch >= 0:
        hooks.epoch_done(epoch, step)
    yield from strategy.end(model)
    return step


def _begin(strategy: Strategy, model: Model, rank: int, clock: int) -> Program:
    for spec in strategy.tables(model):
        yield DeclareTable(spec)
    yield from strategy.begin(model, rank, clock)
