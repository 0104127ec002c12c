"""A round's pushes become one update: sums, weighted means, and rows that some leave out."""

from functools import partial

import pytest
import torch

from shoal.keys import KeyRange
from shoal.protocol.machine import Loan
from shoal.tables.dense.shard import DenseShard
from tests.tables.dense.pushes import WIDTH, Push, column, one, send_round, some, stage, table


def test_a_merged_round_is_one_update():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), value) for value in (1.0, 2.0, 4.0)]
    send_round(shard, pushed)
    assert column(shard) == [8.0] * 10
    assert shard.versions == [1, 1, 1]


def test_a_mean_is_weighted_by_the_pushes_weights():
    """(1 x 8 + 3 x 4) / (1 + 3) = 5."""
    shard = DenseShard(table(merge="mean"), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), 8.0, weight=1.0), one(KeyRange(0, 10), 4.0, weight=3.0)]
    send_round(shard, pushed)
    assert column(shard) == [6.0] * 10


@pytest.mark.parametrize(
    ("merge", "trim", "pushes", "merged"),
    [
        ("median", 0.0, [1, 2, 99], 2),
        ("median", 0.0, [4, 1, 2, 99], 3),
        ("median", 0.0, [7], 7),
        ("median", 0.0, [7, 8], 7.5),
        ("trimmed_mean", 0.25, [-50, 1, 3, 99], 2),
        ("trimmed_mean", 0.125, [-50, 1, 2, 3, 4, 5, 6, 99], 3.5),
        ("trimmed_mean", 0.1, [1, 2, 6], 3),  # floor(0.3): nothing is left out
    ],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_robust_merge_has_no_weights_and_leaves_outliers_out(merge, trim, pushes, merged, keyed):
    shard = DenseShard(table(merge=merge, trim=trim), KeyRange(0, 10))
    rows = KeyRange(0, 10)
    pushed = [one(rows, value, weight=1.0 + at) for at, value in enumerate(pushes)]
    if keyed:
        pushed = [some(rows, list(range(10)), value) for value in pushes]
    send_round(shard, pushed)
    assert column(shard) == [1.0 + merged] * 10


def test_a_row_in_the_range_without_a_value_counts_as_zero():
    shard = DenseShard(table(4, merge="mean"), KeyRange(0, 4))
    pushed = [some(KeyRange(0, 4), [1, 2], 8.0), some(KeyRange(0, 4), [2, 3], 4.0)]
    send_round(shard, pushed)
    assert column(shard) == [1.0, 5.0, 7.0, 3.0]


@pytest.mark.parametrize("fragment_rows", [1, 2, 4, 8])
def test_the_divisor_of_a_row_does_not_depend_on_its_fragment(fragment_rows):
    """Rows 0 to 2 are named by one push, 2 to 4 by two, 4 to 8 by the other."""
    shard = DenseShard(table(8, fragment_rows, merge="mean"), KeyRange(0, 8))
    pushed = [one(KeyRange(0, 4), 8.0), some(KeyRange(2, 8), [2, 4, 5], 4.0)]
    send_round(shard, pushed)
    assert column(shard) == [9.0, 9.0, 7.0, 5.0, 5.0, 5.0, 1.0, 1.0]


def test_a_fragment_counts_a_round_once():
    shard = DenseShard(table(8, 8), KeyRange(0, 8))
    pushed = [one(KeyRange(0, 3), 1.0), one(KeyRange(2, 5), 1.0), some(KeyRange(6, 8), [7], 1.0)]
    send_round(shard, pushed)
    assert column(shard) == [2.0, 2.0, 3.0, 2.0, 2.0, 1.0, 1.0, 2.0]
    assert shard.versions == [1]


def test_a_round_may_mix_whole_and_keyed_pushes():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), 1.0), some(KeyRange(0, 10), [0, 9], 10.0)]
    send_round(shard, pushed)
    assert column(shard) == [12.0, *[2.0] * 8, 12.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("merge", ["sum", "mean", "median", "trimmed_mean"])
@pytest.mark.parametrize("borrowed", [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("weights", [(1.0,), (2.0, 2.0), (1.0, 3.0), (1.0, 1.0, 3.0)])
def test_values_in_their_senders_memory_merge_bitwise_alike_and_stay_as_they_are(
    dtype, merge, borrowed, weights
):
    spec = table(10, 4, merge=merge, dtype=dtype)
    shards = [DenseShard(spec, spec.keys) for _ in range(2)]
    torch.manual_seed(0)
    for _ in range(3):  # scratch memory and pools are used again
        values = [torch.randn(10, WIDTH).tolist() for _ in weights]
        pushed = [
            Push(spec.keys, None, each, weight)
            for each, weight in zip(values, weights, strict=True)
        ]
        send_round(shards[0], pushed)
        ended: list[int] = []
        merged, memories = [], []
        for rank, each in enumerate(pushed):
            staged = stage(shards[1], each)
            if rank in borrowed:
                memories.append(bytearray(staged.views[0]))
                lent, loan = memoryview(memories[-1]).toreadonly(), Loan()
                loan.ends.append(partial(ended.append, rank))
                merged.append((each.weight, None, staged.borrowed(lent, loan)))
                shards[1].release(staged)
                del loan
            else:
                merged.append((each.weight, None, staged))
        before = [bytes(each) for each in memories]
        assert not ended
        shards[1].merge(merged)
        assert memories == before, "it was written to"
        assert sorted(ended) == [rank for rank in borrowed if rank < len(weights)]
        assert torch.equal(shards[0].rows, shards[1].rows)
        assert shards[0].versions == shards[1].versions


def test_a_push_for_part_of_the_rows_may_be_in_its_senders_memory():
    spec = table(10, 4)
    shard = DenseShard(spec, spec.keys)
    wide, narrow = one(KeyRange(0, 10), 1.0), one(KeyRange(3, 7), 10.0)
    staged = [stage(shard, each) for each in (wide, narrow)]
    for number in (0, 1):
        memory = memoryview(bytes(staged[number].views[0]))
        staged[number] = staged[number].borrowed(memory, Loan())
    shard.merge([(1.0, None, each) for each in staged])
    assert column(shard) == [2.0] * 3 + [12.0] * 4 + [2.0] * 3
