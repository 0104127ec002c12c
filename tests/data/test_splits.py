"""`data.splits`: splits are complete, disjoint without redundancy, balanced and seeded."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.splits import Assignment, plan_splits, seeded
from shoal.errors import InvalidValue

IID, NONIID = Assignment("iid"), Assignment("noniid")


def plan(labels: Any, workers: int, **options: Any) -> list[np.ndarray]:
    options = {"assignment": IID, "block_size": 1, "redundancy": 1, "seed": 0} | options
    return plan_splits(np.asarray(labels), workers, **options)


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `plan_splits` that leave no worker without a block."""
    workers = draw(st.integers(1, 7))
    redundancy = draw(st.integers(1, workers))
    block_size = draw(st.integers(1, 9))
    blocks = draw(st.integers(workers, 6 * workers))
    samples = (blocks - 1) * block_size + draw(st.integers(1, block_size))
    weights = draw(st.lists(st.integers(0, 5), min_size=workers, max_size=workers))
    kinds = [IID, NONIID]
    # blocks >= the sum of weights: proportional parts of 1 or more for each weight of 1 or more
    if sum(weight > 0 for weight in weights) >= redundancy and blocks >= sum(weights):
        kinds.append(Assignment("static", tuple(weights)))
    return {
        "labels": draw(st.lists(st.integers(0, 3), min_size=samples, max_size=samples)),
        "workers": workers,
        "assignment": draw(st.sampled_from(kinds)),
        "block_size": min(block_size, samples),
        "redundancy": redundancy,
        "seed": draw(st.integers(0, 2**40)),
    }


@given(plans())
def test_every_sample_goes_to_exactly_redundancy_distinct_workers(
    given_plan: dict[str, Any],
) -> None:
    splits = plan(**given_plan)

    assert len(splits) == given_plan["workers"]
    for split in splits:
        assert split.dtype == np.int64
        assert len(set(split.tolist())) == len(split), "a worker holds a sample twice"
    holders = Counter(sample for split in splits for sample in split.tolist())
    assert holders == dict.fromkeys(range(len(given_plan["labels"])), given_plan["redundancy"])


@given(plans())
def test_blocks_stay_whole_and_are_dealt_evenly(given_plan: dict[str, Any]) -> None:
    splits = plan(**given_plan)
    size, assignment = given_plan["block_size"], given_plan["assignment"]

    # One block may be short, so that counting blocks rounds up.
    held = [-(-len(split) // size) for split in splits]
    blocks = -(-len(given_plan["labels"]) // size)
    assert sum(held) == blocks * given_plan["redundancy"]
    if assignment.kind != "static":
        assert max(held) - min(held) <= 1
    elif given_plan["redundancy"] == 1:
        total = sum(assignment.weights)
        for share, weight in zip(held, assignment.weights, strict=True):
            assert abs(share - blocks * weight / total) < 1


@given(plans())
def test_a_plan_is_a_pure_function_of_its_arguments(given_plan: dict[str, Any]) -> None:
    once, again = plan(**given_plan), plan(**given_plan)
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))


def test_another_seed_is_another_plan() -> None:
    labels = np.zeros(100)
    for assignment in (IID, NONIID, Assignment("static", (1, 1))):
        first = plan(labels, 2, assignment=assignment, seed=1)
        second = plan(labels, 2, assignment=assignment, seed=2)
        assert not np.array_equal(first[0], second[0])


def test_iid_deals_round_robin_over_the_seeded_order() -> None:
    order = seeded(1, 7).permutation(10)
    splits = plan(np.zeros(10), 3, seed=7)
    assert [split.tolist() for split in splits] == [order[rank::3].tolist() for rank in range(3)]


def test_iid_workers_see_all_classes_and_noniid_workers_few() -> None:
    labels = np.arange(1000) % 10
    assert all(len(set(labels[split])) == 10 for split in plan(labels, 5))
    noniid = plan(labels, 5, assignment=NONIID)
    assert [sorted(set(labels[split].tolist())) for split in noniid] == [
        [2 * rank, 2 * rank + 1] for rank in range(5)
    ]


def test_noniid_splits_are_contiguous_runs_of_the_labels_with_ties_at_random() -> None:
    labels = np.arange(40) % 4
    splits = plan(labels, 3, assignment=NONIID, block_size=3)
    seen = labels[np.concatenate(splits)]
    assert all(a <= b for a, b in pairwise(seen.tolist()))
    first_class = np.concatenate(splits)[:10].tolist()
    assert sorted(first_class) == list(range(0, 40, 4))
    assert first_class != sorted(first_class)


def test_static_weights_share_out_the_blocks() -> None:
    splits = plan(np.zeros(80), 3, assignment=Assignment.parse("static:2,1,1"), block_size=10)
    assert [len(split) for split in splits] == [40, 20, 20]


def test_a_static_weight_of_zero_is_an_empty_split() -> None:
    splits = plan(np.zeros(16), 3, assignment=Assignment.parse("static:10,6,0"))
    assert [len(split) for split in splits] == [10, 6, 0]


def test_redundant_static_shares_are_capped_at_one_copy_a_worker() -> None:
    # 8 copies at 3:1:1 would give worker 0 nearly 5 of the 4 blocks
    splits = plan(np.zeros(4), 3, assignment=Assignment("static", (3, 1, 1)), redundancy=2)
    assert [len(split) for split in splits] == [4, 2, 2]


def test_block_size_may_be_the_whole_data() -> None:
    assert sorted(plan(np.zeros(5), 1, block_size=5)[0].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "at least 1 worker, not 0"),
        ({"block_size": 0}, "block size 0 is out of range: 1 to 12"),
        ({"block_size": 13}, "block size 13 is out of range: 1 to 12"),
        ({"redundancy": 0}, "redundancy 0 is out of range: 1 to 3"),
        ({"redundancy": 4}, "redundancy 4 is out of range: 1 to 3"),
        ({"seed": -1}, "seed -1 must be >= 0"),
        ({"block_size": 6}, "make 2 blocks, which leaves nothing for 1 of 3 workers"),
        ({"assignment": Assignment("static", (1, 1))}, "has 2 weights for 3 workers"),
        (
            {"assignment": Assignment("static", (1, 0, 0)), "redundancy": 2},
            "redundancy 2 needs as many workers with a weight above 0",
        ),
        ({"assignment": Assignment("static", (1000, 1, 0))}, "leaves nothing for 1 of 3 workers"),
        ({"labels": np.zeros(0)}, r"n >= 1, not \(0,\)"),
        ({"labels": np.zeros((3, 2))}, r"n >= 1, not \(3, 2\)"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        plan(**({"labels": np.zeros(12), "workers": 3} | options))


@pytest.mark.parametrize("text", ["iid", "noniid", "static:2,1,1", "static:1", "static:0,3"])
def test_an_assignment_is_its_text(text: str) -> None:
    assert str(Assignment.parse(text)) == text
    assert Assignment.parse(f" {text} ") == Assignment.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "IID", "iid:", "iid:1", "noniid:2", "static", "static:", "static:a", "static:1,,2",
     "static:-1,2", "static:0,0", "static:1.5,1", "static:²", "dynamic"],
)  # fmt: skip
def test_a_bad_assignment_is_told_the_forms(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"'iid', 'noniid' or 'static:W,W,\.\.\.'"):
        Assignment.parse(text)


def test_an_assignment_cannot_be_built_wrong() -> None:
    for kind, weights in [("iid", (1,)), ("static", ()), ("static", (-1, 2)), ("other", ())]:
        with pytest.raises(InvalidValue, match="give 'iid'"):
            Assignment(kind, weights)  # type: ignore[arg-type]
