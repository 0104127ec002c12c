"""Sums around a ring of workers, under faults; and each bug that somebody could write, caught."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from shoal.errors import InvariantBroken
from shoal.protocol.worker.peers import ring, sums
from shoal.protocol.worker.peers.ring import Ring
from shoal.protocol.worker.peers.sums import Sum
from shoal.simulation.checkers.history import Violation
from shoal.simulation.workloads.all_reduce import RingScenario

SEEDS = 150


def simulate_ring(seed):
    """Run a seed to its end; returns its scenario, and the violation or an empty text."""
    scenario = RingScenario(seed)
    try:
        scenario.run()
    except (Violation, InvariantBroken) as found:
        return scenario, str(found)
    return scenario, ""


def test_sums_are_right_whatever_happens_between_the_workers():
    lost = killed = again = 0
    for seed in range(SEEDS):
        scenario, violation = simulate_ring(seed)
        assert not violation, f"seed {seed}: {violation}"
        coverage = scenario.world.coverage
        lost += coverage["loss of Piece"] > 0 and coverage["loss of SumAck"] > 0
        again += coverage["duplicate of Piece"] > 0
        killed += bool(scenario.failed)
    assert min(lost, again, killed) >= 20, "the seeds do not reach what they are for"


def test_the_same_seed_is_the_same_run():
    hashes = {simulate_ring(7)[0].world.trace.hash for _ in range(2)}
    assert len(hashes) == 1


@contextmanager
def piece_added_twice():
    """How much of a piece was added is forgotten when its message comes again."""
    right = Ring._take_partial

    def take(self, number, one, piece, payload, out):
        if payload.landed == 1:
            one.added.pop(piece, None)
        right(self, number, one, piece, payload, out)

    with patch.object(Ring, "_take_partial", take):
        yield


@contextmanager
def done_before_it_is_taken():
    """The tensor is the caller's again as soon as the sum is here."""
    right = Ring._look

    def look(self, number, one, out):
        one.taken = True
        right(self, number, one, out)

    with patch.object(Ring, "_look", look):
        yield


@contextmanager
def partial_sum_passed_on_as_whole():
    """The worker before the last takes its sum for the whole one."""
    right = Sum.ends_here

    def ends(self, piece):
        early = self.workers > 2 and self.edges[piece][0] == (self.index + 2) % self.workers
        return right(self, piece) or early

    with patch.object(Sum, "ends_here", ends):
        yield


@contextmanager
def nothing_is_asked_for_again():
    with patch.object(Ring, "_probe", lambda self, number, one, out: None):
        yield


@contextmanager
def death_is_not_noticed():
    """The ring never learns that its members have changed."""
    right = Ring.adopt

    def adopt(self, view, out):
        if not self._members:
            right(self, view, out)

    with patch.object(Ring, "adopt", adopt):
        yield


@contextmanager
def farewell_before_the_next_worker_has_its_sum():
    """A worker finishes when its own sums are complete; its process may end then."""
    with patch.object(Ring, "settled", property(lambda self: True)):
        yield


@contextmanager
def the_next_worker_is_not_told_of_failed_sums():
    """It waits for them, and acknowledges none that follows."""
    with patch.object(ring, "FAILED_TOLD", 0):
        yield


@contextmanager
def gathered_values_in_the_place_of_the_next_worker():
    right = sums.cut_gathered

    def cut(nbytes, workers, most):
        shift = nbytes * workers
        return tuple(
            (segment, (start + nbytes) % shift, (start + nbytes) % shift + stop - start)
            for segment, start, stop in right(nbytes, workers, most)
        )

    with patch.object(sums, "cut_gathered", cut):
        yield


@pytest.mark.parametrize(
    "planted",
    [
        gathered_values_in_the_place_of_the_next_worker,
        the_next_worker_is_not_told_of_failed_sums,
        farewell_before_the_next_worker_has_its_sum,
        piece_added_twice,
        done_before_it_is_taken,
        partial_sum_passed_on_as_whole,
        nothing_is_asked_for_again,
        death_is_not_noticed,
    ],
)
def test_planted_bugs_are_caught(planted):
    with planted():
        assert any(simulate_ring(seed)[1] for seed in range(SEEDS))
