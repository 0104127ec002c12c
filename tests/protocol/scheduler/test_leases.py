"""Who does which batches: the ledger by itself, in the scheduler, and what a worker makes of it."""

from random import Random

import pytest

from shoal.protocol.machine import PeerLost
from shoal.protocol.messages.membership import End, Heartbeat, Lease, Leased, NotLeased
from shoal.protocol.requests import TakeLease
from shoal.protocol.scheduler.leases.ledger import LEASE_MOST, Granted, Leases, LedgerRecord, Span
from shoal.protocol.scheduler.leases.log import LeaseGranted, LeaseLog, LedgerBegun, WorkerGone
from shoal.protocol.scheduler.notes import BatchesReturned
from shoal.protocol.views import FOREVER

EPOCHS, BATCHES = 3, 20


def lease(incarnation, clock, patient=False, epochs=EPOCHS, batches=BATCHES):
    return Lease(incarnation, clock, epochs, batches, patient)


def asked(leases, incarnation, clock, workers=2, **more):
    leases.ask(f"w{incarnation}", lease(incarnation, clock, **more))
    answers = dict(leases.answers(workers))
    return answers.get(f"w{incarnation}")


def span(answer):
    return answer.epoch, answer.first, answer.count


# ---------------------------------------------------------------------------- the ledger


def test_grants_follow_each_other_and_get_smaller():
    leases = Leases(LedgerRecord())
    spans = []
    while not (answer := asked(leases, 7, sum(count for *_, count in spans))).over:
        spans.append(span(answer))
    done = [(epoch, first + at) for epoch, first, count in spans for at in range(count)]
    assert done == [(epoch, batch) for epoch in range(EPOCHS) for batch in range(BATCHES)]
    sizes = [count for epoch, _, count in spans if epoch == 0]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (5, 1)
    assert leases.over


def test_a_repeated_lease_request_gets_the_same_answer():
    leases = Leases(LedgerRecord())
    first = asked(leases, 7, 4)
    assert asked(leases, 7, 4) == first
    second = asked(leases, 7, 4 + first.count)
    assert second.first == first.count
    assert asked(leases, 7, 4) is None  # it has come late
    assert asked(leases, 7, 4 + first.count) == second


@pytest.mark.parametrize(("last_clock", "left"), [(4, 5), (6, 3), (8, 1), (9, 0), (FOREVER, 0)])
def test_batches_that_a_dead_worker_left_are_leased_to_others(last_clock, left):
    leases = Leases(LedgerRecord())
    assert span(asked(leases, 7, 4)) == (0, 0, 5)
    returned = leases.gone(7, last_clock)
    assert (returned.count if returned else 0) == left
    first, seen = 5 - left, []
    clock = 0
    while len(seen) < BATCHES - first:
        epoch, begin, count = span(asked(leases, 8, clock, workers=1))
        seen += [begin + at for at in range(count)]
        clock += count
        assert epoch == 0
    assert seen == list(range(first, BATCHES))
    assert leases.gone(7, last_clock) is None


def test_a_worker_without_batches_advances_or_waits_if_it_is_patient():
    leases = Leases(LedgerRecord())
    small = {"epochs": 1, "batches": 2}
    assert span(asked(leases, 7, 0, **small)) == (0, 0, 1)
    assert span(asked(leases, 8, 0, **small)) == (0, 1, 1)
    assert asked(leases, 9, 3, **small) == Leased(3, 1, 0, 0, False)
    assert asked(leases, 9, 3, **small) == Leased(3, 1, 0, 0, False)
    assert asked(leases, 10, 5, patient=True, **small) is None
    assert leases.gone(7, 0).count == 1
    assert leases.answers(2) == [("w10", Leased(5, 0, 0, 1, False))]
    assert asked(leases, 9, 3, **small) == Leased(3, 1, 0, 0, False)  # as it was told before
    leases.gone(8, 1)
    assert asked(leases, 9, 4, **small).count == 0
    assert asked(leases, 10, 6, patient=True, **small).over
    assert asked(leases, 9, 5, **small).over


def test_a_lease_request_for_other_data_is_refused():
    leases = Leases(LedgerRecord())
    asked(leases, 7, 0)
    answer = asked(leases, 8, 0, batches=BATCHES + 1)
    assert isinstance(answer, NotLeased)
    assert "3 epochs of 21 batches, but the" in answer.reason
    assert "has 3 epochs of 20" in answer.reason
    assert asked(leases, 8, 0).first == 5


@pytest.mark.parametrize("seed", range(30))
def test_each_batch_is_done_once_under_deaths_and_restarts(seed):
    """Workers come, work, die between two clocks; the ledger is read from its record each time."""
    random = Random(seed)
    record, done, held, clocks, born = LedgerRecord(), [], {}, {}, 0
    while not Leases(record).over:
        leases = Leases(record)
        while len(held) < 3:
            held[born], clocks[born] = [], random.randint(0, 9)
            born += 1
        worker = random.choice(list(held))
        if held[worker] and random.random() < 0.9:
            done.append(held[worker].pop(0))
            clocks[worker] += 1
        elif held[worker] or random.random() < 0.1:
            leases.gone(worker, clocks[worker])
            del held[worker]
        else:
            answer = asked(leases, worker, clocks[worker], workers=3)
            held[worker] = [(answer.epoch, answer.first + at) for at in range(answer.count)]
            clocks[worker] += not answer.count and not answer.over
        record = leases.record()
        undone = set(leases.undone())
        if not record.epochs:
            continue  # nobody has asked yet
        assert not undone & set(done)
        assert len(undone) + len(done) + sum(map(len, held.values())) == EPOCHS * BATCHES
    assert sorted(done) == [(epoch, batch) for epoch in range(EPOCHS) for batch in range(BATCHES)]


# ---------------------------------------------------------------------------- the scheduler


def test_a_lease_is_journaled_before_it_is_sent(started):
    mine = started.incarnation("worker-0")
    started.receive("worker-0", lease(mine, 0))
    told = started.told(Leased)["worker-0"]
    assert told == Leased(0, 0, 0, 5, False)
    again = started.restart()
    again.at(0.1)
    again.receive("worker-0", lease(mine, 0))
    assert again.told(Leased)["worker-0"] == told


def test_a_lost_workers_batches_are_leased_to_others_from_the_next_view(started):
    mine, other = started.incarnation("worker-0"), started.incarnation("worker-1")
    started.receive("worker-0", lease(mine, 0))
    started.receive("worker-1", lease(other, 0))
    started.handle(PeerLost("worker-0"))
    for node in ("worker-1", "server-0"):
        started.now = 2.2
        started.receive(node, Heartbeat(started.incarnation(node), started.view.id))
    started.at(2.5)
    assert not started.notes(BatchesReturned)
    started.promise(((mine, 2), (other, 3)))
    assert started.notes(BatchesReturned) == [
        BatchesReturned("worker-0", group="", epoch=0, first=2, count=3)
    ]
    started.receive("worker-1", lease(other, 3))
    assert span(started.told(Leased)["worker-1"])[:2] == (0, 2)
    started.receive("worker-0", lease(mine, 5))
    assert started.told(End)


def test_a_finished_workers_leases_count_as_done(started):
    mine, other = started.incarnation("worker-0"), started.incarnation("worker-1")
    small = {"epochs": 1, "batches": 1}
    started.receive("worker-0", lease(mine, 0, **small))
    started.receive("worker-1", lease(other, 0, patient=True, **small))
    assert not started.told(Leased)
    started.finish("worker-0")
    assert started.told(Leased)["worker-1"].over


def test_status_names_the_worker_that_a_lease_request_waits_for(started):
    mine, other = started.incarnation("worker-0"), started.incarnation("worker-1")
    small = {"epochs": 1, "batches": 1}
    started.receive("worker-0", lease(mine, 0, **small))
    started.receive("worker-1", lease(other, 0, patient=True, **small))
    started.now += 2.0
    [wait] = started.why()
    assert (wait.longest[0][0], wait.what) == ("worker-1", "a lease")
    assert wait.reason == "waits for worker-0 to do theirs"
    assert wait.longest[0][1] == 2.0
    started.receive("worker-0", lease(mine, 1, **small))
    assert started.why() == []


def test_a_worker_lost_while_it_waits_gets_no_lease(started):
    mine, other = started.incarnation("worker-0"), started.incarnation("worker-1")
    small = {"epochs": 1, "batches": 1}
    started.receive("worker-0", lease(mine, 0, **small))
    started.receive("worker-1", lease(other, 0, patient=True, **small))
    started.handle(PeerLost("worker-1"))
    started.now = 2.2
    for node in ("worker-0", "server-0"):
        started.receive(node, Heartbeat(started.incarnation(node), started.view.id))
    started.at(2.5)
    assert "worker-1" not in started.machine.members.by_id
    started.receive("worker-0", lease(mine, 1, **small))  # all is done, and worker-1 is not told
    assert list(started.told(Leased)) == ["worker-0"]


# ---------------------------------------------------------------------------- the worker


def test_a_worker_takes_only_the_answer_to_its_last_lease_request(worker):
    rig = worker
    rig.machine.clock = 5
    rig.ask(1, TakeLease(EPOCHS, BATCHES))
    [asked_] = rig.sends(Lease)
    assert (asked_.message.clock, asked_.message.epochs) == (5, EPOCHS)
    rig.receive("scheduler", Leased(4, 0, 0, 9, False))
    assert not rig.resolved()
    rig.receive("scheduler", Leased(5, 0, 9, 2, False))
    assert rig.resolved()[1].value == Leased(5, 0, 9, 2, False)


# ---------------------------------------------------------------------------- going on


# ---------------------------------------------------------------------------- the lease log


def logged(worker, clock, epoch, first, count, epochs=2, batches=6):
    return LeaseGranted(epochs, batches, Granted(worker, clock, Span(epoch, first, count)))


@pytest.mark.parametrize(
    ("clock", "left"),
    [
        (0, [Span(0, 0, 6), Span(1, 0, 6)]),
        (1, [Span(0, 1, 2), Span(0, 4, 2), Span(1, 0, 6)]),
        (2, [Span(0, 2, 1), Span(0, 5, 1), Span(1, 0, 6)]),
        (3, [Span(1, 0, 6)]),
        (5, [Span(1, 2, 4)]),
    ],
)
def test_the_ledger_as_of_a_clock_has_the_batches_not_done_by_then(clock, left):
    """Of three batches each, from the first clock on; and one worker has gone on to the next."""
    log = LeaseLog([logged(1, 0, 0, 0, 3), logged(2, 0, 0, 3, 3), logged(1, 3, 1, 0, 2)])
    record = log.as_of(clock)
    assert list(record.returned) == left
    assert (record.epochs, record.batches, record.untouched) == (2, 6, (2, 0))
    assert Leases(record).over == (not left)


def test_batches_of_a_worker_that_ended_count_for_their_next_worker():
    entries = [logged(1, 0, 0, 0, 6, 1), WorkerGone(1, 4)]
    assert LeaseLog(entries).as_of(6).returned == (Span(0, 4, 2),)  # and it had to do them
    entries.append(logged(2, 7, 0, 4, 2, 1))
    assert LeaseLog(entries).as_of(6).returned == (Span(0, 4, 2),)
    assert LeaseLog(entries).as_of(9).returned == ()


def test_the_last_word_on_a_workers_end_counts():
    """A view that had its end was offered, and never adopted: its clock is another in the next."""
    entries = [logged(1, 0, 0, 0, 6, 1), WorkerGone(1, 2), WorkerGone(1, 4)]
    assert LeaseLog(entries).as_of(6).returned == (Span(0, 4, 2),)


def test_a_lease_that_no_worker_heard_of_is_not_done():
    """The scheduler was killed after it had logged the lease, and then granted others."""
    phantom, real = logged(1, 4, 0, 0, 3), logged(1, 4, 1, 0, 3)
    record = LeaseLog([phantom, real]).as_of(9)
    assert record.returned == (Span(0, 0, 6), Span(1, 3, 3))
    taken = LeaseLog([phantom, logged(2, 5, 0, 0, 3), real]).as_of(9)
    assert taken.returned == (Span(0, 3, 3), Span(1, 3, 3))


def test_what_a_worker_has_not_done_of_a_lease_when_it_asks_again_is_not_done():
    record = LeaseLog([logged(1, 0, 0, 0, 4), logged(1, 2, 1, 0, 1)]).as_of(9)
    assert record.returned == (Span(0, 2, 4), Span(1, 1, 5))


def test_a_ledger_as_of_a_clock_continues_one_that_was_resumed_before():
    """Its clocks are counted from where it began, and more epochs are asked for by now."""
    first = LeaseLog([logged(1, 0, 0, 0, 6)]).as_of(2)
    log = LeaseLog([LedgerBegun(first, 2), logged(1, 0, 0, 2, 4)])
    again = log.as_of(5, 3)
    assert again.returned == (Span(0, 5, 1),)
    assert (again.epochs, again.untouched) == (3, (1, 0))
    assert len(list(Leases(again).undone())) == 1 + 6 + 6
    fewer = log.as_of(5, 1)
    assert fewer.returned == (Span(0, 5, 1),)
    assert (fewer.epochs, fewer.untouched) == (1, (1, 0))


def test_a_ledger_as_of_a_clock_takes_no_time_for_batches_that_nobody_began():
    record = LeaseLog([logged(1, 0, 0, 0, 3, 1 << 60, 1 << 60)]).as_of(2)
    assert record.returned == (Span(0, 2, (1 << 60) - 2),)
    assert record.untouched == (1, 0)


@pytest.mark.parametrize(
    "wrong",
    [(1, 0, 2, 0, 1), (1, 0, 0, 4, 3), (1, -1, 0, 0, 1), (1, 0, 0, -1, 1), (1, 0, 0, 0, -1)],
)
def test_an_entry_that_is_no_lease_is_refused(wrong):
    with pytest.raises(ValueError, match="is no lease"):
        logged(*wrong)
    with pytest.raises(ValueError, match="is no lease"):
        logged(1, 0, 0, 0, LEASE_MOST + 1, 1, 1 << 40)


def test_a_lease_has_a_bound():
    leases = Leases(LedgerRecord())
    leases.ask("a", Lease(7, 0, epochs=1, batches=1 << 40))
    [(_, leased)] = leases.answers(1)
    assert leased.count == LEASE_MOST
