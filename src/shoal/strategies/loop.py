"""The training loop, as one generator for every strategy and every shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from shoal.protocol.messages import Leased
from shoal.protocol.requests import DeclareTable, TakeLease
from shoal.strategies.base import Model, Program, StepResult, Strategy


class Hooks(Protocol):
    """What the loop tells its caller."""

    def stepped(self, epoch: int, step: int, result: StepResult) -> None: ...
    def epoch_done(self, epoch: int, step: int) -> None: ...


class Batches(Protocol):
    """One worker's data: the batches of an epoch, in order."""

    def epoch(self, epoch: int) -> Iterator[Any]: ...


class LeasedBatches(Protocol):
    """Everybody's data: so many batches in each epoch, of which a worker does some."""

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
) -> Program:
    """Train; yields exchanges, returns the number of steps taken.

    clock: that this worker begins with: where others have trained before, it takes up their
           parameters, and leaves out the batches of as many steps
    passed: ... and of these, which are over in a run that this one goes on with

    Strategies in step: a worker whose data end first goes on with weight 0 until a round has no
    weight at all, so that uneven splits neither hang nor skew anybody. Others: a worker goes on to
    its next epoch, and when all are done the final parameters are read.
    """
    yield from _begin(strategy, model, rank, clock)
    step, missed = 0, clock + passed
    for epoch in range(epochs):
        for batch in batches.epoch(epoch):
            if missed:
                missed, step = missed - 1, step + 1
                continue
            result = yield from strategy.step(model, batch)
            step += 1
            hooks.stepped(epoch, step, result)
            if step == max_steps:
                break
        if missed:
            missed -= strategy.in_step  # the round in which nobody had any more
            continue
        while strategy.in_step:
            result = yield from strategy.step(model, None)
            if not result.others:
                break
            step += 1
            hooks.stepped(epoch, step, result)
        hooks.epoch_done(epoch, step)
        if max_steps and step >= max_steps:
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
    """Train on whatever batches the scheduler leases; arguments and result as `train_program`'s.

    A worker that has none, while others still do theirs, takes steps without any: it may be needed
    yet, should one of them die. Where nobody waits for anybody it waits instead.
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
