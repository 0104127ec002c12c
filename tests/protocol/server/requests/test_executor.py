"""What requests do at a server: pulls that wait, rounds, methods that fail."""

import pytest

from shoal.errors import AccessFailed, InvariantBroken
from shoal.protocol.machine import AwaitRoom, HangUp, HasRoom
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.requests import Computing, Nudge, Probe, Reply
from shoal.protocol.server.notes import PullWaits
from shoal.protocol.server.requests.wait_queue import COMPUTING_S
from shoal.protocol.views import FOREVER
from shoal.tables.consistency import bsp, ssp

ALL = Part(0, 0, 4)
PUSH, PULL = (ALL,), (ALL,)


@pytest.fixture
def synchronous(rigs):
    return rigs.ServerRig(rigs.table(bsp()))


# ---------------------------------------------------------------------------- pulls that wait


def test_pulls_wait_for_a_worker_that_has_not_read_its_answers(rigs):
    server = rigs.ServerRig(rigs.table(), unread_bytes=3 * 32)  # of rows: three pulls
    for seq in range(3):
        assert server.ask(0, seq, pulls=PULL) == ["applied"]
    assert server.ask(0, 3, pulls=PULL) == ["applied"]  # the first one beyond
    assert [each for each in server.effects if isinstance(each, AwaitRoom)] == [
        AwaitRoom("worker-0")
    ]
    assert server.ask(0, 4, pulls=PULL) == []
    assert server.ask(0, 5, bytes(32), pushes=PUSH) == ["applied"]
    assert server.ask(1, 0, pulls=PULL) == ["applied"]  # another worker's
    assert "answers are on their way to this worker" in server.machine.waiting()[0][1]
    server.handle(HasRoom("worker-1"))
    assert server.codes("worker-0") == []
    server.handle(HasRoom("worker-0"))
    assert server.codes("worker-0") == ["applied"]
    assert server.ask(0, 6, pulls=PULL) == ["applied"]


def test_a_burst_of_answers_stops_at_the_limit(rigs):
    """Pulls that wait for one clock are all answered when it comes."""
    server = rigs.ServerRig(rigs.table(ssp(0)), unread_bytes=3 * 32)
    server.ask(0, 0, clock=0, advance=1)
    for seq in range(1, 7):
        assert server.ask(0, seq, clock=1, pulls=PULL) == []
    server.ask(1, 0, clock=0, advance=1)
    assert server.codes("worker-0") == ["applied"] * 4
    server.handle(HasRoom("worker-0"))
    assert server.codes("worker-0") == ["applied"] * 2


def test_a_worker_that_leaves_is_hung_up_on(rigs):
    server = rigs.ServerRig(rigs.table(), unread_bytes=16)
    server.ask(0, 0, pulls=PULL)
    server.ask(0, 1, pulls=PULL)
    server.adopt(rigs.view_of(2, workers=[1], tables=server.view.tables))
    assert HangUp("worker-0") in server.effects
    assert not server.machine.requests.wait_queue.full


def test_a_fast_worker_waits_and_is_told_for_whom(rigs):
    server = rigs.ServerRig(rigs.table(ssp(1)))
    assert server.ask(0, 0, clock=0, advance=1, pulls=PULL) == ["applied"]
    assert server.ask(0, 1, clock=1, advance=2, pulls=PULL) == []
    reason = "waits for clock 1 of worker-1 (at 0)"
    assert server.notes(PullWaits) == [PullWaits(worker=11)]
    assert server.machine.waiting()[0][1] == reason
    server.receive("worker-0", Probe((1, 1), 11, 1))
    assert server.sent(Reply)[0].code == "waiting"
    assert server.sent(Reply)[0].reason == reason
    server.ask(1, 0, clock=0, advance=1)
    assert server.codes("worker-0") == ["applied"]
    assert server.machine.waiting() == []


def test_an_urgent_probe_nudges_those_that_are_waited_for(rigs):
    server = rigs.ServerRig(rigs.table(ssp(0)), workers=3)
    server.ask(0, 0, clock=0, advance=1, pulls=PULL)
    server.ask(1, 0, clock=0, advance=1)
    server.receive("worker-0", Probe((1, 1), 11, 0, urgent=True))
    assert [send.to for send in server.sends(Nudge)] == ["worker-2"]


def test_workers_are_told_once_all_that_they_wait_for_compute(rigs):
    server = rigs.ServerRig(rigs.table(ssp(0)), workers=3)
    server.ask(0, 0, clock=0, advance=1, pulls=PULL)
    server.receive("worker-2", Computing(13))
    assert server.sends(Computing) == []  # worker-1 has not said so
    server.receive("worker-1", Computing(99))
    assert server.sends(Computing) == []  # this is another incarnation's
    server.receive("worker-1", Computing(12))
    assert [send.to for send in server.sends(Computing)] == ["worker-0"]
    server.now += COMPUTING_S + 1
    server.receive("worker-2", Computing(13))
    assert server.sends(Computing) == []  # what worker-1 said is too long ago


def test_a_waiting_pull_that_its_worker_has_given_up_is_forgotten(synchronous):
    synchronous.ask(0, 0, clock=0, advance=1, pulls=PULL)
    assert len(synchronous.machine.waiting()) == 1
    synchronous.ask(0, 1, forget_below=1, clock=1, advance=2)
    assert synchronous.machine.waiting() == []
    synchronous.ask(1, 0, clock=0, advance=2)
    assert synchronous.codes("worker-0") == []


def test_a_waiting_pull_that_need_not_wait_is_found_by_check(synchronous):
    synchronous.ask(0, 0, clock=0, advance=1, pulls=PULL)
    synchronous.machine.state.clocks.of("").advance(11, 5)
    synchronous.machine.state.clocks.of("").advance(12, 5)
    with pytest.raises(InvariantBroken, match="waits although every worker has reached"):
        synchronous.machine.check()


# ---------------------------------------------------------------------------- rounds


def test_a_round_is_applied_once_when_it_closes(synchronous, values):
    assert synchronous.ask(1, 0, values, pushes=PUSH, weight=2.0) == ["accepted"]
    assert synchronous.ask(0, 0, values, pushes=PUSH, weight=3.0) == ["accepted"]
    assert synchronous.ask(0, 1, clock=0, advance=1) == ["applied"]
    assert synchronous.rows == [0, 0, 0, 0]
    synchronous.ask(1, 1, clock=0, advance=1)
    assert synchronous.rows == [2, 4, 6, 8]
    assert synchronous.codes("worker-0") == ["applied"]
    assert synchronous.codes("worker-1") == ["applied", "applied"]
    assert synchronous.machine.state.replicas[0].shard.merged == [[3.0, 2.0]]  # in rank order


def test_one_message_may_push_advance_and_pull(synchronous, values):
    everything = {"pushes": PUSH, "advance": 1, "pulls": PULL}
    assert synchronous.ask(0, 0, values, **everything) == []
    assert synchronous.ask(1, 0, values, **everything) == ["applied"]
    answers = synchronous.sends(Reply)
    assert {each.to for each in answers} == {"worker-0", "worker-1"}
    assert all(each.message.payload == 32 for each in answers)
    assert {each.message.round_weight for each in answers} == {2.0}


def test_a_pull_that_comes_with_a_push_waits_for_its_round(synchronous, values):
    assert synchronous.ask(0, 0, values, pushes=PUSH, pulls=PULL) == []
    assert "waits for clock 1" in synchronous.machine.waiting()[0][1]


def test_an_accepted_push_says_whom_it_waits_for(synchronous, values):
    synchronous.ask(0, 0, values, pushes=PUSH)
    synchronous.receive("worker-0", Probe((1, 1), 11, 0))
    reply = synchronous.sent(Reply)[0]
    assert (reply.code, reply.reason) == (
        "accepted",
        "waits for clock 1 of worker-0 (at 0), worker-1 (at 0)",
    )


def test_a_push_for_a_round_that_its_worker_has_left_is_refused(synchronous, values):
    synchronous.ask(0, 0, clock=0, advance=2)
    assert synchronous.ask(0, 1, values, clock=1, pushes=PUSH) == ["round_closed"]
    assert synchronous.sent(Reply)[0].reason == "this worker is at clock 2; round 1 takes no more"
    assert synchronous.ask(0, 2, values, clock=2, pushes=PUSH) == ["accepted"]


def test_workers_that_have_finished_hold_nobody_up(synchronous, values):
    synchronous.ask(1, 0, clock=0, advance=FOREVER)
    synchronous.ask(0, 0, values, pushes=PUSH)
    synchronous.ask(0, 1, clock=0, advance=1)
    assert synchronous.rows == [1, 2, 3, 4]


# ---------------------------------------------------------------------------- methods that fail


def failing(*_arguments):
    raise AccessFailed("apply of access method 'mine' raised ValueError: no")


def test_a_push_whose_method_fails_is_refused_and_the_next_is_taken(server, values, monkeypatch):
    shard = server.machine.state.replicas[0].shard
    with monkeypatch.context() as patched:
        patched.setattr(shard, "apply", failing)
        assert server.ask(0, 0, values, pushes=PUSH, pulls=PULL) == ["refused"]
    assert "raised ValueError" in server.sent(Reply)[0].reason
    assert server.ask(0, 1, values, pushes=PUSH) == ["applied"]
    assert server.rows == [1, 2, 3, 4]


def test_a_round_whose_method_fails_is_refused_to_all_who_pushed(synchronous, values, monkeypatch):
    server = synchronous
    monkeypatch.setattr(server.machine.state.replicas[0].shard, "merge", failing)
    assert server.ask(0, 0, values, pushes=PUSH, advance=1, pulls=PULL) == []
    found = server.ask(1, 0, values, pushes=PUSH, advance=1)
    assert sorted(found) == ["refused"]
    codes = [(s.to, s.message.code) for s in server.sends(Reply)]
    assert codes == [("worker-0", "refused"), ("worker-1", "refused")]
    assert server.rows == [0, 0, 0, 0]
    assert not server.machine.waiting()
