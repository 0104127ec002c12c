"""A worker by hand: fan-out, time-outs, late answers, refusals, views."""

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
from shoal.protocol.machine import Asked, Discard, Received, Sink, Ticked
from shoal.protocol.messages import (
    SCHEDULER,
    BarrierArrival,
    BarrierReleased,
    Declare,
    End,
    Finish,
    NewView,
    NotDeclared,
    Probe,
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
from shoal.protocol.views import FOREVER
from shoal.protocol.worker.machine import WorkerMachine
from shoal.tables.spec import ssp

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
        assert worker.ask(seq, Exchange(push))[0].forget_below == seq
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


# ---------------------------------------------------------------------------- time-outs


def expire(worker, at):
    worker.now = at
    worker.handle(Ticked())


def test_the_first_expiry_asks_urgently_and_the_second_names_the_missing(rigs, pull):
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
    assert error.message == ("no answer within 20 s: server-0 waits for clock 1 of worker-1 (at 0)")
    assert error.trace


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
    assert worker.machine._in_flight.sub_requests == {}


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
    assert worker.sent() == [BarrierArrival(11, "epoch", 0, ("workers",))]
    worker.receive(SCHEDULER, BarrierReleased("epoch", 0))
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
