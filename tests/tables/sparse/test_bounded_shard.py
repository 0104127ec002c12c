"""BoundedShard: rows that make room, and copies of them that agree."""

import numpy as np
import pytest

from shoal.keys import SLOTS, KeyRange, slot_of, split_evenly
from shoal.protocol.machine import Sink
from shoal.tables.init import Init
from shoal.tables.opening import open_shard
from shoal.tables.sparse.bounded_shard import BoundedShard
from shoal.tables.spec import Access, TableSpec

WIDTH = 3
POLICIES = pytest.mark.parametrize("evict", ["lru", "lfu"])


def shard_of(access=None, init=None, **options):
    access, init = access or Access(), init or Init()
    spec = TableSpec("e", 0, (WIDTH,), kind="sparse", access=access, init=init, **options).cut(1)
    return open_shard(spec, spec.keys)


def staged(shard, keys, values):
    load = shard.stage(shard.held, len(keys))
    load.keys[:], load.values[:] = np.array(keys, np.uint64), values
    return load


def push(shard, keys, values, lr=None):
    shard.apply(staged(shard, keys, values), lr)


def pull(shard, keys):
    load = shard.stage_keys(shard.held, len(keys))
    load.keys[:] = np.array(keys, np.uint64)
    return np.frombuffer(shard.read_keys(load), shard.dtype).reshape(len(keys), WIDTH)


@POLICIES
def test_an_evicted_row_begins_again_at_its_initial_value(evict):
    init = Init("uniform", seed=2)
    shard = shard_of(Access("adagrad", {"lr": 1.0}), init, max_rows=100, evict=evict)
    fresh = shard_of(init=init)
    push(shard, [1], np.ones((1, WIDTH)))
    for start in range(1000, 5000, 50):
        push(shard, range(start, start + 50), np.ones((50, WIDTH)))
    assert len(shard) == 100
    assert shard.evicted == 1 + 4000 - 100
    assert 1 not in shard.keys
    memory = shard.records.nbytes
    np.testing.assert_array_equal(pull(shard, [1]), pull(fresh, [1]))
    push(shard, [1], np.ones((1, WIDTH)))  # its state as well: the first step is lr
    np.testing.assert_allclose(pull(shard, [1]), pull(fresh, [1]) - 1, rtol=1e-6)
    assert shard.records.nbytes == memory


def test_a_request_for_more_keys_than_max_rows_is_answered():
    """In parts: every row is right when it is read, if not kept."""
    init = Init("normal", 0, 1, 3)
    shard, fresh = shard_of(init=init, max_rows=10), shard_of(init=init)
    np.testing.assert_array_equal(pull(shard, range(100)), pull(fresh, range(100)))
    push(shard, range(100), np.ones((100, WIDTH)))
    shard.write(staged(shard, range(100), np.ones((100, WIDTH))))
    assert shard.updates == 1
    assert len(shard) == 10


@POLICIES
def test_a_pull_evicts_no_row(evict):
    init = Init("uniform", seed=4)
    shard, fresh = shard_of(init=init, max_rows=8, evict=evict), shard_of(init=init)
    push(shard, [1, 2], np.ones((2, WIDTH)))
    uses = shard.state()["uses"].tolist()
    read, begun = pull(shard, [7, 1, 9, 2]), pull(fresh, [7, 1, 9, 2])
    np.testing.assert_allclose(read - begun, [[0] * 3, [1] * 3, [0] * 3, [1] * 3], atol=1e-6)
    assert pull(shard_of(init=init, max_rows=8), [5]).tolist() == pull(fresh, [5]).tolist()
    assert sorted(shard.keys.tolist()) == [1, 2]
    assert shard.state()["uses"].tolist() == uses


def test_a_pull_after_an_eviction_reads_the_keys_at_their_new_places():
    shard = shard_of(max_rows=4)
    load = staged(shard, [1, 2], [[1, 1, 1], [2, 2, 2]])
    load.kept = True
    shard.apply(load, None)
    push(shard, [3, 4], np.ones((2, WIDTH)))
    push(shard, [5, 6], np.ones((2, WIDTH)))  # 1 and 2 have gone
    assert not np.frombuffer(shard.read_keys(load), np.float32).any()


def test_max_rows_is_divided_among_the_servers():
    spec = TableSpec("e", kind="sparse", max_rows=1000).cut(4)
    shard = open_shard(spec, KeyRange(0, SLOTS // 4))
    keys = [key for key in range(20_000) if slot_of(key) < SLOTS // 4]
    push(shard, keys, np.ones((len(keys), 1)))
    assert len(shard) == 250


# ---------------------------------------------------------------------------- copies


class Chain:
    """A table's copies: what the first does the others are told."""

    def __init__(self, copies, seed, **options):
        self.access = Access("adagrad", {"lr": 0.1})
        self.options = {"init": Init("uniform", seed=1), "max_rows": 20, **options}
        self.random = np.random.default_rng(seed)
        self.copies = [self.copy(number) for number in range(copies)]

    def copy(self, number):
        copy = shard_of(self.access, **self.options)
        copy._index._state[3] += 99 * number  # it would draw others
        return copy

    def do(self, what):
        """A push, a write or a round of two pushes."""
        head = self.copies[0]
        loads = [self.load(), self.load()]
        if what == "round":
            [update] = head.merge([(1.0, None, load) for load in loads])
            views = update.views
        else:
            loads[0].retained = True
            head.write(loads[0]) if what == "write" else head.apply(loads[0], None)
            views = loads[0].views
        for copy in self.copies[1:]:
            told = copy.stage_told(copy.held, views[0].nbytes // 8)
            Sink(told.views).fill(memoryview(b"".join(views)))
            copy.write(told) if what == "write" else copy.apply_round([(None, told)])

    def load(self):
        keys = self.random.choice(60, size=self.random.integers(1, 16), replace=False)
        values = self.random.normal(size=(len(keys), WIDTH))
        pull(self.copies[-1], self.random.choice(60, size=5))  # the last copy is read
        return staged(self.copies[0], keys, values)

    def happen(self, times):
        for _ in range(times):
            self.do(self.random.choice(["push", "push", "write", "round"]))

    def agree(self):
        first, *others = [content(copy) for copy in self.copies]
        assert all(other == first for other in others)


def content(shard):
    state = shard.state()
    last = state["uses"][:, 1].tolist()
    counted = shard.evicted, shard._index.requests, shard.updates
    return state["keys"].tolist(), state["records"].tolist(), last, counted


@POLICIES
@pytest.mark.parametrize("seed", range(4))
def test_replicas_evict_the_same_rows_as_their_head(evict, seed):
    chain = Chain(3, seed, evict=evict)
    chain.happen(40)
    assert chain.copies[0].evicted > 100
    chain.agree()
    chain.copies.pop(0)  # another goes on in its place
    chain.happen(20)
    chain.agree()


@POLICIES
@pytest.mark.parametrize("opened_with_rows", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_syncing_replica_has_the_same_rows_under_evictions(evict, opened_with_rows, seed):
    chain = Chain(2, seed, evict=evict)
    chain.happen(seed * 2)
    learner = chain.copy(7)
    if opened_with_rows:  # those of a checkpoint, in a resumed run
        learner.restore(chain.copies[0].held, chain.copies[0].state(), same=True)
        chain.happen(3)
    learner.sync(True)
    teacher = chain.copies[-1]
    chain.copies.append(learner)
    at = 0
    while learner.syncing:
        piece = teacher.snapshot(at, 100)
        room = learner.stage_snapshot(piece.rows, piece.keys)
        Sink(room.views).fill(memoryview(b"".join(piece.views)))
        learner.install(room)
        learner.sync(not piece.last)
        at = piece.after
        chain.happen(chain.random.integers(3))
    chain.happen(1)
    chain.agree()
    assert seed == 0 or learner.evicted > 20


@POLICIES
def test_replicas_split_alike(evict):
    chain = Chain(2, 1, evict=evict)
    chain.happen(30)
    first, second = (copy.split(split_evenly(SLOTS, 3)) for copy in chain.copies)
    assert [content(piece) for piece in first] == [content(piece) for piece in second]
    assert all(isinstance(piece, BoundedShard) for piece in first)
    assert all(len(piece) <= 7 for piece in first)
    kept = {key for piece in first for key in piece.keys.tolist()}
    assert len(kept) >= 15
    assert kept <= set(chain.copies[0].keys.tolist())


@POLICIES
def test_a_restored_shard_keeps_the_rows_use_counts(evict):
    chain = Chain(1, 3, evict=evict)
    chain.happen(30)
    saved, again = chain.copies[0], chain.copy(5)
    again.restore(saved.held, saved.state(), same=True)
    assert again.state()["uses"].tolist() == saved.state()["uses"].tolist()
    assert again._index.requests == saved._index.requests
    older = {name: each for name, each in saved.state().items() if name != "uses"}
    another = chain.copy(6)
    another.restore(saved.held, older, same=True)  # a checkpoint of before there were any
    assert another.keys.tolist() == saved.keys.tolist()
