"""A request that needs another one before it is done."""

from collections import deque

import pytest

from shoal.errors import RequestTimeout, UsageError
from shoal.node.future import Again, Future
from shoal.protocol.machine import Outcome


class Driver:
    def __init__(self):
        self.due = deque()


def test_a_second_request_ends_the_first_whose_outcome_stays():
    finishes = iter([Again("second", lambda: Again("third", lambda: "rows")), None])
    future = Future(Driver(), 1, lambda: next(finishes))
    called = []
    future._callbacks = [called.append]
    assert future.resolve(Outcome(round_weight=3.0)) == "second"
    assert not future.done()
    assert future.resolve(Outcome(round_weight=5.0)) == "third"
    assert future.resolve(Outcome()) is None
    assert future.result() == "rows"
    assert future.outcome == Outcome(round_weight=3.0)
    assert len(future._driver.due) == 1


def test_the_second_request_may_fail():
    future = Future(Driver(), 1, lambda: Again("second", lambda: None))
    future.resolve(Outcome(round_weight=3.0))
    assert future.resolve(Outcome(error=RequestTimeout("late"))) is None
    assert future.outcome.round_weight == 3.0
    with pytest.raises(RequestTimeout, match="late"):
        future.result()


def test_a_failure_when_it_is_finished_ends_it():
    def fails():
        raise UsageError("no")

    future = Future(Driver(), 1, lambda: Again("second", fails))
    future.resolve(Outcome())
    assert future.resolve(Outcome()) is None
    with pytest.raises(UsageError, match="no"):
        future.result()
