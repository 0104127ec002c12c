"""Rows that are read once for all workers: each in one batch of an epoch, as the reader gave it."""

import numpy as np
import pytest

from shoal.apps.ctr.leased_rows import LeasedRows, write_rows
from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.spec import CtrSpec


def batch(first, counts):
    """Rows whose label, keys, values and fields follow from their number."""
    numbers = np.arange(first, first + len(counts))
    offsets = np.cumsum(counts) - counts
    keys = np.concatenate([100 * n + np.arange(c) for n, c in zip(numbers, counts, strict=True)])
    return Batch(
        (numbers % 2).astype(np.float32),
        offsets.astype(np.int64),
        keys.astype(np.uint64),
        keys.astype(np.float32) / 2,
        (keys % 7).astype(np.int64),
    )


def rows_of(batch):
    ends = [*batch.offsets[1:], len(batch.keys)]
    for label, begin, end in zip(batch.labels, batch.offsets, ends, strict=True):
        keys = batch.keys[begin:end]
        assert np.array_equal(batch.values[begin:end], keys.astype(np.float32) / 2)
        assert np.array_equal(batch.fields[begin:end], keys.astype(np.int64) % 7)
        yield float(label), tuple(keys.tolist())


def test_rows_may_be_without_keys(tmp_path):
    none = np.zeros(0, np.int64)
    labels = np.ones(3, np.float32)
    bare = Batch(labels, np.zeros(3, np.int64), none.astype(np.uint64), labels[:0], none)
    write_rows(tmp_path / "rows", [bare])
    found = LeasedRows(tmp_path / "rows", CtrSpec(batch_size=2)).batch(0, 0)
    assert (len(found), len(found.keys)) == (2, 0)


@pytest.mark.parametrize("shuffle", [0, 10])
@pytest.mark.parametrize("size", [1, 3, 10, 64])
def test_each_row_is_in_one_batch_of_each_epoch(tmp_path, shuffle, size):
    given = [batch(0, np.array([2, 1, 3])), batch(3, np.array([1])), batch(4, np.array([4, 2, 1]))]
    write_rows(tmp_path / "rows", given)
    rows = LeasedRows(tmp_path / "rows", CtrSpec(batch_size=size, shuffle=shuffle, seed=3))
    expected = [row for each in given for row in rows_of(each)]
    assert len(rows) == -(-7 // size)
    orders = []
    for epoch in (0, 1, 0):
        found = [row for n in range(len(rows)) for row in rows_of(rows.batch(epoch, n))]
        assert sorted(found) == sorted(expected)
        orders.append(found)
    assert orders[0] == orders[2]
    assert (orders[0] == expected) == (orders[0] == orders[1]) == (not shuffle)
