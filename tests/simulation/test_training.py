"""Simulated training takes the time that it is told, and says what went wrong."""

import pytest

from shoal.errors import Refused, RoundClosed
from shoal.protocol.machine import Outcome
from shoal.simulation.network import NetworkOptions
from shoal.simulation.training import raising
from shoal.tables.spec import Access
from tests.strategies.problems import around, train


def test_a_step_takes_the_slowest_workers_time():
    workers = train("sync", around(3, 10), batch_s=[0.01, 0.02, 0.5])
    for worker in workers:
        assert 5.0 < worker.times[9] < 5.2


def test_a_slow_network_takes_its_time():
    """10 kB/s: the 24 bytes of a push and the rows that come back, and messages around them."""
    slow = NetworkOptions(bandwidth=1e4, jitter_s=0.0)
    fast = train("sync", around(2, 10), batch_s=0.0)[0].times[9]
    assert train("sync", around(2, 10), batch_s=0.0, network=slow)[0].times[9] > 1.3 * fast


def test_batches_may_take_different_times():
    workers = train("asgd", around(1, 10), batch_s=lambda batch: 1.0 if batch == 4 else 0.01)
    assert 1.0 < workers[0].times[4] - workers[0].times[3] < 1.1
    assert workers[0].times[9] < 1.3


def test_an_error_of_a_worker_is_raised():
    with pytest.raises(Refused, match="unknown access method 'not_there'"):
        train("sync", around(2, 2), access=Access("not_there"))


def test_errors_of_requests_are_raised_in_a_program():
    found = []

    def program():
        try:
            yield "push"
        except RoundClosed as late:
            found.append(late.message)
        found.append((yield "pull").clock_min)
        return "done"

    running = raising(program())
    assert next(running) == "push"
    assert running.send(Outcome(error=RoundClosed("too late"))) == "pull"
    with pytest.raises(StopIteration) as stop:
        running.send(Outcome(clock_min=7))
    assert (stop.value.value, found) == ("done", ["too late", 7])
