"""A worker by hand: fan-out, time-outs, late answers, refusals, views."""

import pytest
from msgspec.structs import replace

from shoal.errors import (
    Cancelled,
    InvalidValue,
    Refused,
    RequestTimeout,
    RoundClosed,
    RunAborted,
)
from shoal.keys import KeyRange
from shoal.protocol.machine import Asked, Detach, Discard, Received, Resolve, Sink, Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import (
    BarrierArrival,
    BarrierReleased,
    Declare,
    End,
    Finish,
    Finished,
    NewView,
    NotDeclared,
)
from shoal.protocol.messages.requests import Computing, Nudge, Reply, Request
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
from shoal.protocol.worker.machine import LateReply, WorkerMachine

# ---------------------------------------------------------------------------- the roads


def test_a_push_resolves_when_it_is_applied(worker, push):
    rated = tuple(replace(op, lr=0.5) for op in push)
    (request,) = worker.ask(1, Exchange(rated, weight=2.0))
    assert (request.seq, request.clock, request.weight, request.rates) == (0, 0, 2.0, (0.5,))
    worker.answer(0, 0, "applied")
    assert worker.resolved()[1].error is None
    assert list(worker.machine._requests) == []
    assert worker.machine.bytes_pushed == 32


def test_rows_that_come_after_a_refusal_are_late(worker, pull, rigs):
    """Two connections of a server: the first answer's rows end after another one is handled."""
    worker.ask(1, Exchange(pulls=pull))
    applied = Reply(11, 0, worker.view.id, "applied", payload=32)
    sink = worker.machine.arriving("server-0", applied, 32)
    worker.answer(0, 0, "refused", reason="no")
    assert isinstance(worker.resolved()[1].error, Refused)
    sink.fill(rigs.as_bytes(5, 6, 7, 8))
    worker.handle(Received("server-0", applied, sink))
    assert worker.effects == [LateReply(0, "applied")]


def test_a_pull_resolves_with_its_rows_in_its_buffer(worker, pull, out, rigs):
    worker.ask(1, Exchange(pulls=pull))
    worker.answer(0, 0, "applied", rigs.as_bytes(5, 6, 7, 8), clock_min=3, round_weight=4.0)
    outcome = worker.resolved()[1]
    assert (outcome.error, outcome.clock_min, outcome.round_weight) == (None, 3, 4.0)
    assert out == rigs.as_bytes(5, 6, 7, 8)
    assert worker.machine.bytes_pulled == 32


def test_an_exchange_resolves_when_all_servers_have_answered(synchronous, pull, out, rigs):
    requests = synchronous.ask(1, Exchange(pulls=pull))
    assert [each.pulls[0].start for each in requests] == [0, 2]
    synchronous.answer(1, 0, "applied", rigs.as_bytes(3, 4), clock_min=7)
    assert synchronous.resolved() == {}
    synchronous.answer(0, 0, "applied", rigs.as_bytes(1, 2), clock_min=5)
    assert synchronous.resolved()[1].clock_min == 5
    assert out == rigs.as_bytes(1, 2, 3, 4)


def test_the_next_request_tells_the_server_what_to_forget(worker, push):
    for seq in range(3):
        assert worker.ask(seq, Exchange(push))[0].forget_below == seq
        worker.answer(0, seq, "applied")


def test_a_request_without_rows_resolves_without_a_message(worker, rigs):
    nothing = PullOp("w", KeyRange(2, 2), rigs.as_bytes())
    assert worker.ask(1, Exchange(pulls=(nothing,))) == []
    assert worker.resolved()[1].error is None


def test_an_advance_goes_to_every_server(synchronous):
    requests = synchronous.ask(1, Exchange(advance=True))
    assert [each.advance for each in requests] == [1, 1]
    assert synchronous.machine.clock == 1
    assert synchronous.ask(2, Exchange(advance=True, last=True))[0].advance == FOREVER


def test_an_invalid_exchange_resolves_with_its_error_and_changes_nothing(worker, push, rigs):
    bad = PullOp("w", KeyRange(0, 9), rigs.as_bytes(0))
    assert worker.ask(1, Exchange(push, advance=True, pulls=(bad,))) == []
    assert isinstance(worker.resolved()[1].error, InvalidValue)
    assert worker.machine.clock == 0
    assert list(worker.machine._requests) == []


def test_an_exchange_before_the_first_view_fails(rigs, push):
    rig = rigs.Rig(WorkerMachine(Session("worker-0", "worker")))
    rig.handle(Asked(1, Exchange(push)))
    assert "in no view yet" in rig.resolved()[1].error.message


# ---------------------------------------------------------------------------- time-outs


def expire(worker, at):
    worker.now = at
    worker.handle(Ticked())


def test_a_timeout_names_the_server_that_did_not_answer(synchronous, pull, rigs):
    synchronous.ask(1, Exchange(pulls=pull, timeout_s=1.0))
    synchronous.answer(0, 0, "applied", rigs.as_bytes(1, 2))
    expire(synchronous, 1.0)
    expire(synchronous, 2.0)
    error = synchronous.resolved()[1].error
    assert type(error) is RequestTimeout
    assert error.message == "no answer within 2 s: server-1 no answer"


def test_a_reply_after_the_timeout_does_not_write_to_the_buffer(worker, pull, out, rigs):
    worker.ask(1, Exchange(pulls=pull, timeout_s=1.0))
    reply = Reply(11, 0, (1, 1), "applied", payload=32)
    arrival = worker.machine.arriving("server-0", reply, 32)
    assert isinstance(arrival, Sink)
    expire(worker, 1.0)
    expire(worker, 2.0)
    assert arrival.revoked
    assert arrival.views == []
    worker.handle(Received("server-0", reply, arrival))
    assert worker.notes(LateReply) == [LateReply(seq=0, code="applied")]
    assert worker.machine.arriving("server-0", reply, 32) == Discard("nobody waits for it")


def test_a_second_reply_revokes_the_sink_of_the_first(worker, pull, rigs):
    worker.ask(1, Exchange(pulls=pull))
    reply = Reply(11, 0, (1, 1), "applied", payload=32)
    first = worker.machine.arriving("server-0", reply, 32)
    second = worker.machine.arriving("server-0", reply, 32)
    assert first.revoked
    worker.handle(Received("server-0", reply, first))
    assert worker.resolved() == {}
    worker.handle(Received("server-0", reply, second))
    assert worker.resolved()[1].error is None


def test_a_reply_that_no_request_waits_for_is_discarded(worker, pull):
    worker.ask(1, Exchange(pulls=pull))
    for reply, nbytes in (
        (Reply(12, 0, (1, 1), "applied"), 32),  # another incarnation's
        (Reply(11, 9, (1, 1), "applied"), 32),
        (Reply(11, 0, (1, 1), "applied"), 24),
    ):
        assert worker.machine.arriving("server-0", reply, nbytes) == Discard("nobody waits for it")


def test_a_timed_out_push_goes_on_with_a_copy_of_its_values(synchronous, rigs):
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


def test_a_push_that_times_out_before_it_was_sent_is_dropped(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=32)
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(push, timeout_s=0.1))
    expire(worker, 0.1)
    expire(worker, 0.2)
    assert "not sent" in worker.resolved()[2].error.message
    worker.answer(0, 0, "applied")
    assert worker.sent(Request) == []


def test_an_advance_goes_on_when_its_pull_times_out(worker, pull):
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


def test_an_advance_is_sent_alone_when_its_unsent_exchange_is_cancelled(rigs, push, pull):
    worker = rigs.WorkerRig(rigs.table(), credit_bytes=32)
    worker.ask(1, Exchange(push))
    assert worker.ask(2, Exchange(push, advance=True, pulls=pull)) == []
    worker.handle(Asked(3, Cancel(2)))
    (told,) = worker.sent(Request)
    assert isinstance(worker.resolved()[2].error, Cancelled)
    assert (told.advance, told.pushes, told.pulls) == (1, (), ())


def test_a_cancelled_pull_revokes_its_sink(worker, pull):
    worker.ask(1, Exchange(pulls=pull))
    sink = worker.machine.arriving("server-0", Reply(11, 0, (1, 1), "applied"), 32)
    worker.handle(Asked(2, Cancel(1)))
    assert isinstance(worker.resolved()[1].error, Cancelled)
    assert worker.resolved()[2].error is None
    assert sink.revoked


# ---------------------------------------------------------------------------- refusals


def test_a_refusal_names_the_server_the_request_and_the_reason(synchronous, push):
    synchronous.ask(1, Exchange(push))
    synchronous.answer(1, 0, "round_closed", reason="this worker is at clock 2")
    error = synchronous.resolved()[1].error
    assert isinstance(error, RoundClosed)
    assert error.message == (
        "server-1 refused Request #0 push t0[2:4) at clock 0: this worker is at clock 2"
    )


def test_after_a_closed_round_a_worker_goes_on_in_the_first_that_is_open(synchronous, push):
    synchronous.ask(1, Exchange(push, advance=True))
    assert synchronous.machine.clock == 1
    synchronous.answer(0, 0, "round_closed", reason="round 0 has closed", clock_min=7)
    assert isinstance(synchronous.resolved()[1].error, RoundClosed)
    assert synchronous.machine.clock == 7
    synchronous.answer(1, 0, "round_closed", clock_min=9)  # its request is over
    assert synchronous.machine.clock == 7
    assert {each.clock for each in synchronous.ask(2, Exchange(push))} == {7}


def test_an_exchange_may_go_on_at_a_later_clock(synchronous, push):
    assert {each.clock for each in synchronous.ask(1, Exchange(push, advance=True, at=5))} == {5}
    assert synchronous.machine.clock == 6
    synchronous.ask(2, Exchange(push, at=3))  # never back
    assert synchronous.machine.clock == 6


def test_a_refusal_for_another_reason_moves_no_clock(synchronous, push):
    synchronous.ask(1, Exchange(push, advance=True))
    synchronous.answer(0, 0, "refused", reason="no", clock_min=7)
    assert synchronous.machine.clock == 1


def test_waiting_for_a_bsp_push_before_advance_is_hopeless(synchronous, push):
    synchronous.ask(1, Exchange(push))
    assert "call advance() before waiting" in synchronous.machine.hopeless(1)
    synchronous.ask(2, Exchange(advance=True))
    assert synchronous.machine.hopeless(1) == ""
    assert synchronous.machine.hopeless(99) == ""


def test_waiting_for_an_asynchronous_push_is_not_hopeless(worker, push):
    worker.ask(1, Exchange(push))
    assert worker.machine.hopeless(1) == ""


def test_waiting_names_each_request_its_server_and_the_reason(synchronous, push):
    synchronous.ask(1, Exchange(push))
    synchronous.answer(0, 0, "accepted", reason="waits for clock 1 of worker-1 (at 0)")
    assert synchronous.machine.waiting() == [
        ("Request #0 push t0[0:2) at clock 0", "server-0: waits for clock 1 of worker-1 (at 0)"),
        ("Request #0 push t0[2:4) at clock 0", "server-1: no answer"),
    ]


# ---------------------------------------------------------------------------- views, the end


def test_a_joining_worker_begins_at_the_first_clock_of_its_view(rigs):
    worker = rigs.WorkerRig()
    worker.receive(SCHEDULER, NewView(rigs.view_of(2, first_clock=5)))
    assert worker.machine.clock == 5


def test_a_declaration_resolves_when_a_view_has_the_table(rigs):
    worker = rigs.WorkerRig()
    spec = rigs.table()
    worker.handle(Asked(1, DeclareTable(spec)))
    assert worker.sent() == [Declare(11, spec)]
    worker.receive(SCHEDULER, NewView(rigs.view_of(2, tables=(spec,))))
    assert worker.resolved()[1].error is None
    assert worker.machine.number_of("w") == 0
    worker.handle(Asked(2, DeclareTable(spec)))
    assert worker.resolved()[2].error is None


def test_a_declaration_does_not_resolve_with_another_table_of_its_name(rigs):
    """Another worker's declaration may be in a view before the scheduler has read this one."""
    worker, spec = rigs.WorkerRig(), rigs.table()
    worker.handle(Asked(1, DeclareTable(spec)))
    other = rigs.table(rows=spec.rows + 1)
    worker.receive(SCHEDULER, NewView(rigs.view_of(2, tables=(other,))))
    assert worker.resolved() == {}
    worker.receive(SCHEDULER, NotDeclared("w", "it exists with another specification"))
    assert isinstance(worker.resolved()[1].error, Refused)


def test_a_refused_declaration_resolves_with_its_error(rigs):
    worker = rigs.WorkerRig()
    worker.handle(Asked(1, DeclareTable(rigs.table())))
    worker.receive(SCHEDULER, NotDeclared("w", "it exists with another specification"))
    assert isinstance(worker.resolved()[1].error, Refused)


def test_await_view_resolves_with_the_first_view(rigs):
    rig = rigs.Rig(WorkerMachine(Session("worker-0", "worker")))
    rig.handle(Asked(1, AwaitView()))
    assert rig.resolved() == {}
    rig.receive(SCHEDULER, NewView(rigs.view_of()))
    assert rig.resolved()[1].value == rigs.view_of()


def test_barriers_and_finish_are_sent_to_the_scheduler(worker):
    worker.handle(Asked(1, EnterBarrier("epoch")))
    assert worker.sent() == [BarrierArrival(11, "epoch", 0, ("workers",))]
    worker.receive(SCHEDULER, BarrierReleased("epoch", 0))
    assert worker.resolved()[1].error is None
    worker.handle(Asked(2, FinishWork()))
    assert worker.sent() == [Finish(11, (1, 1))]


@pytest.fixture
def leaving(rigs):
    """A worker that has asked to finish; a server dies before the scheduler has answered."""
    rig = rigs.WorkerRig(rigs.table(), servers=2, replicas=2)
    rig.ask(1, Exchange(advance=True, last=True))
    for server in (0, 1):
        rig.answer(server, 0, "applied")
    rig.handle(Asked(2, FinishWork()))
    assert rig.sent(Finish) == [Finish(11, (1, 1))]
    rig.receive(SCHEDULER, NewView(rigs.died(rig.view, 0)))
    assert [each.advance for each in rig.sent(Request)] == [FOREVER]
    assert rig.sent(Finish) == []
    return rig


def test_a_worker_finishes_when_the_heads_of_the_new_view_have_its_clock(leaving):
    leaving.now += 60.0
    leaving.handle(Ticked())
    assert leaving.sent(Finish) == []  # the scheduler would let it go
    leaving.answer(1, 1, "applied", view=(1, 2))
    assert leaving.sent(Finish) == [Finish(11, (1, 2))]
    leaving.receive(SCHEDULER, Finished())
    assert leaving.resolved()[2].error is None


def test_a_worker_that_repeats_its_clock_to_finish_does_not_compute(leaving):
    leaving.receive("server-1", Nudge("waits for clock 1 of worker-0 (at 0)"))
    assert leaving.sent(Computing) == []


def test_a_finish_is_withdrawn_while_the_worker_repeats_its_clock(leaving):
    leaving.handle(Asked(3, Cancel(2)))
    leaving.answer(1, 1, "applied", view=(1, 2))
    assert leaving.sent(Finish) == []


def test_the_end_of_the_run_fails_a_finish_while_the_worker_repeats_its_clock(leaving):
    leaving.receive(SCHEDULER, End("server-1 died"))
    assert isinstance(leaving.resolved()[2].error, RunAborted)


def test_a_finish_does_not_wait_for_the_pulls_of_the_caller(worker, pull):
    worker.ask(1, Exchange(pulls=pull))
    worker.handle(Asked(2, FinishWork()))
    assert worker.sent(Finish) == [Finish(11, (1, 1))]


def test_the_end_fails_all_requests_in_flight(worker, push, pull):
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(pulls=pull))
    worker.handle(Asked(3, EnterBarrier("epoch")))
    worker.receive(SCHEDULER, End("server-0 died"))
    # the push's buffers are the caller's again, and it may not have left yet
    assert worker.effects.index(Detach("server-0")) < worker.effects.index(
        next(each for each in worker.effects if isinstance(each, Resolve) and each.request_id == 1)
    )
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
