"""RoundTrip: a slow server is not sent everything twice, and a fast one is not waited for long."""

import pytest

from shoal.protocol.server.chains.round_trip import RoundTrip

LEAST_S, MOST_S = 0.5, 4.0


@pytest.fixture
def round_trip():
    return RoundTrip(LEAST_S, MOST_S)


def test_a_fast_server_is_waited_for_the_least_time(round_trip):
    for _ in range(20):
        round_trip.took(0.001)
    assert round_trip.timeout_s == LEAST_S


def test_the_time_out_grows_beyond_what_acknowledgements_take(round_trip):
    for _ in range(20):
        round_trip.took(0.9)
        assert 0.9 < round_trip.timeout_s <= MOST_S
    for _ in range(60):
        round_trip.took(0.001)
    assert round_trip.timeout_s == LEAST_S


def test_after_a_time_out_it_doubles_up_to_the_most(round_trip):
    waits = []
    for _ in range(5):
        round_trip.timed_out()
        waits.append(round_trip.timeout_s)
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_one_measured_message_ends_the_doubling(round_trip):
    round_trip.timed_out()
    round_trip.timed_out()
    round_trip.took(0.001)
    assert round_trip.timeout_s == LEAST_S
