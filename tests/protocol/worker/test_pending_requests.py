"""What a caller waits for, and what comes after what."""

from math import inf

from shoal.errors import Refused
from shoal.protocol.messages import Reply
from shoal.protocol.worker.pending_requests import PendingRequests


def reply(clock_min, round_weight=-1.0):
    return Reply(1, 0, (1, 1), "applied", "", clock_min, round_weight)


def test_a_request_waits_for_the_open_ones_of_its_after():
    requests = PendingRequests()
    requests.open(1, 0.0, 10.0, True, ())
    assert requests.open(2, 0.0, 10.0, True, (1, 99)).after == [1]
    _, followers = requests.close(1)
    assert followers == [2]
    assert requests.get(2).after == []
    assert list(requests) == [2]


def test_a_closed_follower_is_not_released():
    requests = PendingRequests()
    requests.open(1, 0.0, 10.0, True, ())
    requests.open(2, 0.0, 10.0, True, (1,))
    requests.close(2)
    assert requests.close(1)[1] == []


def test_expired_lists_requests_past_their_timeout():
    requests = PendingRequests()
    requests.open(1, 0.0, 10.0, True, ())
    requests.open(2, 0.0, 5.0, True, ())
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
    pending = PendingRequests().open(1, 0.0, 10.0, True, ())
    assert pending.outcome(None, 3).clock_min == -1
    pending.heard(reply(5, 2.0))
    pending.heard(reply(3))
    assert (pending.outcome(None, 3).clock_min, pending.outcome(None, 3).round_weight) == (3, 2.0)
    error = Refused("no")
    assert pending.outcome(error, 3).error is error
