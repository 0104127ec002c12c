"""Copies of rows: what one shard has merged is settled by another, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.keys import SLOTS, KeyRange
from shoal.protocol.machine import Sink
from shoal.tables.dense.shard import DenseShard
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.spec import Access, TableSpec

ROWS, WIDTH = 10, 2
METHODS = [
    Access("sum"),
    Access("sgd", {"lr": 0.1, "momentum": 0.9}),
    Access("adam", {"lr": 0.1}),
]


def fill(staged, keys, values):
    """What a sender's bytes do."""
    views = iter(staged.views)
    if keys is not None:
        next(views)[:] = np.array(keys, staged_keys_type(staged)).tobytes()
    for view in views:
        view[:] = np.asarray(values, np.float32).tobytes()
    assert not staged.problem()
    return staged


def staged_keys_type(staged):
    return np.uint64 if isinstance(staged.keys, np.ndarray) else np.int64


def settled(other, updates):
    """Have another shard do what `updates` say, as they come from the wire."""
    loads = []
    for update in updates:
        views = [bytes(view) for view in update.views]
        keys = np.frombuffer(views[0], np.int64) if len(views) > 1 else None
        load = other.stage(update.rows, -1 if keys is None else len(keys))
        Sink(load.views).fill(memoryview(b"".join(views)))
        loads.append((update.lr, load))
    other.apply_round(loads)


@st.composite
def rounds(draw):
    """A few rounds, each of a few pushes: (rows, keys or None, weight)."""
    pushes = []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, ROWS - 1))
        rows = KeyRange(start, draw(st.integers(start + 1, ROWS)))
        within = st.sets(st.integers(rows.start, rows.stop - 1)).map(sorted)
        pushes.append((rows, draw(st.none() | within), draw(st.sampled_from([1.0, 2.0]))))
    return pushes


@pytest.mark.parametrize("access", METHODS, ids=lambda access: access.name)
@pytest.mark.parametrize("merge", ["mean", "sum"])
@settings(max_examples=60, deadline=None)
@given(st.lists(rounds(), min_size=1, max_size=3), st.integers(1, 5), st.integers(0, 2**32))
def test_a_dense_replica_that_applies_the_merged_rounds_equals_its_head(
    access, merge, programme, fragment_rows, seed
):
    spec = TableSpec("w", ROWS, (WIDTH,), access=access, merge=merge, fragment_rows=fragment_rows)
    head, tail = DenseShard(spec, spec.keys), DenseShard(spec, spec.keys)
    random = np.random.default_rng(seed)
    for pushes in programme:
        contributions = []
        for rows, keys, weight in pushes:
            count = len(rows) if keys is None else len(keys)
            staged = head.stage(rows, -1 if keys is None else count)
            staged.retained = True
            fill(staged, keys, random.standard_normal((count, WIDTH)))
            contributions.append((weight, None, staged))
        settled(tail, head.merge(contributions))
        for _, _, staged in contributions:
            staged.retained = False
            head.release(staged)
    assert torch.equal(head.rows, tail.rows)
    assert all(torch.equal(head.slots[name], tail.slots[name]) for name in head.slots)
    assert head.updates == tail.updates
    assert head.versions == tail.versions


@pytest.mark.parametrize("method", ["sum", "sgd", "adagrad", "adam", "ftrl"])
def test_a_sparse_replica_that_applies_the_merged_rounds_equals_its_head(method):
    spec = TableSpec("e", 0, (WIDTH,), kind="sparse", access=Access(method))
    head, tail = (SparseShard(spec, KeyRange(0, SLOTS)) for _ in range(2))
    random = np.random.default_rng(0)
    for _ in range(5):
        contributions = []
        for weight in (1.0, 3.0):
            keys = random.choice(1000, 50, replace=False)
            staged = fill(head.stage(head.held, 50), keys, random.standard_normal((50, WIDTH)))
            contributions.append((weight, None, staged))
        settled(tail, head.merge(contributions))
    order = [np.argsort(shard.keys[: len(shard)]) for shard in (head, tail)]
    rows = [
        shard.records[: len(shard) * shard.stride].reshape(-1, shard.stride)[at]
        for shard, at in zip((head, tail), order, strict=True)
    ]
    assert len(head) == len(tail) > 100
    np.testing.assert_array_equal(*rows)


def test_a_round_of_whole_pushes_is_one_update_without_a_copy():
    """All of a shard's fragments, pushed whole by everybody: one part, in the first's memory."""
    spec = TableSpec("w", ROWS, (WIDTH,), access=Access("sum"), fragment_rows=3)
    shard = DenseShard(spec, spec.keys)
    contributions = []
    for _ in range(3):
        staged = fill(shard.stage(spec.keys, -1), None, np.ones((ROWS, WIDTH)))
        staged.retained = True
        contributions.append((1.0, None, staged))
    [update] = shard.merge(contributions)
    assert (update.rows, update.keys) == (spec.keys, None)
    assert update.values.data_ptr() == contributions[0][2].values.data_ptr()


@pytest.mark.parametrize("keys", [None, [1, 4]])
def test_retained_staging_memory_is_not_reused_until_it_is_released(keys):
    spec = TableSpec("w", ROWS, (WIDTH,), access=Access("sum"), fragment_rows=ROWS)
    shard = DenseShard(spec, spec.keys)
    count = ROWS if keys is None else len(keys)
    first = fill(shard.stage(spec.keys, -1 if keys is None else 2), keys, np.ones((count, WIDTH)))
    first.retained = True
    shard.apply(first, None)
    second = shard.stage(spec.keys, -1 if keys is None else 2)
    assert second.values.data_ptr() != first.values.data_ptr()
    first.retained = False
    shard.release(first)
    third = shard.stage(spec.keys, -1 if keys is None else 2)
    assert third.values.data_ptr() == first.values.data_ptr()
