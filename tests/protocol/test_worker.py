"""A worker by hand: fan-out, gates, credits, resends, time-outs, late answers, views."""

import pytest

from shoal.errors import (
    Cancelled,
    InvalidValue,
    Refused,
    RequestTimeout,
    RoundClosed,
    RunAborted,
    SyncTimeout,
)
from shoal.keys import KeyRange
from shoal.protocol.machine import Asked, Discard, PeerLost, Received, Sink, Ticked
from shoal.protocol.messages import (
    FOREVER,
    SCHEDULER,
    Declare,
    End,
    Enter,
    Finish,
    NewView,
    NotDeclared,
    Nudge,
    Probe,
    Released,
    Reply,
    Request,
)
from shoal.protocol.requests import (
    AwaitView,
    Cancel,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
)
from shoal.protocol.session import Session
from shoal.protocol.windows import WINDOW
from shoal.protocol.worker import WorkerMachine
from shoal.tables.spec import bsp, ssp


@pytest.fixture
def worker(rigs):
    """One server, an asynchronous table of four rows."""
    return rigs.WorkerRig(rigs.table())


@pytest.fixture
def synchronous(rigs):
    """Two servers, a table that settles at the close of rounds."""
    return rigs.WorkerRig(rigs.table(bsp()), servers=2)


@pytest.fixture
def push(rigs):
    return (PushOp("w", KeyRange(0, 4), rigs.as_bytes(1, 2, 3, 4)),)


@pytest.fixture
def out(rigs):
    return rigs.as_bytes(0, 0, 0, 0)


@pytest.fixture
def pull(out):
    return (PullOp("w", KeyRange(0, 4), out),)


# ---------------------------------------------------------------------------- the roads


def test_a_push(worker, push):
    (request,) = worker.ask(1, Exchange(push, weight=2.0, lr=0.5))
    assert (request.seq, request.clock, request.weight, request.lr) == (0, 0, 2.0, 0.5)
    worker.answer(0, 0, "applied")
    assert worker.resolved()[1].error is None
    assert list(worker.machine._requests) == []
    assert worker.machine.bytes_pushed == 32


def test_a_pull_lands_in_its_buffer(worker, pull, out, rigs):
    worker.ask(1, Exchange(pulls=pull))
    worker.answer(0, 0, "applied", rigs.as_bytes(5, 6, 7, 8), clock_min=3, round_weight=4.0)
    outcome = worker.resolved()[1]
    assert (outcome.error, outcome.clock_min, outcome.round_weight) == (None, 3, 4.0)
    assert out == rigs.as_bytes(5, 6, 7, 8)
    assert worker.machine.bytes_pulled == 32


def test_an_exchange_resolves_when_every_server_has_answered(synchronous, pull, out, rigs):
    requests = synchronous.ask(1, Exchange(pulls=pull))
    assert [each.pulls[0].start for each in requests] == [0, 2]
    synchronous.answer(1, 0, "applied", rigs.as_bytes(3, 4), clock_min=7)
    assert synchronous.resolved() == {}
    synchronous.answer(0, 0, "applied", rigs.as_bytes(1, 2), clock_min=5)
    assert synchronous.resolved()[1].clock_min == 5
    assert out == rigs.as_bytes(1, 2, 3, 4)


def test_what_is_settled_is_told_with_the_next_request(worker, push):
    for seq in range(3):
        assert worker.ask(seq, Exchange(push))[0].settled_below == seq
        worker.answer(0, seq, "applied")


def test_a_request_without_any_row_asks_nobody(worker, rigs):
    nothing = PullOp("w", KeyRange(2, 2), rigs.as_bytes())
    assert worker.ask(1, Exchange(pulls=(nothing,))) == []
    assert worker.resolved()[1].error is None


def test_an_advance_is_told_to_every_server(synchronous):
    requests = synchronous.ask(1, Exchange(advance=True))
    assert [each.advance for each in requests] == [1, 1]
    assert synchronous.machine.clock == 1
    assert synchronous.ask(2, Exchange(advance=True, last=True))[0].advance == FOREVER


def test_mistakes_resolve_with_their_error_and_change_nothing(worker, push, rigs):
    bad = PullOp("w", KeyRange(0, 9), rigs.as_bytes(0))
    assert worker.ask(1, Exchange(push, advance=True, pulls=(bad,))) == []
    assert isinstance(worker.resolved()[1].error, InvalidValue)
    assert worker.machine.clock == 0
    assert list(worker.machine._requests) == []


def test_there_is_nothing_to_ask_before_the_first_view(rigs, push):
    rig = rigs.Rig(WorkerMachine(Session("worker-0", "worker")))
    rig.handle(Asked(1, Exchange(push)))
    assert "in no view yet" in rig.resolved()[1].error.message


# ---------------------------------------------------------------------------- order


def test_an_advance_waits_until_all_servers_hold_the_push(synchronous, push):
    assert len(synchronous.ask(1, Exchange(push, advance=True))) == 2
    synchronous.answer(0, 0, "accepted")
    assert synchronous.sent(Request) == []
    synchronous.answer(1, 0, "accepted")
    assert [each.advance for each in synchronous.sent(Request)] == [1, 1]


def test_with_one_server_everything_rides_in_one_message(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(bsp()))
    (request,) = worker.ask(1, Exchange(push, advance=True, pulls=pull))
    assert (len(request.pushes), request.advance, len(request.pulls)) == (1, 1, 1)


def test_a_push_whose_pull_is_parked_has_been_taken(rigs, push, pull):
    """Its advance once waited for it, and it for its advance."""
    worker = rigs.WorkerRig(rigs.table(ssp(0)), servers=2)
    assert len(worker.ask(1, Exchange(push, pulls=pull))) == 2
    assert worker.ask(2, Exchange(advance=True)) == []
    for server in (0, 1):
        worker.answer(server, 0, "parked", reason="waits for clock 1 of worker-0 (at 0)")
    assert [each.advance for each in worker.sent(Request)] == [1, 1]


def test_a_pull_follows_the_pushes_to_its_table_and_no_others(rigs, push, pull):
    other = rigs.table(name="v")
    worker = rigs.WorkerRig(rigs.table(), other)
    worker.ask(1, Exchange(push))
    assert [each.follows for each in worker.ask(2, Exchange(pulls=pull))] == [(0,)]
    elsewhere = PullOp("v", KeyRange(0, 4), rigs.as_bytes(0, 0, 0, 0))
    assert [each.follows for each in worker.ask(3, Exchange(pulls=(elsewhere,)))] == [()]
    worker.answer(0, 0, "applied")
    assert [each.follows for each in worker.ask(4, Exchange(pulls=pull))] == [()]


def test_a_pull_does_not_leave_before_what_it_follows(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=32)
    worker.ask(1, Exchange(push))
    assert worker.ask(2, Exchange(push)) == []  # no credit
    assert worker.ask(3, Exchange(pulls=pull)) == []
    worker.answer(0, 0, "applied")
    sent = worker.sent(Request)
    assert [(each.seq, each.follows) for each in sent] == [(1, ()), (2, (1,))]


def test_each_server_is_told_what_it_may_not_have_yet(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(), servers=2)
    worker.ask(1, Exchange(push))
    worker.answer(1, 0, "applied")
    sends = worker.ask(2, Exchange(pulls=pull))
    assert [each.follows for each in sends] == [(0,), ()]


def test_an_advance_follows_its_pushes_to_the_only_server(rigs, push):
    worker = rigs.WorkerRig(rigs.table(bsp()))
    worker.ask(1, Exchange(push))
    (told,) = worker.ask(2, Exchange(advance=True))
    assert (told.advance, told.follows) == (1, (0,))


def test_a_server_that_lacks_what_a_request_follows_is_asked_about_that(worker, push, pull):
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(pulls=pull))
    worker.answer(0, 1, "early")
    assert [each.seq for each in worker.sent(Probe)] == [0]
    worker.answer(0, 0, "missing")
    assert [each.seq for each in worker.sent(Request)] == [0]
    worker.now = 0.01
    worker.handle(Ticked())
    assert [each.seq for each in worker.sent(Probe)] == [1]
    worker.answer(0, 1, "missing")
    assert [(each.seq, each.follows) for each in worker.sent(Request)] == [(1, (0,))]


def test_a_request_may_come_after_others(worker, push):
    worker.ask(1, Exchange(push))
    assert worker.ask(2, Exchange(push, after=(1,))) == []
    worker.answer(0, 0, "applied")
    assert [each.seq for each in worker.sent(Request)] == [1]
    assert len(worker.ask(3, Exchange(push, after=(1, 99)))) == 1  # done, and unknown


def test_what_comes_after_a_failure_fails(worker, push):
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(push, after=(1,)))
    worker.ask(3, Exchange(push, after=(2,)))
    worker.answer(0, 0, "refused", reason="no")
    errors = {each: outcome.error for each, outcome in worker.resolved().items()}
    assert set(errors) == {1, 2, 3}
    assert "server-0 refused" in errors[1].message
    assert "comes after failed" in errors[2].message
    assert "comes after failed" in errors[3].message


def test_no_more_is_in_flight_than_the_window(worker):
    advance = Exchange(advance=True)
    sent = sum(len(worker.ask(each, advance)) for each in range(WINDOW + 5))
    assert sent == WINDOW
    worker.answer(0, 0, "applied")
    assert [each.seq for each in worker.sent(Request)] == [WINDOW]


def test_no_more_bytes_are_under_way_than_the_credits(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=64)
    assert [len(worker.ask(each, Exchange(push))) for each in range(4)] == [1, 1, 0, 0]
    worker.answer(0, 1, "applied")
    assert [each.seq for each in worker.sent(Request)] == [2]


def test_credit_is_given_back_when_a_push_is_accepted(rigs, push):
    """It is applied only once this worker has advanced, which follows the push that waits."""
    worker = rigs.WorkerRig(rigs.table(bsp()), credit_bytes=32)
    for each in (1, 2):
        worker.ask(each, Exchange(push))
    assert worker.ask(3, Exchange(advance=True)) == []
    worker.answer(0, 0, "accepted")
    assert [(each.seq, each.advance) for each in worker.sent(Request)] == [(1, -1), (2, 1)]


def test_each_server_gives_its_own_credit(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), servers=2, credit_bytes=16)
    assert len(worker.ask(1, Exchange(push))) == 2
    assert worker.ask(2, Exchange(push)) == []
    worker.answer(0, 0, "applied")
    assert worker.sent(Request) == []  # the other one is busy still
    worker.answer(1, 0, "applied")
    assert len(worker.sent(Request)) == 2


def test_one_push_may_exceed_the_credits_alone(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=8)
    assert len(worker.ask(1, Exchange(push))) == 1


# ---------------------------------------------------------------------------- resends


def test_an_unanswered_request_is_asked_about_and_ever_less_often(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), probe_s=0.5, probe_max_s=2.0, sync_timeout_s=99)
    worker.ask(1, Exchange(push))
    times = []
    while len(times) < 5:
        worker.now = max(worker.machine._asking.wakes_at, worker.now)
        worker.handle(Ticked())
        if worker.sent(Probe):
            assert worker.sent(Request) == []  # the payload is not sent again
            times.append(worker.now)
    assert times == [0.5, 1.5, 3.5, 5.5, 7.5]


def test_a_lost_request_is_sent_again_under_its_id(worker, push):
    (first,) = worker.ask(1, Exchange(push))
    worker.answer(0, 0, "missing")
    assert worker.sent(Request) == [first]
    assert b"".join(worker.sends(Request)[0].buffers) == push[0].values


def test_lost_rows_are_asked_for_again_without_the_push(worker, push, rigs):
    keyed = PullOp("w", KeyRange(0, 4), rigs.as_bytes(0), rigs.ints(2))
    worker.ask(1, Exchange(push, pulls=(keyed,)))
    worker.answer(0, 0, "applied")
    (again,) = worker.sends(Request)
    assert again.message.pushes == ()
    assert b"".join(again.buffers) == rigs.as_bytes(2)
    worker.answer(0, 0, "applied", rigs.as_bytes(3))
    assert worker.resolved()[1].error is None


def test_a_server_with_an_older_view_is_asked_again_soon(worker, push):
    worker.ask(1, Exchange(push))
    worker.answer(0, 0, "stale", view=(1, 0))
    worker.now = 0.01
    worker.handle(Ticked())
    assert len(worker.sent(Probe)) == 1


def test_a_broken_connection_is_asked_about_soon(worker, push):
    worker.ask(1, Exchange(push))
    worker.handle(PeerLost("server-0"))
    worker.now = 0.01
    worker.handle(Ticked())
    assert len(worker.sent(Probe)) == 1


def test_a_nudge_makes_a_worker_ask_about_everything(synchronous, push):
    synchronous.ask(1, Exchange(push))
    synchronous.answer(0, 0, "accepted")
    synchronous.receive("server-1", Nudge("waits for clock 1 of worker-0 (at 0)"))
    assert [send.to for send in synchronous.sends(Probe)] == ["server-0", "server-1"]


def test_resends_and_probes_carry_the_new_view(worker, push, rigs):
    worker.ask(1, Exchange(push))
    worker.receive(SCHEDULER, NewView(rigs.view_of(2, tables=worker.view.tables)))
    assert [each.view for each in worker.sent(Probe)] == [(1, 2)]
    worker.answer(0, 0, "missing", view=(1, 2))
    assert [each.view for each in worker.sent(Request)] == [(1, 2)]


# ---------------------------------------------------------------------------- time-outs


def expire(worker, at):
    worker.now = at
    worker.handle(Ticked())


def test_the_first_expiry_asks_urgently_and_the_second_names_the_missing(rigs, pull):
    worker = rigs.WorkerRig(rigs.table(ssp(0)), sync_timeout_s=10)
    worker.ask(1, Exchange(pulls=pull))
    worker.answer(0, 0, "parked", reason="waits for clock 1 of worker-1 (at 0)")
    expire(worker, 10.0)
    assert [each.urgent for each in worker.sent(Probe)][-1]
    assert worker.resolved() == {}
    worker.answer(0, 0, "parked", reason="waits for clock 1 of worker-1 (at 0)")
    expire(worker, 20.0)
    error = worker.resolved()[1].error
    assert isinstance(error, SyncTimeout)
    assert error.message == ("no answer within 20 s: server-0 waits for clock 1 of worker-1 (at 0)")
    assert error.story


def test_a_server_that_says_nothing_is_named(synchronous, pull, rigs):
    synchronous.ask(1, Exchange(pulls=pull, timeout_s=1.0))
    synchronous.answer(0, 0, "applied", rigs.as_bytes(1, 2))
    expire(synchronous, 1.0)
    expire(synchronous, 2.0)
    error = synchronous.resolved()[1].error
    assert type(error) is RequestTimeout
    assert error.message == "no answer within 2 s: server-1 no answer"


def test_a_late_answer_does_not_land_in_a_buffer_in_use(worker, pull, out, rigs):
    worker.ask(1, Exchange(pulls=pull, timeout_s=1.0))
    reply = Reply(11, 0, (1, 1), "applied", payload=32)
    arrival = worker.machine.arriving("server-0", reply, 32)
    assert isinstance(arrival, Sink)
    expire(worker, 1.0)
    expire(worker, 2.0)
    assert arrival.revoked
    assert arrival.views == []
    worker.handle(Received("server-0", reply, arrival))
    assert worker.notes("late") == [{"seq": 0, "code": "applied"}]
    assert worker.machine.arriving("server-0", reply, 32) == Discard("nobody waits for it")


def test_the_first_of_two_answers_loses_its_place_to_the_second(worker, pull, rigs):
    worker.ask(1, Exchange(pulls=pull))
    reply = Reply(11, 0, (1, 1), "applied", payload=32)
    first = worker.machine.arriving("server-0", reply, 32)
    second = worker.machine.arriving("server-0", reply, 32)
    assert first.revoked
    worker.handle(Received("server-0", reply, first))
    assert worker.resolved() == {}
    worker.handle(Received("server-0", reply, second))
    assert worker.resolved()[1].error is None


def test_answers_that_nobody_waits_for_are_discarded(worker, pull):
    worker.ask(1, Exchange(pulls=pull))
    for reply, nbytes in (
        (Reply(12, 0, (1, 1), "applied"), 32),  # another incarnation's
        (Reply(11, 9, (1, 1), "applied"), 32),
        (Reply(11, 0, (1, 1), "applied"), 24),
    ):
        assert worker.machine.arriving("server-0", reply, nbytes) == Discard("nobody waits for it")


def test_a_push_that_was_given_up_goes_on_with_its_own_copy(synchronous, rigs):
    """One that only some servers count would split its round."""
    values = rigs.as_bytes(1, 2, 3, 4)
    synchronous.ask(1, Exchange((PushOp("w", KeyRange(0, 4), values),), timeout_s=1.0))
    synchronous.answer(0, 0, "accepted")
    expire(synchronous, 1.0)
    expire(synchronous, 2.0)
    assert 1 in synchronous.resolved()
    values[:] = bytes(32)  # the caller's again
    assert synchronous.ask(2, Exchange(advance=True)) == []
    synchronous.answer(1, 0, "missing")
    assert b"".join(synchronous.sends(Request)[0].buffers) == rigs.as_bytes(3, 4)
    synchronous.answer(1, 0, "accepted")
    assert [each.advance for each in synchronous.sent(Request)] == [1, 1]


def test_what_was_not_sent_yet_is_dropped_at_its_time_out(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=32)
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(push, timeout_s=0.1))
    expire(worker, 0.1)
    expire(worker, 0.2)
    assert "not sent" in worker.resolved()[2].error.message
    worker.answer(0, 0, "applied")
    assert worker.sent(Request) == []


def test_an_advance_goes_on_when_its_request_is_given_up(worker, pull):
    """Its clock has moved, and the others wait for it."""
    worker.ask(1, Exchange(advance=True, pulls=pull, timeout_s=1.0))
    expire(worker, 1.0)
    expire(worker, 2.0)
    assert isinstance(worker.resolved()[1].error, RequestTimeout)
    worker.answer(0, 0, "missing")
    (again,) = worker.sent(Request)
    assert again.advance == 1
    worker.answer(0, 0, "applied", payload=bytes(32))
    assert worker.machine._flight.legs == {}


def test_an_advance_goes_on_without_the_push_that_was_not_sent(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=32)
    worker.ask(1, Exchange(push))
    assert worker.ask(2, Exchange(push, advance=True, pulls=pull)) == []
    worker.handle(Asked(3, Cancel(2)))
    (told,) = worker.sent(Request)
    assert isinstance(worker.resolved()[2].error, Cancelled)
    assert (told.advance, told.pushes, told.pulls) == (1, (), ())


def test_a_cancelled_pull_frees_its_buffer(worker, pull):
    worker.ask(1, Exchange(pulls=pull))
    sink = worker.machine.arriving("server-0", Reply(11, 0, (1, 1), "applied"), 32)
    worker.handle(Asked(2, Cancel(1)))
    assert isinstance(worker.resolved()[1].error, Cancelled)
    assert worker.resolved()[2].error is None
    assert sink.revoked


# ---------------------------------------------------------------------------- refusals


def test_refusals_say_who_and_why(synchronous, push):
    synchronous.ask(1, Exchange(push))
    synchronous.answer(1, 0, "round_closed", reason="this worker is at clock 2")
    error = synchronous.resolved()[1].error
    assert isinstance(error, RoundClosed)
    assert error.message == (
        "server-1 refused Request #0 push t0[2:4) at clock 0: this worker is at clock 2"
    )


def test_waiting_for_a_push_before_advancing_is_hopeless(synchronous, push):
    synchronous.ask(1, Exchange(push))
    assert "call advance() before waiting" in synchronous.machine.hopeless(1)
    synchronous.ask(2, Exchange(advance=True))
    assert synchronous.machine.hopeless(1) == ""
    assert synchronous.machine.hopeless(99) == ""


def test_a_push_that_settles_now_is_never_hopeless(worker, push):
    worker.ask(1, Exchange(push))
    assert worker.machine.hopeless(1) == ""


def test_waiting_says_what_and_for_whom(synchronous, push):
    synchronous.ask(1, Exchange(push))
    synchronous.answer(0, 0, "accepted", reason="waits for clock 1 of worker-1 (at 0)")
    assert synchronous.machine.waiting() == [
        ("Request #0 push t0[0:2) at clock 0", "server-0: waits for clock 1 of worker-1 (at 0)"),
        ("Request #0 push t0[2:4) at clock 0", "server-1: no answer"),
    ]


# ---------------------------------------------------------------------------- views, the end


def test_a_worker_that_joins_begins_at_its_first_clock(rigs):
    worker = rigs.WorkerRig()
    worker.receive(SCHEDULER, NewView(rigs.view_of(2, first_clock=5)))
    assert worker.machine.clock == 5


def test_a_table_is_there_when_a_view_has_it(rigs):
    worker = rigs.WorkerRig()
    spec = rigs.table()
    worker.handle(Asked(1, DeclareTable(spec)))
    assert worker.sent() == [Declare(11, spec)]
    worker.receive(SCHEDULER, NewView(rigs.view_of(2, tables=(spec,))))
    assert worker.resolved()[1].error is None
    assert worker.machine.number_of("w") == 0
    worker.handle(Asked(2, DeclareTable(spec)))
    assert worker.resolved()[2].error is None


def test_a_table_that_cannot_be_is_refused(rigs):
    worker = rigs.WorkerRig()
    worker.handle(Asked(1, DeclareTable(rigs.table())))
    worker.receive(SCHEDULER, NotDeclared("w", "it exists with another specification"))
    assert isinstance(worker.resolved()[1].error, Refused)


def test_the_first_view_is_awaited(rigs):
    rig = rigs.Rig(WorkerMachine(Session("worker-0", "worker")))
    rig.handle(Asked(1, AwaitView()))
    assert rig.resolved() == {}
    rig.receive(SCHEDULER, NewView(rigs.view_of()))
    assert rig.resolved()[1].value == rigs.view_of()


def test_barriers_and_the_end_of_work_are_the_schedulers(worker):
    worker.handle(Asked(1, EnterBarrier("epoch")))
    assert worker.sent() == [Enter(11, "epoch", 0, ("workers",))]
    worker.receive(SCHEDULER, Released("epoch", 0))
    assert worker.resolved()[1].error is None
    worker.handle(Asked(2, FinishWork()))
    assert worker.sent() == [Finish(11)]


def test_the_end_fails_everything_that_is_under_way(worker, push, pull):
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(pulls=pull))
    worker.handle(Asked(3, EnterBarrier("epoch")))
    worker.receive(SCHEDULER, End("server-0 died"))
    assert {each: type(o.error) for each, o in worker.resolved().items()} == {
        1: RunAborted,
        2: RunAborted,
        3: RunAborted,
    }
    assert list(worker.machine._requests) == []
    worker.handle(Asked(4, Exchange(push)))
    assert "run has ended" in worker.resolved()[4].error.message
    expire(worker, 0.5)
    assert worker.sent() == []
    assert worker.machine.deadline() is None
