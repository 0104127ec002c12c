"""The training loop of a resumed run leaves out what is done."""

import pytest

from shoal.strategies import strategies
from shoal.strategies.base import StepResult, Strategy, StrategyOptions, Traits
from shoal.strategies.loop import _over, _Skipped, train_program
from tests.strategies.problems import around, train


class Counting(Strategy):
    """Counts clocks as strategies in step do, for all workers of a run at once."""

    name = "counting"
    traits = Traits(in_step=True)

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


def run(periods, own, longest, start_clock=0, last_epochs=None):
    strategy = Counting(periods, longest, last_epochs)
    strategy.clock = start_clock
    batches = Numbered(strategy, own)
    program = train_program(
        strategy, None, batches, 3, 0, Quiet(), start_clock=start_clock, rounds=longest
    )
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
        resumed = run(PERIODS[periods], own, longest, start_clock=clock)
        expected = [batch for at, batch in whole.taken if at >= clock]
        assert [batch for _, batch in resumed.taken] == expected, clock


def test_rounds_of_several_epochs():
    whole = run(PERIODS["every epoch"], 5, 5, last_epochs={1})
    assert len(whole.taken) == 15
    for clock in range(1, whole.clock + 1):
        resumed = run(PERIODS["every epoch"], 5, 5, start_clock=clock, last_epochs={1})
        assert [b for _, b in resumed.taken] == [b for at, b in whole.taken if at >= clock]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("asgd", {}),
        ("downpour", {"n_push": 4, "n_fetch": 2}),
        ("easgd", {"tau": 4}),
        ("model_averaging", {"tau": 4}),
        ("streaming_diloco", {"tau": 4, "fragments": 2}),
        ("double_buffering", {}),
    ],
)
def test_what_is_left_out_is_what_was_done(monkeypatch, name, settings):
    """At every clock of three epochs of ten batches, by the strategy's own exchanges."""
    done = [0]  # by clock

    class Noting(strategies[name]):
        def _noted(self, program, batches):
            value, result = None, None
            while result is None:
                try:
                    request = program.send(value)
                except StopIteration as stop:
                    result = stop
                    continue
                asked = getattr(request, "request", request)
                if getattr(asked, "advance", False) and not asked.last:
                    done.append(batches())
                value = yield request
            return result.value

        def step(self, model, batch):
            self.batches = getattr(self, "batches", 0) + (batch is not None)
            return (yield from self._noted(super().step(model, batch), lambda: self.batches))

        def flush(self, model):
            return (yield from self._noted(super().flush(model), lambda: self.batches))

    monkeypatch.setitem(strategies._known, "noting", Noting)
    [worker] = train("noting", around(1, 10, spread=1.0), epochs=3, **settings)
    clocks = [clock for clock in range(1, len(done)) if done[clock] < 30]
    assert len(clocks) > 5
    for clock in clocks:
        skipped, out = _Skipped(worker.strategy, _over(worker.strategy, 0, clock, None), 10), 0
        for epoch in range(3):
            skipped.begin_epoch(epoch)
            out += sum([skipped.skips() for _ in range(10)])
            if skipped.clocks:
                skipped.end_epoch(epoch)
        assert out == done[clock], clock


def test_a_worker_that_had_fewer_batches_leaves_out_no_more_than_those():
    strategy = strategies["downpour"](StrategyOptions(settings={"n_push": 4}))
    assert _over(strategy, 0, 3, None) == 12
    assert _over(strategy, 0, 3, 10) == 10
    assert _over(strategy, 2, 3, 10) == 18  # and those since
