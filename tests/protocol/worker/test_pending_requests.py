"""What a caller waits for, and what comes after what."""

from math import inf

import pytest

from shoal.errors import Refused, RequestTimeout, SyncTimeout
from shoal.protocol.machine import Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Busy
from shoal.protocol.messages.requests import Computing, Probe, Reply
from shoal.protocol.requests import Exchange
from shoal.protocol.worker.pending_requests import PendingRequests
from shoal.tables.consistency import ssp


def reply(clock_min, round_weight=-1.0):
    return Reply(1, 0, (1, 1), "applied", "", clock_min, round_weight)


def test_a_request_waits_for_the_open_ones_of_its_after():
    requests = PendingRequests()
    requests.open(1, 0.0, 10.0, True, (), [])
    assert requests.open(2, 0.0, 10.0, True, (1, 99), []).after == [1]
    _, followers = requests.close(1)
    assert followers == [2]
    assert requests.get(2).after == []
    assert list(requests) == [2]


def test_a_closed_follower_is_not_released():
    requests = PendingRequests()
    requests.open(1, 0.0, 10.0, True, (), [])
    requests.open(2, 0.0, 10.0, True, (1,), [])
    requests.close(2)
    assert requests.close(1)[1] == []


def test_expired_lists_requests_past_their_timeout():
    requests = PendingRequests()
    requests.open(1, 0.0, 10.0, True, (), [])
    requests.open(2, 0.0, 5.0, True, (), [])
    assert requests.wakes_at() == 5
    assert [request_id for request_id, _ in requests.expired(7)] == [2]
    for request_id, _ in requests.expired(11):
        for other in requests:
            if other != request_id:
                requests.close(other)  # one that is closed meanwhile is not named
    assert list(requests) == [1]
    requests.close(1)
    assert requests.wakes_at() == inf


def test_an_outcome_has_the_lowest_clock_of_its_answers():
    pending = PendingRequests().open(1, 0.0, 10.0, True, (), [])
    assert pending.outcome(None, 3, ()).clock_min == -1
    assert not pending.applied(reply(5, 2.0), None)
    assert not pending.applied(reply(3), None)
    outcome = pending.outcome(None, 3, ())
    assert (outcome.clock_min, outcome.round_weight) == (3, 2.0)
    error = Refused("no")
    assert pending.outcome(error, 3, ()).error is error


# ---------------------------------------------------------------------------- time-outs


def expire(worker, at):
    worker.now = at
    worker.handle(Ticked())


def test_a_timed_out_pull_probes_urgently_then_fails_with_the_missing_clock(rigs, pull):
    worker = rigs.WorkerRig(rigs.table(ssp(0)), sync_timeout_s=10)
    worker.ask(1, Exchange(pulls=pull))
    worker.answer(0, 0, "waiting", reason="waits for clock 1 of worker-1 (at 0)")
    expire(worker, 10.0)
    assert [each.urgent for each in worker.sent(Probe)][-1]
    assert worker.resolved() == {}
    worker.answer(0, 0, "waiting", reason="waits for clock 1 of worker-1 (at 0)")
    expire(worker, 20.0)
    error = worker.resolved()[1].error
    assert isinstance(error, SyncTimeout)
    waits = "server-0 waits for clock 1 of worker-1 (at 0)"
    assert error.message.startswith(f"no answer within 20 s: {waits} (`on_timeout` says")
    assert error.trace


def test_a_pull_that_waits_for_a_worker_that_computes_has_its_time_again(rigs, pull):
    worker = rigs.WorkerRig(rigs.table(ssp(0)), sync_timeout_s=10)
    worker.ask(1, Exchange(pulls=pull))
    worker.answer(0, 0, "waiting", reason="waits for clock 1 of worker-1 (at 0)")
    for now in (10.0, 25.0, 40.0):  # each time it has ten seconds, and ten more
        expire(worker, now)
        assert [each.urgent for each in worker.sent(Probe)][-1]
        worker.now = now + 5
        worker.receive("server-0", Computing(12))
        expire(worker, now + 14.9)
        assert worker.resolved() == {}
    expire(worker, 55.0)
    expire(worker, 65.0)
    assert isinstance(worker.resolved()[1].error, SyncTimeout)


@pytest.mark.parametrize("on_timeout", ["wait", "drop"])
def test_a_pull_that_may_wait_is_asked_about_again_and_does_not_fail(rigs, pull, on_timeout):
    worker = rigs.WorkerRig(rigs.table(ssp(0)), sync_timeout_s=10, on_timeout=on_timeout)
    worker.ask(1, Exchange(pulls=pull))
    for now in (10.0, 20.0, 30.0, 40.0):
        expire(worker, now)
        assert [each.urgent for each in worker.sent(Probe)][-1]
        assert worker.resolved() == {}


def test_a_limit_of_the_callers_own_holds_whatever_happens_on_a_timeout(rigs, pull):
    worker = rigs.WorkerRig(rigs.table(ssp(0)), on_timeout="wait")
    worker.ask(1, Exchange(pulls=pull, timeout_s=1.0))
    expire(worker, 1.0)
    expire(worker, 2.0)
    assert isinstance(worker.resolved()[1].error, RequestTimeout)


def test_a_request_has_its_time_again_while_the_scheduler_says_that_a_server_is_busy(rigs, pull):
    worker = rigs.WorkerRig(rigs.table(ssp(0)), sync_timeout_s=10)
    worker.ask(1, Exchange(pulls=pull))
    for now in (10.0, 25.0):
        expire(worker, now)
        worker.now = now + 5
        worker.receive(SCHEDULER, Busy("server-1", "merge (shard.py:9)"))  # of its chain
        expire(worker, now + 14.9)
        assert worker.resolved() == {}
    expire(worker, 40.0)
    expire(worker, 50.0)
    assert isinstance(worker.resolved()[1].error, RequestTimeout)


def test_a_word_of_another_server_gives_a_request_no_more_time(synchronous, pull, rigs):
    synchronous.ask(1, Exchange(pulls=pull[:1], timeout_s=1.0))
    expire(synchronous, 1.0)
    synchronous.receive("server-9", Computing(12))
    expire(synchronous, 2.0)
    assert 1 in synchronous.resolved()
