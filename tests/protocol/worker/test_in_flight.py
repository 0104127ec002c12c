"""What a worker may send, and after what: gates, what is followed, window, credits."""

from shoal.keys import KeyRange
from shoal.protocol.limits import ANSWER_BYTES, IN_FLIGHT
from shoal.protocol.machine import Asked, Discard, Sink, Ticked
from shoal.protocol.messages.requests import Probe, Request
from shoal.protocol.requests import (
    Answer,
    Cancel,
    Exchange,
    PullOp,
    PushOp,
)
from shoal.protocol.worker import in_flight
from shoal.protocol.worker.in_flight import SubRequestPart
from shoal.protocol.worker.server_part import ServerPart
from shoal.tables.consistency import bsp, ssp


def test_an_advance_waits_until_all_servers_have_accepted_the_push(synchronous, push):
    assert len(synchronous.ask(1, Exchange(push, advance=True))) == 2
    synchronous.answer(0, 0, "accepted")
    assert synchronous.sent(Request) == []
    synchronous.answer(1, 0, "accepted")
    assert [each.advance for each in synchronous.sent(Request)] == [1, 1]


def test_push_advance_and_pull_to_one_server_travel_in_one_request(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(bsp()))
    (request,) = worker.ask(1, Exchange(push, advance=True, pulls=pull))
    assert (len(request.pushes), request.advance, len(request.pulls)) == (1, 1, 1)


def test_an_advance_does_not_wait_for_a_push_whose_pull_is_waiting(rigs, push, pull):
    """Its advance once waited for it, and it for its advance."""
    worker = rigs.WorkerRig(rigs.table(ssp(0)), servers=2)
    assert len(worker.ask(1, Exchange(push, pulls=pull))) == 2
    assert worker.ask(2, Exchange(advance=True)) == []
    for server in (0, 1):
        worker.answer(server, 0, "waiting", reason="waits for clock 1 of worker-0 (at 0)")
    assert [each.advance for each in worker.sent(Request)] == [1, 1]


def test_a_push_that_is_given_up_has_copies_even_where_it_was_accepted(rigs, push, values):
    """Seed 750: a replica joined, and the head died: it was sent again, from memory that its caller
    had used for something else."""
    worker = rigs.WorkerRig(rigs.table(bsp()))
    worker.ask(1, Exchange(push))
    worker.answer(0, 0, "accepted")
    worker.handle(Asked(2, Cancel(1)))
    values[:] = bytes(len(values))  # the caller's
    worker.answer(0, 0, "missing")
    [again] = worker.sends(Request)
    assert b"".join(bytes(each) for each in again.buffers) == bytes(rigs.as_bytes(1, 2, 3, 4))


def test_a_pull_follows_the_open_pushes_to_its_table_only(rigs, push, pull):
    other = rigs.table(name="v")
    worker = rigs.WorkerRig(rigs.table(), other)
    worker.ask(1, Exchange(push))
    assert [each.follows for each in worker.ask(2, Exchange(pulls=pull))] == [(0,)]
    elsewhere = PullOp("v", KeyRange(0, 4), rigs.as_bytes(0, 0, 0, 0))
    assert [each.follows for each in worker.ask(3, Exchange(pulls=(elsewhere,)))] == [()]
    worker.answer(0, 0, "applied")
    assert [each.follows for each in worker.ask(4, Exchange(pulls=pull))] == [()]


def test_a_pull_is_not_sent_before_the_push_that_it_follows(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=32)
    worker.ask(1, Exchange(push))
    assert worker.ask(2, Exchange(push)) == []  # no credit
    assert worker.ask(3, Exchange(pulls=pull)) == []
    worker.answer(0, 0, "applied")
    sent = worker.sent(Request)
    assert [(each.seq, each.follows) for each in sent] == [(1, ()), (2, (1,))]


def test_a_request_follows_only_what_its_server_has_not_answered(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(), servers=2)
    worker.ask(1, Exchange(push))
    worker.answer(1, 0, "applied")
    sends = worker.ask(2, Exchange(pulls=pull))
    assert [each.follows for each in sends] == [(0,), ()]


def test_an_advance_to_the_only_server_follows_its_pushes(rigs, push):
    worker = rigs.WorkerRig(rigs.table(bsp()))
    worker.ask(1, Exchange(push))
    (told,) = worker.ask(2, Exchange(advance=True))
    assert (told.advance, told.follows) == (1, (0,))


def test_an_out_of_order_reply_probes_the_request_that_is_missing(worker, push, pull):
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(pulls=pull))
    worker.answer(0, 1, "out_of_order")
    assert [each.seq for each in worker.sent(Probe)] == [0]
    worker.answer(0, 0, "missing")
    assert [each.seq for each in worker.sent(Request)] == [0]
    worker.now = 0.01
    worker.handle(Ticked())
    assert [each.seq for each in worker.sent(Probe)] == [1]
    worker.answer(0, 1, "missing")
    assert [(each.seq, each.follows) for each in worker.sent(Request)] == [(1, (0,))]


def test_a_request_with_after_is_sent_when_the_others_are_answered(worker, push):
    worker.ask(1, Exchange(push))
    assert worker.ask(2, Exchange(push, after=(1,))) == []
    worker.answer(0, 0, "applied")
    assert [each.seq for each in worker.sent(Request)] == [1]
    assert len(worker.ask(3, Exchange(push, after=(1, 99)))) == 1  # done, and unknown


def test_a_request_after_a_failed_one_fails(worker, push):
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(push, after=(1,)))
    worker.ask(3, Exchange(push, after=(2,)))
    worker.answer(0, 0, "refused", reason="no")
    errors = {each: outcome.error for each, outcome in worker.resolved().items()}
    assert set(errors) == {1, 2, 3}
    assert "server-0 refused" in errors[1].message
    assert "comes after failed" in errors[2].message
    assert "comes after failed" in errors[3].message


def test_no_more_requests_are_in_flight_than_the_limit(worker):
    advance = Exchange(advance=True)
    sent = sum(len(worker.ask(each, advance)) for each in range(IN_FLIGHT + 5))
    assert sent == IN_FLIGHT
    worker.answer(0, 0, "applied")
    assert [each.seq for each in worker.sent(Request)] == [IN_FLIGHT]


def test_a_request_without_an_answer_holds_up_others_only_at_the_end_of_the_window(
    worker, monkeypatch
):
    monkeypatch.setattr(in_flight, "WINDOW", IN_FLIGHT + 10)
    advance = Exchange(advance=True)
    worker.ask(0, advance)
    for each in range(1, IN_FLIGHT + 10):
        assert len(worker.ask(each, advance)) == 1
        worker.answer(0, each, "applied")
    assert worker.ask(IN_FLIGHT + 10, advance) == []
    worker.answer(0, 0, "applied")
    assert [each.seq for each in worker.sent(Request)] == [IN_FLIGHT + 10]


def test_no_more_bytes_are_in_flight_than_the_credit(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=64)
    assert [len(worker.ask(each, Exchange(push))) for each in range(4)] == [1, 1, 0, 0]
    worker.answer(0, 1, "applied")
    assert [each.seq for each in worker.sent(Request)] == [2]


def test_credit_returns_when_a_push_is_accepted(rigs, push):
    """It is applied only once this worker has advanced, which follows the push that waits."""
    worker = rigs.WorkerRig(rigs.table(bsp()), credit_bytes=32)
    for each in (1, 2):
        worker.ask(each, Exchange(push))
    assert worker.ask(3, Exchange(advance=True)) == []
    worker.answer(0, 0, "accepted")
    assert [(each.seq, each.advance) for each in worker.sent(Request)] == [(1, -1), (2, 1)]


def test_each_server_has_its_own_credit(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), servers=2, credit_bytes=16)
    assert len(worker.ask(1, Exchange(push))) == 2
    assert worker.ask(2, Exchange(push)) == []
    worker.answer(0, 0, "applied")
    assert worker.sent(Request) == []  # the other one is busy still
    worker.answer(1, 0, "applied")
    assert len(worker.sent(Request)) == 2


def test_a_single_push_may_exceed_the_credit(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=8)
    assert len(worker.ask(1, Exchange(push))) == 1


def test_a_push_does_not_overtake_a_push_of_an_earlier_clock(rigs, push):
    """It may wait there until that clock is over, with the credit that the other needs."""
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=40)
    worker.ask(1, Exchange(push))
    assert worker.ask(2, Exchange(push, advance=True)) == []  # no credit
    small = (PushOp("w", KeyRange(0, 1), rigs.as_bytes(1)),)
    assert worker.ask(3, Exchange(small)) == []  # there would be some
    worker.answer(0, 0, "applied")
    assert [each.seq for each in worker.sent(Request)] == [1, 2]


def test_an_answer_that_does_not_fit_into_memory_is_discarded(monkeypatch):
    part = SubRequestPart(ServerPart("s", (), (), (), [], 0, -1, (Answer(),)))
    assert isinstance(part.receive(16, None), Sink)
    assert isinstance(part.receive(ANSWER_BYTES + 1, None), Discard)

    def none(part, nbytes):
        raise MemoryError

    monkeypatch.setattr(ServerPart, "destination", none)
    assert "no memory for 16 bytes" in part.receive(16, None).reason
