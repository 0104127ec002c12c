"""What has changed since a checkpoint: on top of that it makes up all there is."""

import numpy as np
import pytest
import torch

from shoal.keys import KeyRange
from shoal.tables.opening import open_shard
from shoal.tables.snapshots import overlaid
from shoal.tables.spec import Access, TableSpec

ADAGRAD = Access("adagrad", {"lr": 0.1})
SHAPES = {
    "sparse": {},
    "bounded": {"max_rows": 40},
    "lfu": {"max_rows": 40, "evict": "lfu"},
}


def opened(shape):
    spec = TableSpec("t", 0, (2,), kind="sparse", access=ADAGRAD, **SHAPES[shape])
    return open_shard(spec, spec.keys)


def staged(shard, keys, value):
    load = shard.stage(shard.held, len(keys))
    load.keys[:] = keys
    load.values[:] = value
    return load


@pytest.fixture(params=SHAPES)
def shard(request):
    made = opened(request.param)
    made.apply(staged(made, np.arange(100, 130, dtype=np.uint64), 1.0), None)
    return made


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


CHANGES = {
    "a push": lambda shard, keys: shard.apply(staged(shard, keys, 2.0), None),
    "a value that is set": lambda shard, keys: shard.write(staged(shard, keys, 3.0)),
    "a round": lambda shard, keys: shard.merge([(1.0, None, staged(shard, keys, 4.0))]),
    "a restored row": lambda shard, keys: shard.restore(shard.held, other_rows(keys), same=True),
}


def other_rows(keys):
    spec = TableSpec("t", 0, (2,), kind="sparse", access=ADAGRAD)
    other = open_shard(spec, spec.keys)
    other.apply(staged(other, keys, 5.0), None)
    return other.state()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("keys", [[100, 107], [500], [103, 501, 502]], ids=str)
def test_a_base_and_its_changes_make_up_the_whole_state(shard, change, keys):
    before = shard.state(copied=True)
    CHANGES[change](shard, np.array(keys, np.uint64))
    changes = shard.changes()
    assert changes is not None
    assert len(changes["keys"]) == len(keys)
    same(overlaid(before, changes), shard.state())


def test_many_changes_in_a_row_make_up_the_whole_state_under_eviction(shard):
    draw = np.random.default_rng(3)
    whole = shard.state(copied=True)
    for step in range(40):
        keys = np.unique(draw.integers(100, 400, 3)).astype(np.uint64)
        shard.apply(staged(shard, keys, float(step)), None)
        changes = shard.changes()
        whole = overlaid(whole, changes) if changes is not None else shard.state(copied=True)
        same(whole, shard.state())
    assert not shard.spec.max_rows or shard.evicted > 20


def test_changes_may_leave_out_rows_that_were_only_read():
    shard = opened("sparse")
    shard.apply(staged(shard, np.arange(20, dtype=np.uint64), 1.0), None)
    before = shard.state(copied=True)
    load = shard.stage_keys(shard.held, 1)
    load.keys[:] = 77
    shard.read_keys(load)
    same(overlaid(before, shard.changes()), shard.state())


def test_there_are_no_changes_without_a_base_or_if_most_rows_changed(shard):
    assert shard.changes() is None
    shard.state()
    assert shard.changes() is None  # it was not for keeping
    shard.state(copied=True)
    shard.apply(staged(shard, np.arange(100, 120, dtype=np.uint64), 1.0), None)
    assert shard.changes() is None


def test_a_dense_table_has_no_changes_and_is_written_whole():
    dense = TableSpec("d", 4, (2,), access=Access("sum"), fragment_rows=2)
    shard = open_shard(dense, KeyRange(0, 4))
    shard.state(copied=True)
    assert shard.changes() is None


def test_changes_are_those_since_the_last_checkpoint_only(shard):
    shard.state(copied=True)
    for keys in ([100, 101], [103], [100, 500]):
        shard.apply(staged(shard, np.array(keys, np.uint64), 2.0), None)
        changes = shard.changes()
        assert changes is not None
        assert sorted(changes["keys"].tolist()) == keys
