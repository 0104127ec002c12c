"""RoundTrip: a slow server is not sent everything twice, and a fast one is not waited for long."""

import pytest

from shoal.protocol.server.replication.round_trip import RoundTrip

LEAST_S, MOST_S = 0.5, 4.0


@pytest.fixture
def round_trip():
    return RoundTrip(LEAST_S, MOST_S)


def exchange(round_trip, number, took_s, now=0.0):
    round_trip.sent(number, now)
    round_trip.heard(number + 1, now + took_s)


def test_a_fast_server_is_waited_for_the_least_time(round_trip):
    for number in range(20):
        exchange(round_trip, number, 0.001)
    assert round_trip.timeout_s == LEAST_S


def test_the_time_out_grows_beyond_what_acknowledgements_take(round_trip):
    for number in range(20):
        exchange(round_trip, number, 0.9)
        assert 0.9 < round_trip.timeout_s <= MOST_S
    for number in range(20, 80):
        exchange(round_trip, number, 0.001)
    assert round_trip.timeout_s == LEAST_S


def test_after_a_time_out_it_doubles_up_to_the_most(round_trip):
    waits = []
    for _ in range(5):
        round_trip.timed_out()
        waits.append(round_trip.timeout_s)
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_an_acknowledgement_of_a_resent_message_is_not_timed(round_trip):
    round_trip.sent(0, 0.0)
    round_trip.timed_out()
    round_trip.heard(1, 0.501)  # of the first copy or of the second
    assert round_trip.timeout_s == 2 * LEAST_S
    exchange(round_trip, 1, 0.001, now=0.6)
    assert round_trip.timeout_s == LEAST_S


def test_messages_of_another_view_are_not_confused(round_trip):
    round_trip.sent(7, 0.0)
    round_trip.restart()
    exchange(round_trip, 0, 0.001, now=100.0)
    round_trip.heard(8, 200.0)
    assert round_trip.timeout_s == LEAST_S
