"""A worker and its neighbour by hand; `tests/simulation/workloads/test_neighbours.py` has more."""

import msgspec
import numpy as np
import pytest

from shoal.errors import Cancelled, InvalidValue, RunAborted
from shoal.protocol.machine import Asked, Discard, Received, Resolve, Send, Sink, Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.collective import (
    NeighbourAck,
    NeighbourPiece,
    NeighbourProbe,
    WorkerLeft,
)
from shoal.protocol.messages.membership import End, Joined, NewView
from shoal.protocol.requests import Cancel, NeighbourExchange
from shoal.protocol.session import Session
from shoal.protocol.views import Member, View
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions
from shoal.protocol.worker.peers.links import Layout, Link, Values
from shoal.protocol.worker.peers.peers import Peers

VALUES = np.arange(100.0)
NBYTES, PIECES = VALUES.nbytes, 4
CLOCKS = {0: 1}
NAME = "values"


def exchange(wait="all", graph="complete", values=VALUES, phase=0, ordered=True, name=NAME):
    buffers = () if values is None else (values.view(np.uint8).data,)
    return NeighbourExchange(name, graph, buffers, ordered, wait, phase=phase, clocks=CLOCKS)


@pytest.fixture
def machine():
    """Worker 0 of two."""
    return made(WorkerOptions())


def made(options):
    session = Session("w-0", "worker")
    made = WorkerMachine(session, options, Peers(session, options, NBYTES // PIECES))
    members = tuple(
        Member(f"w-{rank}", "worker", rank, 11 + rank, f"unix:///w-{rank}") for rank in range(2)
    )
    made.handle(Received(SCHEDULER, Joined(11, 0)), 0.0)
    made.handle(Received(SCHEDULER, NewView(View(1, 1, (), members))), 0.0)
    return made


def sent(effects, kind):
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def resolved(effects):
    return [e.outcome for e in effects if isinstance(e, Resolve)]


def piece(number, version=1, phase=0, total=NBYTES):
    return NeighbourPiece(NAME, phase, version, number, total, {1: version})


def deliver(machine, message, fill=7.0):
    sink = machine.arriving("w-1", message, NBYTES // PIECES)
    if isinstance(sink, Sink):
        sink.views[0][:] = np.full(VALUES.size // PIECES, fill).view(np.uint8).data
    return machine.handle(Received("w-1", message, sink if isinstance(sink, Sink) else None), 1.0)


def test_what_comes_before_the_first_exchange_is_not_answered(machine):
    effects = machine.handle(Received("w-1", NeighbourProbe(NAME, 0, 0, 1)), 0.1)
    assert not sent(effects, NeighbourAck)
    assert isinstance(machine.arriving("w-1", piece(0), NBYTES // PIECES), Discard)


def test_values_go_out_when_the_neighbour_is_there_and_the_exchange_ends_with_its_own(machine):
    effects = machine.handle(Asked(1, exchange()), 0.1)
    assert sent(effects, NeighbourProbe) == [NeighbourProbe(NAME, 0, 0, 1)]
    assert not sent(effects, NeighbourPiece)
    effects = machine.handle(Received("w-1", NeighbourAck(NAME, 0, 0, 1)), 0.2)
    assert [each.piece for each in sent(effects, NeighbourPiece)] == [0, 1, 2, 3]
    for number in range(PIECES - 1):
        assert not resolved(deliver(machine, piece(number)))
    effects = deliver(machine, piece(PIECES - 1))
    assert sent(effects, NeighbourAck) == [NeighbourAck(NAME, 0, 1)]
    [outcome] = resolved(effects)
    [found] = outcome.value.values
    assert (found.rank, found.clocks) == (1, {1: 1})
    assert np.all(np.frombuffer(found.buffers[0]) == 7.0)
    assert machine.bytes_sent == machine.bytes_received == NBYTES


def test_of_several_answers_that_miss_pieces_only_the_first_counts(machine):
    """On a slow link many probes are on their way before the first one is answered."""
    machine.handle(Asked(1, exchange()), 0.1)
    machine.handle(Received("w-1", NeighbourAck(NAME, 0, 0, 1)), 0.2)
    probes = []
    for now in (1.0, 2.0, 4.0):
        probes += sent(machine.handle(Ticked(), now), NeighbourProbe)
    assert len({each.number for each in probes}) == 3
    answers = [NeighbourAck(NAME, 0, 1, each.number, (2,)) for each in probes]
    effects = [machine.handle(Received("w-1", each), 5.0) for each in answers]
    again = [sent(each, NeighbourPiece) for each in effects]
    assert [[each.piece for each in pieces] for pieces in again] == [[2], [], []]


def test_a_probe_is_told_what_is_missing(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    for received, missing in (([], (0, 1, 2, 3)), ([0, 2], (1, 3)), ([1, 3], ())):
        for number in received:
            deliver(machine, piece(number))
        effects = machine.handle(Received("w-1", NeighbourProbe(NAME, 0, 1, 9)), 1.0)
        assert NeighbourAck(NAME, 0, 1, 9, missing) in sent(effects, NeighbourAck)


def test_of_two_copies_of_a_piece_the_later_one_has_the_place(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    first = machine.arriving("w-1", piece(0), NBYTES // PIECES)
    second = machine.arriving("w-1", piece(0), NBYTES // PIECES)
    assert (first.revoked, second.revoked) == (True, False)


def test_values_of_another_size_fail_the_exchange(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    [outcome] = resolved(deliver(machine, piece(0, total=8)))
    assert isinstance(outcome.error, InvalidValue)
    assert "worker 1 sends values of 8 bytes" in outcome.error.message


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (exchange(graph="ring"), "a complete graph"),
        (exchange(values=np.arange(3.0)), "the same sizes"),
        (exchange(phase=-1), "is over"),
    ],
)
def test_an_exchange_unlike_the_one_before_is_refused(machine, second, says):
    [outcome] = resolved(machine.handle(Asked(1, exchange(wait="none")), 0.1))
    assert outcome.error is None
    [outcome] = resolved(machine.handle(Asked(2, second), 0.2))
    assert isinstance(outcome.error, InvalidValue)
    assert says in outcome.error.message


def test_a_second_exchange_waits_for_the_first_to_end(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    [outcome] = resolved(machine.handle(Asked(2, exchange()), 0.2))
    assert "has not ended yet" in outcome.error.message
    [withdrawn, _] = resolved(machine.handle(Asked(3, Cancel(1)), 0.3))
    assert isinstance(withdrawn.error, Cancelled)


@pytest.fixture
def impatient():
    """Worker 0 of two, which goes on without a neighbour that is 10 s late."""
    return made(WorkerOptions(sync_timeout_s=10.0, on_timeout="drop"))


def test_a_late_neighbour_is_left_out_until_it_has_caught_up(impatient):
    machine = impatient
    machine.handle(Asked(1, exchange()), 0.1)
    assert not resolved(machine.handle(Ticked(), 10.0))
    [outcome] = resolved(machine.handle(Ticked(), 10.2))
    assert (outcome.error, outcome.value.values, outcome.value.degree) == (None, (), 1)
    for asked in (2, 3):  # it is not waited for again
        [outcome] = resolved(machine.handle(Asked(asked, exchange()), 10.3))
        assert outcome.value.values == ()
    receive(machine, version=1)  # two rounds behind
    [outcome] = resolved(machine.handle(Asked(4, exchange()), 10.4))
    assert [each.rank for each in outcome.value.values] == [1]
    [outcome] = resolved(machine.handle(Asked(5, exchange()), 10.5))
    assert outcome.value.values == (), "a late version is taken once"
    receive(machine, version=5)  # in step again
    assert not resolved(machine.handle(Asked(6, exchange()), 10.6))
    [outcome] = resolved(receive(machine, version=6))
    assert [each.rank for each in outcome.value.values] == [1]


def test_a_worker_that_was_late_itself_is_in_step_after_its_next_exchange(impatient):
    machine = impatient
    machine.handle(Asked(1, exchange(wait="none")), 0.1)
    receive(machine, version=9)
    assert resolved(machine.handle(Asked(2, exchange()), 0.2))  # round 2 of its own
    effects = machine.handle(Asked(3, exchange()), 0.3)
    assert not resolved(effects)
    assert machine.waiting()[0][0] == "exchange #10 with neighbours"


def test_who_does_not_hurry_waits_for_a_late_neighbour_again(impatient):
    machine = impatient
    machine.handle(Asked(1, exchange()), 0.1)
    assert resolved(machine.handle(Ticked(), 10.2))
    patient = msgspec.structs.replace(exchange(), hurries=False)
    assert not resolved(machine.handle(Asked(2, patient), 10.3))
    assert not resolved(machine.handle(Ticked(), 20.0))
    assert resolved(machine.handle(Ticked(), 20.4))


def receive(machine, version):
    """Deliver all pieces of a version; returns the effects of the last one."""
    return [deliver(machine, piece(number, version)) for number in range(PIECES)][-1]


def test_a_late_neighbour_is_sent_the_newest_versions_alone(impatient):
    machine = impatient
    for number in range(1, 8):
        machine.handle(Asked(number, exchange(values=np.full(100, float(number)))), 11.0 * number)
        machine.handle(Ticked(), 11.0 * number + 10.5)
    effects = machine.handle(Received("w-1", NeighbourAck(NAME, 0, 0, 1)), 90.0)
    versions = []
    while pieces := sent(effects, NeighbourPiece):
        versions.append(pieces[0].round)
        ack = NeighbourAck(NAME, 0, versions[-1])
        effects = machine.handle(Received("w-1", ack), 90.1)
    assert versions == [1, 6, 7]  # the first was under way when the others were made


def test_exchanges_of_several_names_do_not_mix(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    machine.handle(Asked(2, exchange(name="other", values=np.arange(3.0))), 0.1)
    for number in range(PIECES):
        effects = deliver(machine, piece(number))
    [end] = [each for each in effects if isinstance(each, Resolve)]
    assert end.request_id == 1
    assert [each for each, _ in machine.waiting()] == ["exchange #1 with neighbours"]


def test_the_first_exchange_needs_values(machine):
    [outcome] = resolved(machine.handle(Asked(1, exchange(values=None)), 0.1))
    assert "how large" in outcome.error.message


def test_a_worker_that_has_left_is_not_waited_for(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    left = WorkerLeft(machine.peers.ring._name, "worker-1", 0)
    [outcome] = resolved(machine.handle(Received("w-1", left), 0.2))
    assert (outcome.value.values, outcome.value.ranks) == ((), (0,))


def test_the_end_of_the_run_fails_an_exchange(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    sink = machine.arriving("w-1", piece(0), NBYTES // PIECES)
    [outcome] = resolved(machine.handle(Received(SCHEDULER, End("a worker failed")), 0.2))
    assert isinstance(outcome.error, RunAborted)
    assert sink.revoked


def test_messages_that_no_worker_sends_are_refused(machine):
    for message, says in (
        (NeighbourAck(NAME, 0, 1, 1, (2, 2)), "twice"),
        (piece(0, version=0), "begin with 1"),
    ):
        assert says in machine.problem_of(Received("w-1", message))


def test_what_is_waited_for_is_named(machine):
    machine.handle(Asked(1, exchange()), 0.1)
    assert machine.waiting() == [("exchange #1 with neighbours", "waits for worker-1")]


@pytest.mark.parametrize("ordered", [True, False])
def test_values_of_an_older_phase_are_not_taken(ordered):
    """The mean at the end is a phase of its own: a late worker's last parameters are none of it."""
    link = Link("w-1", 1, Layout.of((8,), 8), NAME)
    link.whole.append(Values((0, 5), memoryview(bytearray(8)), {1: 5}))
    assert link.take((1, 1), ordered) is None
    link.whole.append(Values((1, 1), memoryview(bytearray(8)), {1: 6}))
    assert link.take((1, 1), ordered).version == (1, 1)
