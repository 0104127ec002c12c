"""The training loop: one generator for every strategy, on clusters and in simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from shoal.errors import InvalidValue
from shoal.protocol.messages.membership import Leased
from shoal.protocol.requests import DeclareTable, TakeLease
from shoal.strategies.base import Model, Program, StepResult, Strategy


class Hooks(Protocol):
    """Callbacks of the training loop: after each step, exchange without a batch, and epoch."""

    def exchanged(self) -> None: ...
    def stepped(self, epoch: int, step: int, result: StepResult) -> None: ...
    def epoch_done(self, epoch: int, step: int) -> None: ...


class Batches(Protocol):
    """One worker's data: the batches of an epoch, in order."""

    def epoch(self, epoch: int) -> Iterator[Any]: ...


class LeasedBatches(Protocol):
    """The data of all workers: `len` batches per epoch, of which a worker leases some."""

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
    start_clock: int = 0,
    rounds: int = 0,
    before: int | None = None,
) -> Program:
    """Train a worker on its own batches.

    If workers are in step, a worker whose data end first continues with weight 0 until a round has
    no weight at all, so that uneven splits neither block nor bias a round. Otherwise each worker
    continues with its next epoch, and reads the final parameters after all have finished.

    Args:
        strategy: the strategy, which defines the exchanges of a step.
        model: the worker's model.
        batches: the worker's batches.
        epochs: the number of passes over the data.
        rank: the worker's rank; rank 0 provides the initial parameters.
        hooks: the callbacks after each step and epoch.
        max_steps: the bound of the number of steps; 0 for no bound.
        clock: the clock at which this worker joins: it pulls the parameters, and skips the batches
            of earlier clocks.
        start_clock: the clock of the checkpoint from which the run was resumed; the batches of
            earlier clocks are skipped as well.
        rounds: the number of batches per epoch of the worker that has most, if workers are in step.
        before: the number of this worker's batches that are done at that checkpoint, if workers are
            not in step. None for the number that follows from `start_clock`.

    Returns:
        A generator of requests, which returns the number of steps, skipped ones included.
    """
    yield from _begin(strategy, model, rank, clock)
    step, enough = 0, False
    skipped = _Skipped(strategy, _over(strategy, clock, start_clock, before), rounds)
    for epoch in range(epochs):
        skipped.begin_epoch(epoch)
        for batch in batches.epoch(epoch):
            if skipped.skips():
                step += 1
            else:
                result = yield from strategy.step(model, batch)
                step += 1
                hooks.stepped(epoch, step, result)
                skipped.come_to(result.clock)
            if enough := 0 < max_steps <= step:
                break
        if not enough and skipped.clocks:
            idle, over = skipped.end_epoch(epoch)
            step += idle
            if over:
                continue
        exchanges = strategy.traits.in_step and strategy.exchanges_after(epoch)
        if exchanges and not enough:
            yield from strategy.flush(model)
            hooks.exchanged()
        while exchanges and strategy.traits.idle_rounds and not enough:
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
    start_clock: int = 0,
) -> Program:
    """Train a worker on the batches that the scheduler leases to it.

    A worker without a lease takes steps without data while others still have batches, because it
    gets the batches of a worker that dies. With asynchronous tables it waits for a lease instead.
    The arguments and the result are those of `train_program`.
    """
    yield from _begin(strategy, model, rank, clock)
    alone = all(spec.consistency.name == "asp" for spec in strategy.tables(model))
    step, epoch = clock + start_clock, -1
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
    period: object = strategy.period(0)
    if not isinstance(period, int) or period < 0:
        raise InvalidValue(
            f"strategy {strategy.name!r} has a period of {period!r}: give a number of batches, or "
            "0 for those of an epoch"
        )
    for spec in strategy.tables(model):
        yield DeclareTable(spec)
    yield from strategy.begin(model, rank, clock)


def _over(strategy: Strategy, clock: int, start_clock: int, before: int | None) -> int:
    """Return the number of clocks to skip, or of batches if workers are not in step."""
    if strategy.traits.in_step:
        return clock + start_clock
    done = strategy.batches_at(start_clock)
    since = strategy.batches_at(clock + start_clock) - done
    return since + (done if before is None else before)


class _Skipped:
    """The batches that a worker skips, because they belong to clocks that are over.

    In an epoch of workers in step each clock has `period` batches of the worker that has most. The
    last clock with batches may have fewer, and the `idle_rounds` clocks after it have none. If
    workers are not in step, each batch counts as a clock.

    clocks: the number of clocks that are still to be skipped
    """

    def __init__(self, strategy: Strategy, clocks: int, rounds: int) -> None:
        self._strategy = strategy
        self._rounds = rounds
        self._clock = 0
        self._own = self._of_clock = 0
        self.clocks = clocks

    def come_to(self, clock: int) -> None:
        """Skip the batches of rounds that have closed without this worker."""
        self.clocks = max(self.clocks, clock - self._clock)

    def begin_epoch(self, epoch: int) -> None:
        """Begin the batches of an epoch."""
        self._own = self._of_clock = 0
        if self._strategy.traits.skips_closed_rounds:  # each batch belongs to a clock
            rounds = -(-self._rounds // self._strategy.period(0))
            self._clock = epoch * (rounds + self._strategy.traits.idle_rounds)

    def skips(self) -> bool:
        """Count the next batch; return whether it is skipped."""
        skips = self.clocks > 0
        self._own += 1
        self._count()
        return skips

    def end_epoch(self, epoch: int) -> tuple[int, bool]:
        """Skip the end of an epoch; return the number of skipped steps, and whether it is over.

        These are steps without a batch of this worker: those of workers that have more batches, and
        those of idle rounds but the first.
        """
        if not self._strategy.traits.in_step:
            return 0, True
        idle = 0
        while self.clocks and self._own < self._rounds:
            self._own, idle = self._own + 1, idle + 1
            self._count()
        if self._strategy.exchanges_after(epoch):
            if self._of_clock and self.clocks:  # the clock of the last few batches
                self._next()
            for number in range(self._strategy.traits.idle_rounds):
                if not self.clocks:
                    return idle, False
                idle += number > 0  # a step, because others had weight in the round before
                self._next()
        return idle, True

    def _count(self) -> None:
        self._of_clock += 1
        strategy = self._strategy
        if not strategy.traits.in_step or self._of_clock == strategy.period(self._clock):
            self._next()

    def _next(self) -> None:
        self.clocks = max(0, self.clocks - 1)
        self._clock, self._of_clock = self._clock + 1, 0
