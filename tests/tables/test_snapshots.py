"""Shards that are sent to others piece by piece, while they change, and shards in pieces."""

import numpy as np
import pytest
import torch

from shoal.errors import AccessFailed
from shoal.keys import SLOTS, KeyRange, split_evenly
from shoal.protocol.machine import Sink
from shoal.tables.dense.shard import DenseShard
from shoal.tables.sparse.bounded_shard import BoundedShard
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.spec import Access, TableSpec

ROWS, WIDTH = 10, 3
METHODS = [Access("sum"), Access("adagrad", {"lr": 0.1}), Access("adam", {"lr": 0.1})]


def dense(access, held=None):
    spec = TableSpec("w", ROWS, (WIDTH,), access=access, fragment_rows=2)
    return DenseShard(spec, held or KeyRange(0, ROWS))


def sparse(access, held=None):
    spec = TableSpec("s", 0, (WIDTH,), kind="sparse", access=access).cut(1)
    return SparseShard(spec, held or KeyRange(0, SLOTS))


def push(shard, keys, values, rows=None):
    """A push of some rows; of whole ranges where there are no keys."""
    rows = rows or shard.held
    staged = shard.stage(rows, -1 if keys is None else len(keys))
    views = iter(staged.views)
    if keys is not None:
        next(views)[:] = keys.tobytes()
    if len(values):
        next(views)[:] = values.tobytes()
    shard.apply(staged, None)


def random_push(shard, random):
    keys, rows = None, shard.held
    if isinstance(shard, DenseShard):
        start, stop = sorted(random.choice(ROWS + 1, size=2, replace=False).tolist())
        rows = KeyRange(start, stop)  # its fragments count it, the others do not
    else:
        keys = random.choice(200, size=9, replace=False).astype(np.uint64)
    if isinstance(shard, DenseShard) and random.random() < 0.5:
        keys = np.arange(rows.start, rows.stop, 2)
    count = len(rows) if keys is None else len(keys)
    return keys, random.normal(size=(count, WIDTH)).astype(np.float32), rows


def sent(piece, to):
    """A piece of rows as it comes from the wire."""
    staged = to.stage_snapshot(piece.rows, piece.keys)
    Sink(staged.views).fill(memoryview(b"".join(piece.views)))
    assert not staged.problem()
    return staged


def content(shard):
    if isinstance(shard, DenseShard):
        return [each.tolist() for each in (shard.rows, *shard.slots.values())], shard.updates
    order = np.argsort(shard.keys[: len(shard)])
    records = shard.records[: len(shard) * shard.stride].reshape(len(shard), shard.stride)
    return shard.keys[order].tolist(), records[order].tolist(), shard.updates


@pytest.mark.parametrize("access", METHODS, ids=lambda each: each.name)
@pytest.mark.parametrize("make", [dense, sparse])
@pytest.mark.parametrize("seed", range(5))
def test_a_syncing_replica_equals_its_sender_whatever_is_pushed_meanwhile(make, access, seed):
    random = np.random.default_rng(seed)
    teacher, learner = make(access), make(access)
    learner.syncing = True
    for _ in range(20):
        push(teacher, *random_push(teacher, random))
    at, last = 0, False
    while not last:
        piece = teacher.snapshot(at, 200)
        learner.install(sent(piece, learner))
        at, last = piece.after, piece.last
        for _ in range(random.integers(3)):  # both do it, in one order with the pieces
            change = random_push(teacher, random)
            push(teacher, *change)
            learner.syncing = not last
            push(learner, *change)
    learner.syncing = False
    change = random_push(teacher, random)
    push(teacher, *change)
    push(learner, *change)
    assert content(learner) == content(teacher)


@pytest.mark.parametrize("make", [dense, sparse])
def test_a_snapshot_piece_does_not_change_with_later_pushes(make):
    shard = make(METHODS[0])
    random = np.random.default_rng(0)
    push(shard, *random_push(shard, random))
    piece = shard.snapshot(0, 1 << 20)
    before = [bytes(view) for view in piece.views]
    push(shard, *random_push(shard, random))
    assert [bytes(view) for view in piece.views] == before
    assert piece.last


def test_a_sparse_syncing_replica_skips_keys_it_has_not_received():
    learner = sparse(METHODS[0])
    learner.syncing = True
    push(learner, np.array([5, 6], np.uint64), np.ones((2, WIDTH), np.float32))
    assert len(learner) == 0
    assert learner.updates == 1


@pytest.mark.parametrize("access", METHODS, ids=lambda each: each.name)
def test_a_split_dense_shard_trains_as_the_whole(access):
    random = np.random.default_rng(1)
    whole, other = dense(access), dense(access)
    first = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    for shard in (whole, other):
        push(shard, None, first)
        push(shard, None, first[:3], KeyRange(0, 3))
    ranges = [KeyRange(0, 4), KeyRange(4, ROWS)]
    pieces = other.split(ranges)
    update = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    push(whole, None, update)
    for piece in pieces:
        push(piece, None, update[piece.held.start : piece.held.stop])
    assert torch.equal(torch.cat([piece.rows for piece in pieces]), whole.rows)
    assert [n for piece in pieces for n in piece.updates] == whole.updates


@pytest.mark.parametrize("access", METHODS, ids=lambda each: each.name)
def test_a_split_sparse_shard_has_each_key_once(access):
    random = np.random.default_rng(2)
    whole = sparse(access)
    for _ in range(5):
        push(whole, *random_push(whole, random))
    pieces = whole.split(split_evenly(SLOTS, 3))
    keys, records, updates = content(whole)
    found = sorted(
        (key, record) for piece in pieces for key, record in zip(*content(piece)[:2], strict=True)
    )
    assert found == list(zip(keys, records, strict=True))
    assert [piece.updates for piece in pieces] == [updates] * 3


@pytest.mark.parametrize("keys", [None, [1, 4, 5, 9], []])
def test_a_staged_push_is_split_with_its_dense_shard(keys):
    whole = dense(METHODS[0])
    counted = ROWS if keys is None else len(keys)
    staged = whole.stage(whole.held, -1 if keys is None else counted)
    if keys is not None:
        staged.keys.copy_(torch.tensor(keys, dtype=torch.int64))
    staged.values.copy_(torch.arange(counted * WIDTH).view(-1, WIDTH))
    pieces = whole.split([KeyRange(0, 4), KeyRange(4, ROWS)])
    parts = [piece.part_of(staged, piece.held) for piece in pieces]
    assert [part.rows for part in parts] == [KeyRange(0, 4), KeyRange(4, ROWS)]
    assert torch.equal(torch.cat([part.values for part in parts]), staged.values)
    if keys is not None:
        assert torch.equal(torch.cat([part.keys for part in parts]), staged.keys)


def test_a_staged_push_is_split_with_its_sparse_shard():
    whole = sparse(METHODS[0])
    staged = whole.stage(whole.held, 50)
    staged.keys[:] = np.arange(50)
    staged.values[:] = np.arange(50)[:, None]
    parts = [piece.part_of(staged, piece.held) for piece in whole.split(split_evenly(SLOTS, 3))]
    assert not any(part.problem() for part in parts)
    for part in parts:
        assert part.values[:, 0].tolist() == part.keys.tolist()
    assert sorted(key for part in parts for key in part.keys.tolist()) == list(range(50))


def digests(shard, other):
    """What pieces of one copy come to, on both."""
    at, found = 0, []
    while not found or at:
        piece = shard.sample(at, 60)
        found.append(tuple(each.digest(piece.rows, piece.keys) for each in (shard, other)))
        at = piece.after
    return found


@pytest.mark.parametrize("access", METHODS, ids=lambda each: each.name)
@pytest.mark.parametrize("make", [dense, sparse])
def test_digests_of_replicas_agree_unless_a_row_differs(make, access):
    random = np.random.default_rng(3)
    one, other = make(access), make(access)
    if make is sparse:  # some are only read, on one of them
        keys = other.stage_keys(other.held, 50)
        keys.keys[:] = np.arange(50, 0, -1)
        other.read_keys(keys)
    for _ in range(5):
        change = random_push(one, random)
        push(one, *change)
        push(other, *change)
    found = digests(one, other)
    assert len(found) > 3
    assert all(mine == theirs for mine, theirs in found)
    if make is sparse:
        other.records[other._index.find(one.keys[7:8])[0] * other.stride] += 1
    else:
        other.rows[7] += 1
    assert sum(mine != theirs for mine, theirs in digests(one, other)) == 1


BOUNDED = TableSpec("b", 0, (WIDTH,), kind="sparse", access=Access("sum"), max_rows=8)


def bounded():
    return BoundedShard(BOUNDED.cut(1), KeyRange(0, SLOTS))


@pytest.mark.parametrize(
    ("make", "keys", "tensor", "value", "says"),
    [
        (lambda: dense(Access("sum")), -1, 0, -1, "a count below 0"),
        (lambda: sparse(Access("sum")), 2, 0, -1, "a count below 0"),
        (lambda: sparse(Access("sum"), KeyRange(0, 16)), 2, 1, 7, "keys of other hash slots"),
        (bounded, 2, 1, 7, "keys that have come before"),
        (bounded, 1, 3, -1, "counts out of their range"),
        (bounded, 1, 4, 1 << 40, "counts out of their range"),
    ],
)
def test_a_snapshot_of_another_server_is_looked_at(make, keys, tensor, value, says):
    shard = make()
    staged = shard.stage_snapshot(shard.held, keys)
    for each in staged.tensors:
        each.zero_()
    staged.tensors[tensor].fill_(value)
    with pytest.raises(AccessFailed, match=says):
        shard.install(staged)


def test_a_snapshot_with_more_rows_than_a_bounded_table_has_is_refused():
    shard = bounded()
    staged = shard.stage_snapshot(shard.held, 9)
    for each in staged.tensors:
        each.zero_()
    staged.tensors[1].copy_(torch.arange(9))
    with pytest.raises(AccessFailed, match="more than 8 rows"):
        shard.install(staged)
    assert len(shard) == 0
