"""A worker in a ring by hand; `tests/simulation/workloads/test_all_reduce.py` has the rest."""

import numpy as np
import pytest

from shoal.errors import InvalidValue
from shoal.protocol.machine import Asked, Discard, PeerLost, Received, Resolve, Send, Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.collective import (
    MissingPieces,
    Piece,
    PieceProbe,
    SumAck,
    WorkerLeft,
)
from shoal.protocol.messages.membership import Finish, HeartbeatSeen, Joined, NewView
from shoal.protocol.requests import Cancel, FinishWork, Reduce
from shoal.protocol.session import Session
from shoal.protocol.views import Member, View
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions
from shoal.protocol.worker.peers.peers import Peers


def add(into, other):
    np.frombuffer(into, np.float32)[:] += np.frombuffer(other, np.float32)


def reduce_of(values):
    return Reduce(values.view(np.uint8).data, add)


@pytest.fixture
def machine():
    """Worker 0 of two, which has met the other one."""
    session = Session("w-0", "worker")
    made = WorkerMachine(session, WorkerOptions(), Peers(session, WorkerOptions()))
    members = tuple(
        Member(f"w-{rank}", "worker", rank, 11 + rank, f"unix:///w-{rank}") for rank in range(2)
    )
    made.handle(Received(SCHEDULER, Joined(11, 0)), 0.0)
    made.handle(Received(SCHEDULER, NewView(View(1, 1, (), members))), 0.0)
    made.handle(Received("w-1", MissingPieces(made.peers.ring._name, 0)), 0.0)
    return made


def sent(effects, kind):
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def test_a_piece_cut_short_before_its_sum_is_asked_for_again_at_once(machine):
    values = np.ones(1 << 16, np.float32)
    piece = Piece(machine.peers.ring._name, 0, 1, False, values.nbytes)
    assert isinstance(machine.arriving("w-1", piece, values.nbytes // 2), Discard)
    machine.handle(Asked(1, reduce_of(values)), 1.0)
    effects = machine.handle(Received("w-1", piece), 1.1)
    assert sent(effects, MissingPieces) == [MissingPieces(machine.peers.ring._name, 0, (1,), ())]


def test_a_piece_that_came_before_its_sum_is_asked_for_with_it(machine):
    piece = Piece(machine.peers.ring._name, 0, 1, False, 1 << 18)
    machine.handle(Received("w-1", piece), 1.0)
    effects = machine.handle(Asked(1, reduce_of(np.ones(1 << 16, np.float32))), 1.1)
    assert sent(effects, MissingPieces) == [MissingPieces(machine.peers.ring._name, 0, (1,), ())]
    assert [p.piece for p in sent(effects, Piece)] == [0]


def test_a_piece_of_another_size_fails_the_sum(machine):
    machine.handle(Asked(1, reduce_of(np.ones(8, np.float32))), 1.0)
    effects = machine.handle(Received("w-1", Piece(machine.peers.ring._name, 0, 0, True, 999)), 1.1)
    [resolved] = [e for e in effects if isinstance(e, Resolve)]
    assert isinstance(resolved.outcome.error, InvalidValue)
    assert "999 bytes where this worker sums 32" in resolved.outcome.error.message


def test_messages_of_another_ring_are_ignored(machine):
    values = np.ones(8, np.float32)
    machine.handle(Asked(1, reduce_of(values)), 1.0)
    for sender, message in [
        ("w-1", Piece(1, 0, 0, True, 32)),
        ("w-7", Piece(machine.peers.ring._name, 0, 0, True, 32)),
        ("w-1", MissingPieces(machine.peers.ring._name, 0, (-1, 7, 1 << 40), (99,))),
    ]:
        effects = machine.handle(Received(sender, message), 1.1)
        assert not sent(effects, Piece)
        assert not [e for e in effects if isinstance(e, Resolve)]


def test_of_two_copies_of_a_whole_piece_the_later_one_has_the_place(machine):
    """The sender has its tensor back when one has come: the rest of the other may differ."""
    values = np.ones(1 << 16, np.float32)
    machine.handle(Asked(1, reduce_of(values)), 1.0)
    piece, nbytes = Piece(machine.peers.ring._name, 0, 0, True, values.nbytes), values.nbytes // 2
    first = machine.arriving("w-1", piece, nbytes)
    second = machine.arriving("w-1", piece, nbytes)
    assert (first.revoked, second.revoked) == (True, False)


def test_what_comes_late_does_not_land_in_a_tensor_that_was_given_back(machine):
    values = np.ones(1 << 16, np.float32)
    machine.handle(Asked(1, reduce_of(values)), 1.0)
    piece = Piece(machine.peers.ring._name, 0, 0, True, values.nbytes)
    sink = machine.arriving("w-1", piece, values.nbytes // 2)
    machine.handle(Asked(2, Cancel(1)), 1.1)
    assert sink.revoked


def test_of_several_answers_that_miss_pieces_only_the_first_counts(machine):
    """On a slow link many probes are on their way before the first one is answered."""
    values = np.ones(1 << 16, np.float32)
    machine.handle(Asked(1, reduce_of(values)), 0.0)
    probes = []
    for now in (1.0, 2.0, 4.0):
        probes += sent(machine.handle(Ticked(), now), PieceProbe)
    assert len({each.probe for each in probes}) == 3
    answers = [MissingPieces(machine.peers.ring._name, 0, (0,), (), each.probe) for each in probes]
    effects = [machine.handle(Received("w-1", each), 5.0) for each in answers]
    assert [[each.piece for each in sent(of, Piece)] for of in effects] == [[0], [], []]


def test_a_probe_is_told_what_is_missing(machine):
    machine.handle(Asked(1, reduce_of(np.ones(1 << 16, np.float32))), 0.0)
    effects = machine.handle(Received("w-1", PieceProbe(machine.peers.ring._name, 0, 7)), 0.1)
    assert sent(effects, MissingPieces) == [
        MissingPieces(machine.peers.ring._name, 0, (1,), (0,), 7)
    ]


def test_after_a_reconnection_a_neighbour_is_asked_what_it_lacks(machine):
    machine.handle(Asked(1, reduce_of(np.ones(1 << 16, np.float32))), 0.0)
    machine.handle(PeerLost("w-1"), 0.1)
    effects = machine.handle(Received("w-1", MissingPieces(machine.peers.ring._name, 0)), 0.2)
    assert len(sent(effects, PieceProbe)) == 1
    assert not sent(effects, Piece)


@pytest.mark.parametrize("complete", [False, True])
def test_where_nothing_moves_after_a_worker_has_finished_a_sum_ends(machine, complete):
    """The word of a worker that leaves, or its last acknowledgement, may be lost with it."""
    values = np.ones(1 << 16, np.float32)
    machine.handle(Asked(1, reduce_of(values)), 0.0)
    if complete:
        for piece, whole in ((1, False), (0, True)):
            message = Piece(machine.peers.ring._name, 0, piece, whole, values.nbytes)
            sink = machine.arriving("w-1", message, values.nbytes // 2)
            for _ in sink.views:
                sink.landed += 1
                machine.handle(Received("w-1", message, sink), 0.1)
    machine.handle(Received(SCHEDULER, HeartbeatSeen(("worker-1",))), 0.2)
    effects, now = [], 0.2
    while now < 30 and not [e for e in effects if isinstance(e, Resolve)]:
        now = max(now, machine.deadline())
        effects = machine.handle(Ticked(), now)
    [end] = [e for e in effects if isinstance(e, Resolve)]
    assert (end.outcome.error is None) == complete
    assert now > 5  # pieces that are under way have time to come


def test_a_greeting_whose_answer_was_lost_is_answered_again_and_no_answer_is(machine):
    greeting = MissingPieces(machine.peers.ring._name, 0)
    [answer] = sent(machine.handle(Received("w-1", greeting), 0.1), MissingPieces)
    assert answer != greeting
    assert sent(machine.handle(Received("w-1", answer), 0.2), MissingPieces) == []


def test_messages_that_no_neighbour_sends_are_refused(machine):
    ring = machine.peers.ring._name
    for message, says in (
        (WorkerLeft(ring, "worker-7", 0), "no worker"),
        (MissingPieces(ring, 0, (1, 1)), "twice"),
        (Piece(ring, 1 << 40, 0, True, 4), "too far ahead"),
    ):
        assert says in machine.problem_of(Received("w-1", message))
    assert machine.problem_of(Received("w-1", WorkerLeft(ring, "worker-1", 0))) == ""


def gathered(machine, number=0):
    """A small sum that is complete here, and that the next worker has not acknowledged."""
    values = np.ones(4, np.float32)
    machine.handle(Asked(number + 1, reduce_of(values)), 0.0)
    message = Piece(machine.peers.ring._name, number, 0, True, values.nbytes)
    sink = machine.arriving("w-1", message, values.nbytes)
    sink.landed = len(sink.views)
    return machine.handle(Received("w-1", message, sink), 0.1)


@pytest.mark.parametrize("how", ["taken", "left", "finished"])
def test_a_worker_finishes_once_the_next_one_has_its_values(machine, how):
    """What it sent before the next worker asked for the sum was dropped, and is asked for again."""
    assert [e.request_id for e in gathered(machine) if isinstance(e, Resolve)] == [1]
    ring = machine.peers.ring._name
    effects = machine.handle(Asked(9, FinishWork()), 0.2)
    assert not sent(effects, Finish)
    assert sent(effects, PieceProbe) == [PieceProbe(ring, 0, 1)]
    effects = machine.handle(Received("w-1", MissingPieces(ring, 0, (), (1,), 1)), 0.3)
    assert [piece.piece for piece in sent(effects, Piece)] == [1]
    assert not sent(effects, Finish)
    event = {
        "taken": Received("w-1", SumAck(ring, 0)),
        "left": Received("w-1", WorkerLeft(ring, "worker-1", 1)),
        "finished": Received(SCHEDULER, HeartbeatSeen(("worker-1",))),
    }[how]
    assert sent(machine.handle(event, 0.4), Finish) == [Finish(11, (1, 1))]


def test_the_next_worker_hears_of_a_sum_that_has_failed(machine):
    """It would acknowledge no later sum before it."""
    ring = machine.peers.ring._name
    machine.handle(Asked(8, reduce_of(np.ones(4, np.float32))), 0.0)
    machine.handle(Asked(7, Cancel(8)), 0.0)
    assert [e.request_id for e in gathered(machine, 1) if isinstance(e, Resolve)] == [2]
    effects = machine.handle(Asked(9, FinishWork()), 0.2)
    assert sent(effects, PieceProbe) == [PieceProbe(ring, 1, 1, (0,))]


def test_a_sum_that_has_failed_at_the_worker_before_fails(machine):
    ring = machine.peers.ring._name
    machine.handle(Asked(8, reduce_of(np.ones(4, np.float32))), 0.0)
    gathered(machine, 1)
    effects = machine.handle(Received("w-1", PieceProbe(ring, 1, 1, (0, 7))), 0.2)
    [resolved] = [e for e in effects if isinstance(e, Resolve)]
    assert resolved.request_id == 8
    assert "has failed at worker-1" in resolved.outcome.error.message
    assert sent(effects, SumAck) == [SumAck(ring, 1)]


def test_a_worker_that_leaves_is_told_at_once_that_its_values_are_here(machine):
    """It waits for that; usually one acknowledgement in eight sums is enough."""
    gathered(machine)
    assert not sent(gathered(machine, 1), SumAck)
    machine.handle(Received("w-1", WorkerLeft(machine.peers.ring._name, "worker-1", 3)), 0.2)
    assert sent(gathered(machine, 2), SumAck) == [SumAck(machine.peers.ring._name, 2)]


def test_a_worker_that_finishes_says_so_in_the_ring_of_a_later_view_too(machine):
    machine.handle(Asked(1, FinishWork()), 1.0)
    members = tuple(
        Member(f"w-{rank}", "worker", rank, 11 + rank, f"unix:///w-{rank}") for rank in range(3)
    )
    effects = machine.handle(Received(SCHEDULER, NewView(View(1, 2, (), members))), 2.0)
    ring = machine.peers.ring._name
    assert set(sent(effects, WorkerLeft)) == {WorkerLeft(ring, "worker-0", 0)}
