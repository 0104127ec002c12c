"""The open rounds of a server."""

from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.rounds import Contribution, Rounds


def push(clock, seq, group=""):
    return Contribution("worker-0", RequestLog(7, 0, group), seq, clock, 1.0, [], clock)


def test_a_push_that_came_with_its_rows_opens_a_round_that_had_closed_here():
    """Seed 1525: the scheduler forgot its worker, who had died, and the push was dropped when the
    rows moved on."""
    rounds = Rounds()
    rounds.reach("", 2)
    assert rounds.first_open("") == 2
    rounds.add(push(0, seq=3))
    rounds.add(push(0, seq=4, group="eval"))
    assert (rounds.first_open(""), rounds.first_open("eval")) == (0, 0)
    rounds.close("", 0)
    assert rounds.first_open("") == 2
