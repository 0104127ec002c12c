"""The training loop of a resumed run leaves out what is done."""

import pytest

from shoal.strategies.base import StepResult, Strategy, StrategyOptions
from shoal.strategies.loop import train_program


class Counting(Strategy):
    """Counts clocks as strategies in step do, for all workers of a run at once."""

    name = "counting"
    in_step = True

    def __init__(self, periods, longest, last_epochs=None):
        super().__init__(StrategyOptions())
        self.periods, self.longest, self.last_epochs = periods, longest, last_epochs
        self.clock, self.taken, self.of_clock, self.batch = 0, [], 0, 0
        self.left = longest

    def tables(self, model):
        return []

    def begin(self, model, rank, clock=0):
        yield from ()

    def period(self, clock):
        return self.periods(clock)

    def exchanges_after(self, epoch):
        return self.last_epochs is None or epoch in self.last_epochs

    def step(self, model, batch):
        yield from ()
        if batch is not None:
            self.taken.append((self.clock, batch))
            self.of_clock += 1
            self.left -= 1
            if self.of_clock == self.period(self.clock):
                self._next()
            return StepResult(0.0, 1.0)
        some = min(self.left, self.period(self.clock) or self.left)  # of the longest worker
        self.left -= some
        self._next()
        return StepResult(0.0, 0.0, float(some))

    def flush(self, model):
        yield from ()
        if self.of_clock:
            period = self.period(self.clock)  # 0: all that the longest worker has
            self.left -= min(self.left, period - self.of_clock) if period else self.left
            self._next()

    def _next(self):
        self.clock, self.of_clock = self.clock + 1, 0


class Numbered:
    def __init__(self, strategy, own):
        self.strategy, self.own = strategy, own

    def epoch(self, epoch):
        self.strategy.left = self.strategy.longest
        return iter([(epoch, batch) for batch in range(self.own)])


class Quiet:
    def exchanged(self): ...
    def stepped(self, *_): ...
    def epoch_done(self, *_): ...


def run(periods, own, longest, passed=0, last_epochs=None):
    strategy = Counting(periods, longest, last_epochs)
    strategy.clock = passed
    batches = Numbered(strategy, own)
    program = train_program(strategy, None, batches, 3, 0, Quiet(), passed=passed, rounds=longest)
    for _ in program:
        pass
    return strategy


PERIODS = {
    "every step": lambda clock: 1,
    "every four": lambda clock: 4,
    "post-local": lambda clock: 1 if clock < 3 else 4,
    "every epoch": lambda clock: 0,
}


@pytest.mark.parametrize("periods", PERIODS)
@pytest.mark.parametrize(("own", "longest"), [(10, 10), (12, 12), (6, 10), (0, 10)])
def test_a_resumed_run_takes_the_batches_after_its_clock(periods, own, longest):
    whole = run(PERIODS[periods], own, longest)
    for clock in range(1, whole.clock + 1):
        resumed = run(PERIODS[periods], own, longest, passed=clock)
        expected = [batch for at, batch in whole.taken if at >= clock]
        assert [batch for _, batch in resumed.taken] == expected, clock


def test_rounds_of_several_epochs():
    whole = run(PERIODS["every epoch"], 5, 5, last_epochs={1})
    assert len(whole.taken) == 15
    for clock in range(1, whole.clock + 1):
        resumed = run(PERIODS["every epoch"], 5, 5, passed=clock, last_epochs={1})
        assert [b for _, b in resumed.taken] == [b for at, b in whole.taken if at >= clock]
