"""Workers and their neighbours under faults; and each bug that somebody could write, caught."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from shoal.errors import InvariantBroken
from shoal.protocol.machine import Sink
from shoal.protocol.worker.peers.links import Link
from shoal.protocol.worker.peers.neighbours import Neighbours
from shoal.simulation.checkers.history import Violation
from shoal.simulation.workloads.neighbours import NeighboursScenario

SEEDS = 120


def simulate(seed):
    """Run a seed to its end; returns its scenario, and the violation or an empty text."""
    scenario = NeighboursScenario(seed)
    try:
        scenario.run()
    except (Violation, InvariantBroken) as found:
        return scenario, str(found)
    return scenario, ""


def test_neighbours_get_what_was_sent_whatever_happens_between_them():
    lost = twice = unacknowledged = killed = 0
    for seed in range(SEEDS):
        scenario, violation = simulate(seed)
        assert not violation, f"seed {seed}: {violation}"
        coverage = scenario.world.coverage
        lost += coverage["loss of NeighbourPiece"] > 0
        twice += coverage["duplicate of NeighbourPiece"] > 0
        unacknowledged += coverage["loss of NeighbourAck"] > 0
        killed += bool(scenario.victim) and not scenario.failed
    assert min(lost, twice, unacknowledged, killed) >= 10, "the seeds do not reach their faults"


def test_the_same_seed_is_the_same_run():
    hashes = {simulate(7)[0].world.trace.hash for _ in range(2)}
    assert len(hashes) == 1


@contextmanager
def memory_reused_before_it_is_acknowledged():
    with patch.object(Link, "keeps", lambda self, values: False):
        yield


@contextmanager
def the_newest_in_place_of_the_next():
    """In order, the versions that wait are dropped for a newer one."""
    right = Link.offer

    def offer(self, values, ordered, now, out):
        right(self, values, False, now, out)

    with patch.object(Link, "offer", offer):
        yield


@contextmanager
def the_newest_is_taken_in_order():
    right = Link.take

    def take(self, due, ordered):
        return right(self, due, False)

    with patch.object(Link, "take", take):
        yield


@contextmanager
def nothing_is_asked_for_again():
    with patch.object(Link, "_probe", lambda self, out: None):
        yield


@contextmanager
def a_revoked_copy_counts():
    """A payload that was read into scratch memory, because another copy came, counts as landed."""
    right = Link.landed

    def landed(self, message, payload, out):
        if payload is not None and payload.revoked and self._arriving is not None:
            payload = Sink([], self._arriving)
        return right(self, message, payload, out)

    with patch.object(Link, "landed", landed):
        yield


@contextmanager
def an_earlier_phase_counts():
    right = Link.take

    def take(self, due, ordered):
        return right(self, (0, due[1]), ordered)

    with patch.object(Link, "take", take):
        yield


@contextmanager
def death_is_not_noticed():
    """A worker keeps its links to dead workers."""
    right = Neighbours.adopt

    def adopt(self, view, now, out):
        if not self._members:
            right(self, view, now, out)

    with patch.object(Neighbours, "adopt", adopt):
        yield


@contextmanager
def new_neighbours_get_nothing():
    """A worker that becomes a neighbour, because another one died, does not get what was sent."""
    right = Neighbours._connect

    def connect(self, now, out):
        kept, self._sent = self._sent, []
        right(self, now, out)
        self._sent = kept

    with patch.object(Neighbours, "_connect", connect):
        yield


@pytest.mark.parametrize(
    ("planted", "checker"),
    [
        (memory_reused_before_it_is_acknowledged, "version"),
        (the_newest_in_place_of_the_next, "lead"),
        (the_newest_is_taken_in_order, "lead"),
        (nothing_is_asked_for_again, "stuck"),
        (a_revoked_copy_counts, "version"),
        (an_earlier_phase_counts, "lead"),
        (death_is_not_noticed, "stuck"),
        (new_neighbours_get_nothing, "stuck"),
    ],
)
def test_planted_bugs_are_caught(planted, checker):
    with planted():
        for seed in range(SEEDS):
            _, violation = simulate(seed)
            if violation:
                assert violation.partition(":")[0] == checker
                return
    pytest.fail("no seed finds it")
