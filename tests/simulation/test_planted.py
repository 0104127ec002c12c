"""Each planted bug is caught at its pinned seed, by its pinned checker.

`python -m tests.simulation.planted_table --write` finds the seeds, all of them within 300.
"""

import functools

import pytest

from shoal.simulation.scenario import simulate
from tests.simulation.planted_table import GAPS, SEEDS, UNSEEDED, bugs, load, pins, run

pytestmark = pytest.mark.seeds
PINS = pins()


@functools.cache
def violation_of(seed):
    """What the code as it is does wrong at a seed; many bugs are pinned to the same ones."""
    return simulate(seed).violation


CAUGHT = [each for each in bugs() if each[1] not in GAPS]


@pytest.mark.parametrize(("module", "bug"), CAUGHT, ids=lambda name: name)
def test_a_planted_bug_is_caught_at_its_pinned_seed(module, bug):
    pin = PINS[bug]
    assert 0 <= pin["seed"] < SEEDS
    report = run(module, bug, pin["seed"])
    assert report.checker == pin["checker"], report.violation or "it was not caught"
    assert not violation_of(pin["seed"])


def test_every_planted_bug_has_a_pin_or_is_a_known_gap():
    assert PINS.keys() | GAPS == {bug for _, bug in bugs()}
    assert not PINS.keys() & GAPS


def test_an_unseeded_choice_shows_in_the_trace_hash():
    choice = getattr(load("requests"), UNSEEDED)
    hashes = {simulate(0, planted=choice).trace_hash for _ in range(3)}
    assert len(hashes) > 1
