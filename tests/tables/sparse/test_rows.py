"""What the rows of a sparse table take, and which keys are new."""

import numpy as np
import pytest

from shoal.tables.init import Init
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec

WIDTH = 4


def shard_of(access="adam", **options):
    spec = TableSpec("e", kind="sparse", row_shape=(WIDTH,), access=Access(access), **options)
    return open_shard(spec.cut(1), spec.keys)


def staged(shard, keys):
    push = shard.stage(shard.held, len(keys))
    push.keys[:], push.values[:] = keys, 1.0
    return push


def pulled(shard, keys, only_read=False):
    pull = shard.stage_keys(shard.held, len(keys))
    pull.keys[:] = keys
    if only_read:
        shard.only_read(pull)
    return np.frombuffer(shard.read_keys(pull), np.float32).reshape(-1, WIDTH)


def taken(shard):
    """The memory that is in use: rows and keys that were written, and all pairs of segments."""
    index = shard._index
    records = len(shard) * (8 + shard.stride * shard.dtype.itemsize)
    return records + 16 * int(index._segments.pairs.sum()) + index._segments._scratch.nbytes // 2


@pytest.mark.parametrize("checkpointed", [False, True])
def test_nbytes_is_never_less_than_what_is_taken(checkpointed):
    """At every step of growth, in steps of some rows and of many."""
    shard, rng = shard_of(), np.random.default_rng(1)
    assert taken(shard) <= shard.nbytes
    if checkpointed:
        shard.state(copied=True)
    for count in [1, 10, 100, 1000] * 10 + [20_000] * 5:
        before = shard.nbytes
        shard.apply(staged(shard, rng.integers(0, 1 << 63, count, np.uint64)), None)
        assert taken(shard) + 2 * checkpointed * len(shard) <= shard.nbytes
        assert shard.nbytes - before <= count * shard.new_row_bytes
    assert shard.nbytes < 1.5 * taken(shard)


def test_new_keys_are_counted_once_over_several_pushes():
    shard = shard_of()
    shard.apply(staged(shard, [1, 2]), None)
    pushes = [staged(shard, keys) for keys in ([1, 2], [2, 3, 3], [3, 4])]
    assert [shard.new_keys(pushes[:n]) for n in range(4)] == [0, 0, 1, 2]
    assert len(shard) == 2


@pytest.mark.parametrize("init", [Init("normal", 0.0, 1.0, seed=3), Init("constant", 2.0)])
def test_a_pull_that_only_reads_has_the_same_rows_and_creates_none(init):
    shard, other = shard_of(init=init), shard_of(init=init)
    for each in (shard, other):
        each.apply(staged(each, [5, 7]), None)
    keys = [9, 5, 8, 7, 8]
    assert np.array_equal(pulled(shard, keys, only_read=True), pulled(other, keys))
    assert len(shard) == 2
    assert len(other) == 4
