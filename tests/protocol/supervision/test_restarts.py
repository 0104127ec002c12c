"""When processes that died are started again."""

from shoal.protocol.supervision.restarts import FAILURES, KILLS, PAUSE_S, STARTED_S, Restarts


def test_a_killed_process_is_started_at_once_unless_it_is_killed_too_often():
    restarts = Restarts()
    restarts.began("server-0", 0.0)
    for _ in range(KILLS):
        assert restarts.plan("server-0", True, 1.0)
        assert restarts.due(1.0) == ["server-0"]
    assert not restarts.plan("server-0", True, 1.0)
    assert restarts.plan("server-0", True, 100.0)  # those are long ago


def test_a_process_that_failed_is_started_after_pauses_that_double():
    restarts, now = Restarts(), 0.0
    for number in range(FAILURES):
        restarts.began("scheduler", now)
        assert restarts.plan("scheduler", False, now)
        pause_s = PAUSE_S * 2**number
        assert restarts.due(now + 0.9 * pause_s) == []
        assert restarts.waiting
        now += pause_s
        assert restarts.due(now) == ["scheduler"]
        assert not restarts.waiting
    assert not restarts.plan("scheduler", False, now)
    assert not restarts.started_well("scheduler")


def test_a_process_that_has_lived_for_a_while_has_started_well():
    restarts = Restarts()
    restarts.began("server-1", 0.0)
    restarts.plan("server-1", False, STARTED_S)
    restarts.began("server-1", STARTED_S + 1)
    restarts.plan("server-1", False, STARTED_S + 2)
    assert restarts.started_well("server-1")
