"""What servers are asked again, and when."""

from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.machine import PeerLost, Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Heartbeat, NewView
from shoal.protocol.messages.requests import Computing, Nudge, Probe, Request
from shoal.protocol.requests import (
    EnterBarrier,
    Exchange,
    PullOp,
)


def test_an_unanswered_request_is_probed_with_exponential_backoff(rigs, push):
    worker = rigs.WorkerRig(rigs.table(), probe_s=0.5, probe_max_s=2.0, sync_timeout_s=99)
    worker.ask(1, Exchange(push))
    times = []
    while len(times) < 5:
        worker.now = max(worker.machine._sender.wakes_at, worker.now)
        worker.handle(Ticked())
        if worker.sent(Probe):
            assert worker.sent(Request) == []  # the payload is not sent again
            times.append(worker.now)
    assert times == [0.5, 1.5, 3.5, 5.5, 7.5]


def test_a_missing_request_is_resent_under_its_seq(worker, push):
    (first,) = worker.ask(1, Exchange(push))
    worker.answer(0, 0, "missing")
    assert worker.sent(Request) == [first]
    assert b"".join(worker.sends(Request)[0].buffers) == push[0].values


def test_an_applied_reply_without_rows_resends_the_pull_without_the_push(worker, push, rigs):
    keyed = PullOp("w", KeyRange(0, 4), rigs.as_bytes(0), rigs.ints(2))
    worker.ask(1, Exchange(push, pulls=(keyed,)))
    worker.answer(0, 0, "applied")
    (again,) = worker.sends(Request)
    assert again.message.pushes == ()
    assert b"".join(again.buffers) == rigs.as_bytes(2)
    worker.answer(0, 0, "applied", rigs.as_bytes(3))
    assert worker.resolved()[1].error is None


def test_a_stale_reply_is_probed_again_soon(worker, push):
    worker.ask(1, Exchange(push))
    worker.answer(0, 0, "stale", view=(1, 0))
    worker.now = 0.01
    worker.handle(Ticked())
    assert len(worker.sent(Probe)) == 1


def test_a_stale_reply_does_not_probe_the_requests_that_are_followed(worker, push, rigs):
    """That has been answered likewise, or will be: it is asked about at its own time."""
    pull = (PullOp("w", KeyRange(0, 4), rigs.as_bytes(0, 0, 0, 0)),)
    worker.ask(1, Exchange(push))
    worker.ask(2, Exchange(pulls=pull))
    worker.answer(0, 0, "stale", view=(1, 0))
    worker.answer(0, 1, "stale", view=(1, 0))
    assert worker.sent(Probe) == []
    worker.now = 0.01
    worker.handle(Ticked())
    assert [each.seq for each in worker.sent(Probe)] == [0, 1]


def test_a_broken_connections_requests_are_probed_soon(worker, push):
    worker.ask(1, Exchange(push))
    worker.handle(PeerLost("server-0"))
    worker.now = 0.01
    worker.handle(Ticked())
    assert len(worker.sent(Probe)) == 1


def test_a_nudge_probes_all_requests(synchronous, push):
    synchronous.ask(1, Exchange(push))
    synchronous.answer(0, 0, "accepted")
    synchronous.receive("server-1", Nudge("waits for clock 1 of worker-0 (at 0)"))
    assert [send.to for send in synchronous.sends(Probe)] == ["server-0", "server-1"]


def test_a_nudged_worker_says_that_it_computes_if_it_waits_for_nobody(synchronous, pull, push):
    nudge = Nudge("waits for clock 1 of worker-0 (at 0)")
    synchronous.receive("server-1", nudge)
    assert [send.to for send in synchronous.sends(Computing)] == ["server-1"]
    synchronous.ask(1, Exchange(push))
    synchronous.receive("server-1", nudge)  # a push does not hold the caller up
    assert len(synchronous.sends(Computing)) == 1
    synchronous.ask(2, Exchange(pulls=pull))
    synchronous.answer(0, 1, "waiting", reason="waits for clock 1 of worker-1 (at 0)")
    synchronous.receive("server-1", nudge)
    assert synchronous.sends(Computing) == []


def test_a_nudged_worker_in_a_barrier_does_not_compute(synchronous):
    synchronous.ask(1, EnterBarrier("epoch", ("workers",)))
    synchronous.receive("server-1", Nudge("waits for clock 1 of worker-0 (at 0)"))
    assert synchronous.sends(Computing) == []


def test_resends_and_probes_carry_the_present_view(worker, push, rigs):
    worker.ask(1, Exchange(push))
    worker.receive(SCHEDULER, NewView(rigs.view_of(2, tables=worker.view.tables)))
    assert [each.view for each in worker.sent(Probe)] == [(1, 2)]
    worker.answer(0, 0, "missing", view=(1, 2))
    assert [each.view for each in worker.sent(Request)] == [(1, 2)]


def test_a_server_that_stays_behind_is_probed_ever_more_rarely(worker, push):
    """On a slow link its view takes seconds, and many requests of many workers wait for it."""
    worker.ask(1, Exchange(push))
    probes = 0
    for tick in range(1, 501):
        worker.now = tick / 100
        worker.handle(Ticked())
        if worker.sent(Probe):
            probes += 1
            worker.answer(0, 0, "stale", view=(1, 0))
    assert 10 <= probes <= 20  # in 5 s; every 10 ms they would be 500


def test_a_worker_that_is_behind_asks_for_the_view_once_and_waits_for_it(worker, push, rigs):
    worker.ask(1, Exchange(push))
    asked = 0
    for tick in range(1, 41):
        worker.now = tick / 100
        worker.answer(0, 0, "stale", view=(1, 2))
        asked += len(worker.sent(Heartbeat))
        worker.handle(Ticked())
        assert worker.sent(Probe) == []
    assert asked == 1
    worker.view = replace(worker.view, number=2)
    worker.receive(SCHEDULER, NewView(worker.view))
    assert [each.seq for each in worker.sent(Probe)] == [0]
