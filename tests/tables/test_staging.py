"""Staging: what comes in changes no row before it is whole and checked; its memory is reused."""

import numpy as np
import pytest

from shoal.keys import KeyRange
from shoal.tables.dense.rows import DTYPES
from shoal.tables.dense.shard import DenseShard
from tests.tables.dense.pushes import (
    WIDTH,
    Push,
    column,
    one,
    send,
    send_round,
    some,
    stage,
    table,
)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ([], ""),
        ([4], ""),
        ([4, 6, 7], ""),
        ([3, 5], "keys outside the named range [4:8)"),
        ([5, 8], "keys outside the named range [4:8)"),
        ([-1], "keys outside the named range [4:8)"),
        ([4, 9, 7], "keys are not strictly increasing"),  # 9 hides between two good ones
        ([4, 6, 5, 7], "keys are not strictly increasing"),
        ([4, 5, 5], "keys are not strictly increasing"),
    ],
)
def test_a_staged_push_with_bad_keys_says_its_problem(keys, problem):
    shard = DenseShard(table(), KeyRange(0, 10))
    for staged in (
        shard.stage(KeyRange(4, 8), len(keys)),
        shard.stage_keys(KeyRange(4, 8), len(keys)),
    ):
        staged.views[0][:] = np.array(keys, np.int64).tobytes()
        assert staged.problem() == problem


def test_a_staged_push_of_a_range_has_no_problem():
    shard = DenseShard(table(), KeyRange(0, 10))
    assert shard.stage(KeyRange(4, 8), -1).problem() == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_staged_views_are_as_long_as_the_payload(dtype):
    """Odd counts too: values follow the keys where their dtype may be read from."""
    shard = DenseShard(table(dtype=dtype, row_shape=(3,)), KeyRange(0, 10))
    size = 3 * shard.dtype.itemsize
    whole, keyed = shard.stage(KeyRange(1, 8), -1), shard.stage(KeyRange(1, 8), 5)
    assert [view.nbytes for view in whole.views] == [7 * size]
    assert [view.nbytes for view in keyed.views] == [40, 5 * size]
    assert [view.nbytes for view in shard.stage_keys(KeyRange(1, 8), 5).views] == [40]
    assert [view.nbytes for view in shard.stage(KeyRange(1, 8), 0).views] == [0]
    assert keyed.values.data_ptr() % 16 == 0


def test_a_push_that_is_not_complete_changes_no_row():
    """DESIGN section 4, rule 1: a sender that dies half-way changes nothing."""
    shard = DenseShard(table(), KeyRange(0, 10))
    stage(shard, one(KeyRange(0, 10), 7.0))
    assert column(shard) == [1.0] * 10
    assert shard.versions == [0, 0, 0]


@pytest.mark.parametrize("how", ["apply", "write", "merge", "release"])
def test_staging_memory_is_reused(how):
    shard = DenseShard(table(), KeyRange(0, 10))

    def run(push: Push) -> int:
        return send(shard, how, push).values.data_ptr()

    assert run(one(KeyRange(0, 10), 1.0)) == run(one(KeyRange(0, 10), 2.0))
    assert run(some(KeyRange(0, 10), [1, 2, 3], 1.0)) == run(some(KeyRange(0, 10), [4, 5, 6], 1.0))


def test_staged_pushes_do_not_share_memory():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), float(value)) for value in range(5)]
    for _ in range(2):  # the second time, from the pool
        send_round(shard, pushed)
    assert column(shard) == [21.0] * 10


def test_pushes_of_many_sizes_do_not_accumulate_memory():
    """A thousand key counts, one after the other: a few buffers, each at most twice too large."""
    shard = DenseShard(table(1000, 100), KeyRange(0, 1000))
    for count in range(1, 1000):
        shard.apply(stage(shard, some(KeyRange(0, 1000), list(range(count)), 1.0)), None)
    kept = [memory.nbytes for free in shard._staging._free.values() for memory in free]
    assert sum(kept) <= 4 * 1000 * (8 + 4 * WIDTH)


def test_memory_of_a_burst_of_pushes_is_freed():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), 1.0)] * 50
    send_round(shard, pushed)
    assert len([memory for free in shard._staging._free.values() for memory in free]) <= 8
