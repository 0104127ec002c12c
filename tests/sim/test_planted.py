"""Each planted bug is caught within 200 seeds, by the checker that it is for."""

import importlib.util
from itertools import chain
from pathlib import Path

import pytest

from shoal.sim.scenario import simulate

_spec = importlib.util.spec_from_file_location(
    "planted_bugs", Path(__file__).parent / "planted_bugs.py"
)
planted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted)

# bug, the checker (or either of two) that it is for, the seed to begin with: any of the 200 may be
# the one, this only saves time
BUGS = [
    ("duplicate_applied_twice", "exactly once", 31),
    ("pull_admitted_one_clock_early", "freshness own writes", 0),
    ("stale_view_accepted", "view freshness own writes", 6),
    ("parked_pull_forgotten", "invariant forgotten", 0),
    ("advance_overtakes_its_push", "freshness", 0),
    ("pull_overtakes_its_push", "freshness own writes", 0),
    ("late_pull_lands", "late pull", 14),
    ("torn_fragment", "torn called once", 0),
    ("rows_change_on_their_way", "torn", 0),
    ("fragment_applied_twice", "exactly once", 12),
    ("keys_reused_before_they_are_read", "exactly once own writes freshness torn", 0),
    ("call_done_whenever_it_comes", "called once", 131),
    ("key_on_two_servers", "invariant", 59),
    ("dead_worker_counts_on_one_server_only", "split round", 0),
    ("timed_out_push_dropped", "split round", 76),
    ("view_told_before_it_is_persisted", "durable", 0),
    ("scheduler_forgets_to_persist", "durable", 0),
    ("frozen_server_acts", "view", 0),
    ("credit_held_until_applied", "stuck", 0),
    ("advance_given_up_with_its_request", "stuck", 0),
]


@pytest.mark.parametrize(("bug", "checker", "first"), BUGS, ids=[bug for bug, _, _ in BUGS])
def test_is_caught_within_200_seeds(bug, checker, first):
    for seed in chain(range(first, 200), range(first)):
        report = simulate(seed, planted=getattr(planted, bug))
        if report.violation:
            assert report.checker in checker, report.violation
            healthy = simulate(seed)
            assert not healthy.violation, healthy.violation
            return
    pytest.fail(f"{bug} was not caught within 200 seeds")


def test_an_unseeded_choice_shows_in_the_trace_hash():
    hashes = {simulate(0, planted=planted.unseeded_choice).trace_hash for _ in range(3)}
    assert len(hashes) > 1
