"""Each planted bug is caught within 200 seeds, by the checker that it is for.

Those of chains and of groups within 500.
"""

import importlib.util
from itertools import chain
from pathlib import Path

import pytest

from shoal.simulation.scenario import simulate


def _module(name):
    spec = importlib.util.spec_from_file_location(
        name, Path(__file__).parent / "planted" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


planted, in_chains = _module("requests"), _module("replication")
in_groups, in_detection = _module("groups"), _module("failure_detection")

# bug, the checker (or either of two) that it is for, the seed to begin with: any of the 200 may be
# the one, this only saves time
BUGS = [
    ("duplicate_applied_twice", "exactly once", 51),
    ("pull_admitted_one_clock_early", "freshness own writes", 1),
    ("stale_view_accepted", "view freshness own writes", 32),
    ("parked_pull_forgotten", "invariant forgotten", 1),
    ("advance_overtakes_its_push", "freshness split round", 10),
    ("pull_overtakes_its_push", "freshness own writes", 11),
    ("late_pull_lands", "late pull", 77),
    ("torn_fragment", "torn called once", 0),
    ("rows_change_on_their_way", "torn", 29),
    ("fragment_applied_twice", "exactly once", 134),
    ("keys_reused_before_they_are_read", "exactly once own writes freshness torn", 1),
    ("call_done_whenever_it_comes", "called once", 67),
    ("key_on_two_servers", "invariant stuck", 14),
    ("dead_worker_counts_on_one_server_only", "split round cut", 118),
    ("timed_out_push_dropped", "split round cut", 174),
    ("view_told_before_it_is_persisted", "durable", 0),
    ("scheduler_forgets_to_persist", "durable", 0),
    ("frozen_server_acts", "view", 1),
    ("credit_held_until_applied", "stuck", 4),
    ("advance_given_up_with_its_request", "stuck", 10),
    ("lease_begun_again", "leased", 2),
    ("lease_dies_with_its_worker", "leased", 2),
    ("lease_told_before_it_is_persisted", "durable", 2),
    ("every_question_is_a_new_one", "leased durable", 10),
    ("change_is_not_marked", "cut", 26),
]

IN_CHAINS = [
    ("acknowledged_at_the_head", "own writes freshness lost split round cut", 16),
    ("window_not_handed_off", "exactly once", 438),
    ("clock_not_replicated", "freshness own writes", 3),
    ("new_head_trusts_its_clocks", "freshness split round cut", 44),
    ("undone_is_not_sent_again", "invariant", 95),
    ("done_again", "exactly once lost replicas", 172),
    ("requests_outlive_their_view", "freshness own writes lost unreplicated", 8),
    ("worker_keeps_to_the_dead", "stuck misfit", 8),
    ("round_done_is_forgotten", "own writes freshness lost", 31),
    ("credit_given_back_when_all_have_it", "stuck", 161),
    ("pull_before_the_tail_has_its_push", "own writes", 73),
    ("head_answers_pulls", "unreplicated", 3),
    ("old_tail_reads", "view", 32),
    ("zombie_accepted", "forgotten", 49),
    ("chain_not_cut", "tiling", 3),
    ("death_ends_the_run", "named death", 3),
    ("learner_knows_no_past", "exactly once", 142),
    ("learner_takes_its_place_too_early", "freshness own writes lost replicas invariant short", 94),
    ("open_rounds_stay_behind", "split round cut", 434),
    ("clock_by_another_way", "freshness own writes", 295),
    ("checkpoint_takes_what_is_there", "cut", 8),
    ("eviction_not_told", "replicas", 157),
    ("reads_make_room", "replicas invariant", 32),
    ("last_server_keeps_checks", "short", 230),
    ("learner_stays_one", "short", 3),
    ("checkpoint_without_marker", "cut", 13),
    ("held_push_is_forgotten_by_its_reader", "own writes", 13),
    ("replica_takes_no_marker", "cut", 35),
    ("call_stays_at_its_head", "replicas called once", 8),
    ("call_answered_at_its_head", "called once", 227),
]

RARE = [  # within 1,000
    ("answers_stay_behind", "called once", 796),
]

IN_DETECTION = [
    ("who_stood_still_blames_the_others", "blamed", 201),
    ("sole_copy_is_given_up", "given up", 22),
]

IN_GROUPS = [
    ("clock_of_another_group", "own writes freshness", 3),
    ("told_once_for_all_groups", "own writes freshness", 3),
    ("new_head_asks_one_group", "split round", 287),
    ("groups_begin_alike", "own writes", 6),
    ("visitor_waits", "visitor", 3),
    ("group_begins_incomplete", "group", 78),
    ("rounds_of_all_groups", "invariant own writes", 3),
    ("guests_are_saved", "cut", 3),
    ("one_ledger", "leased", 13),
]


@pytest.mark.parametrize(("bug", "checker", "first"), BUGS, ids=[bug for bug, _, _ in BUGS])
def test_is_caught_within_200_seeds(bug, checker, first):
    _is_caught(getattr(planted, bug), checker, first, 200)


@pytest.mark.parametrize(("bug", "checker", "first"), IN_CHAINS, ids=[b for b, _, _ in IN_CHAINS])
def test_is_caught_within_500_seeds(bug, checker, first):
    _is_caught(getattr(in_chains, bug), checker, first, 500)


@pytest.mark.parametrize(("bug", "checker", "first"), RARE, ids=[bug for bug, _, _ in RARE])
def test_what_is_rare_is_caught_within_1000_seeds(bug, checker, first):
    _is_caught(getattr(in_chains, bug), checker, first, 1000)


@pytest.mark.parametrize(
    ("bug", "checker", "first"), IN_DETECTION, ids=[bug for bug, _, _ in IN_DETECTION]
)
def test_of_detection_is_caught_within_500_seeds(bug, checker, first):
    _is_caught(getattr(in_detection, bug), checker, first, 500)


@pytest.mark.parametrize(("bug", "checker", "first"), IN_GROUPS, ids=[b for b, _, _ in IN_GROUPS])
def test_of_groups_is_caught_within_500_seeds(bug, checker, first):
    _is_caught(getattr(in_groups, bug), checker, first, 500)


def _is_caught(bug, checker, first, seeds):
    for seed in chain(range(first, seeds), range(first)):
        report = simulate(seed, planted=bug)
        if report.violation:
            assert report.checker in checker, report.violation
            healthy = simulate(seed)
            assert not healthy.violation, healthy.violation
            return
    pytest.fail(f"it was not caught within {seeds} seeds")


def test_an_unseeded_choice_shows_in_the_trace_hash():
    hashes = {simulate(0, planted=planted.unseeded_choice).trace_hash for _ in range(3)}
    assert len(hashes) > 1
