"""What a saved state has to be: no loop is given a length, a place or a count that is none."""

import numpy as np
import pytest
import torch

from shoal.keys import KeyRange
from shoal.tables.opening import open_shard
from shoal.tables.saved import problem_of, problem_of_changes
from shoal.tables.snapshots import overlaid
from shoal.tables.spec import Access, TableSpec

DENSE = TableSpec("w", 12, (2,), access=Access("adam"), fragment_rows=5)
SPARSE = TableSpec("e", row_shape=(3,), kind="sparse", access=Access("adagrad"))
BOUNDED = TableSpec("b", row_shape=(2,), kind="sparse", max_rows=40, access=Access("sum"))
CUSTOM = TableSpec("kv", kind="custom", access=Access("lists"))
HUGE = (1 << 63) - 1


def shard_of(spec):
    shard = open_shard(spec, spec.keys)
    if spec.kind == "custom":
        shard.handler.rows = {key: np.ones(key % 3, np.float32) for key in range(9)}
    elif spec.kind == "sparse":
        push(shard, 0, 30)
    return shard


def push(shard, first, stop):
    staged = shard.stage(shard.held, stop - first)
    staged.keys[:], staged.values[:] = np.arange(first, stop), 1
    shard.apply(staged, None)


def state_of(spec):
    return {name: each.clone() for name, each in shard_of(spec).state().items()}


@pytest.mark.parametrize("spec", [DENSE, SPARSE, BOUNDED, CUSTOM], ids=lambda spec: spec.name)
def test_the_state_of_a_shard_is_right_and_one_without_a_tensor_or_of_another_shape_is_not(spec):
    state = state_of(spec)
    assert problem_of(spec, spec.keys, state) == ""
    for name, tensor in state.items():
        if name.startswith("slot."):
            continue
        without = {other: each for other, each in state.items() if other != name}
        assert problem_of(spec, spec.keys, without)
        for other in (tensor[None], tensor[:-1] if len(tensor) > 1 else tensor[:0]):
            if name != "updates":
                assert problem_of(spec, spec.keys, {**state, name: other}), name
        if name != "values":
            assert problem_of(spec, spec.keys, {**state, name: tensor.to(torch.int16)})


@pytest.mark.parametrize(
    ("spec", "name", "place", "value"),
    [
        (DENSE, "updates", 0, -1),
        (DENSE, "updates", 0, HUGE),
        (SPARSE, "updates", 0, HUGE),
        (BOUNDED, "drawn", 0, 0),
        (BOUNDED, "uses", (0, 0), -1),
        (BOUNDED, "uses", (0, 0), 1 << 32),
        (BOUNDED, "uses", (3, 1), -1),
        (BOUNDED, "uses", (3, 1), HUGE),
        (CUSTOM, "lens", 0, -1),
        (CUSTOM, "lens", 0, 1),
        (CUSTOM, "lens", 0, HUGE),
    ],
)
def test_a_value_that_no_shard_has_is_wrong(spec, name, place, value):
    state = state_of(spec)
    state[name][place] = value
    assert name in problem_of(spec, spec.keys, state)


def test_lens_whose_sum_wraps_around_do_not_add_up():
    """2^61 eight times are 2^64, which is 0 in 64 bits: a loop would write there."""
    state = state_of(CUSTOM)
    state["keys"], state["values"] = torch.arange(8), state["values"][:0]
    state["lens"] = torch.full((8,), 1 << 61)
    assert "lens do not add up" in problem_of(CUSTOM, CUSTOM.keys, state)


def test_a_key_of_other_slots_is_wrong():
    state = state_of(SPARSE)
    assert "none of the slots" in problem_of(SPARSE, KeyRange(0, 2048), state)


def test_records_narrower_than_a_row_are_wrong_and_those_of_another_method_are_not():
    state = state_of(SPARSE)
    narrow = {**state, "records": state["records"][:, :2]}
    assert "fewer than a row's 3" in problem_of(SPARSE, SPARSE.keys, narrow)
    assert problem_of(SPARSE, SPARSE.keys, {**state, "records": state["records"][:, :3]}) == ""


@pytest.fixture
def changed():
    """A state, and what has changed since: two rows, and two new ones."""
    shard = shard_of(SPARSE)
    state = {name: each.clone() for name, each in shard.state(copied=True).items()}
    push(shard, 28, 32)
    return state, shard.changes(), shard.state()


def test_changes_are_right_where_new_rows_follow_the_others(changed):
    state, changes, after = changed
    assert problem_of_changes(state, changes) == ""
    assert torch.equal(overlaid(state, changes)["records"], after["records"])


@pytest.mark.parametrize("value", [-1, 33, 1 << 40, HUGE])
def test_a_place_that_no_row_has_is_wrong(changed, value):
    state, changes, _ = changed
    changes["places"][-1] = value
    assert "place" in problem_of_changes(state, changes)


def test_changes_that_do_not_fit_what_they_change_are_wrong(changed):
    state, changes, _ = changed
    for name in ("keys", "records", "places"):
        without = {other: each for other, each in changes.items() if other != name}
        assert problem_of_changes(state, without)
        assert problem_of_changes(state, {**changes, name: changes[name][1:]})
        assert problem_of_changes(state, {**changes, name: changes[name].to(torch.int16)})
    assert "has no records" in problem_of_changes({"keys": state["keys"]}, changes)
