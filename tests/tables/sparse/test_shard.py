"""SparseShard and its row methods, against dense tables and dictionaries."""

import numpy as np
import pytest
import torch

from shoal.errors import AccessFailed, InvalidValue, UnknownName
from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.tables.dense.methods import make
from shoal.tables.dense.rows import DTYPES
from shoal.tables.dense.shard import DenseShard
from shoal.tables.init import Init
from shoal.tables.initial import fill
from shoal.tables.opening import checked, open_shard
from shoal.tables.sparse.index import Growing
from shoal.tables.sparse.optimizers import row_methods
from shoal.tables.sparse.segments import Segments
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.spec import Access, TableSpec

WIDTH = 3
BIG = (1 << 64) - 1


def table(access=None, init=None, width=WIDTH, **options):
    return TableSpec(
        "e",
        kind="sparse",
        row_shape=(width,),
        access=access or Access(),
        init=init or Init(),
        **options,
    ).cut(1)


def shard_of(*args, **options):
    spec = table(*args, **options)
    return open_shard(spec, spec.keys)


def staged(shard, keys, values=None):
    held = shard.held
    if values is None:
        load = shard.stage_keys(held, len(keys))
    else:
        load = shard.stage(held, len(keys))
        load.values[:] = values
    load.keys[:] = np.array(keys, np.uint64)
    assert not load.problem()
    return load


def push(shard, keys, values, lr=None):
    shard.apply(staged(shard, keys, values), lr)


def pull(shard, keys):
    data = shard.read_keys(staged(shard, keys))
    return np.frombuffer(data, shard.dtype).reshape(len(keys), shard.spec.width)


# ---------------------------------------------------------------------------- rows


@pytest.mark.parametrize("kind", ["zeros", "constant", "uniform", "normal"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_new_rows_are_a_function_of_seed_key_and_column(kind, dtype):
    """Whatever the order of their creation; and they are distributed as a dense table's."""
    init = Init(kind, -0.5, 2.0, seed=7)
    dense = torch.empty((20_000, WIDTH), dtype=DTYPES[dtype])
    fill(dense, init, KeyRange(0, len(dense)))
    one, two = (shard_of(init=init, dtype=dtype) for _ in range(2))
    rows, order = pull(one, range(len(dense))), np.random.default_rng(0).permutation(len(dense))
    np.testing.assert_array_equal(pull(two, order), rows[order])
    assert sorted(two.keys) == list(range(len(dense)))
    quantiles = np.linspace(0.01, 0.99, 9)
    expected = np.quantile(dense.numpy(), quantiles)
    np.testing.assert_allclose(np.quantile(rows, quantiles), expected, atol=0.05)
    if kind in ("uniform", "normal"):
        assert len(np.unique(rows)) > 0.99 * rows.size
        assert not np.array_equal(pull(shard_of(init=Init(kind, -0.5, 2.0, 8)), range(5)), rows[:5])


def test_keys_that_differ_only_in_upper_bits_have_different_rows():
    shard = shard_of(init=Init("normal"), width=64)
    keys = [field << 56 | 5 for field in range(16)]
    assert len(np.unique(pull(shard, keys))) == 16 * 64


def test_any_64_bit_number_is_a_key():
    shard = shard_of(init=Init("uniform", seed=1))
    keys = [0, BIG, 1 << 63, 12345678901234567890]
    first = pull(shard, keys)
    push(shard, [BIG], np.ones((1, WIDTH)))
    np.testing.assert_array_equal(pull(shard, keys)[[0, 2, 3]], first[[0, 2, 3]])
    np.testing.assert_array_equal(pull(shard, [BIG])[0], first[1] + 1)
    assert len(np.unique(first)) == 12


def test_a_push_creates_the_same_row_as_a_pull():
    init = Init("normal", 0.0, 1.0, seed=3)
    pushed, pulled = shard_of(init=init), shard_of(init=init)
    pull(pulled, [5, 6])
    for shard in (pushed, pulled):
        push(shard, [6, 7], np.ones((2, WIDTH)))
    np.testing.assert_array_equal(pull(pushed, [5, 6, 7]), pull(pulled, [5, 6, 7]))


def test_rows_keep_their_values_while_the_shard_grows():
    """Records move while they grow; a million rows of pushes against plain arithmetic."""
    shard, random = shard_of(width=2), np.random.default_rng(0)
    total = np.zeros((200_000, 2), np.float32)
    for _ in range(40):
        keys = random.choice(len(total), 20_000, replace=False)
        values = random.integers(0, 9, (len(keys), 2)).astype(np.float32)
        push(shard, keys * 977, values)
        total[keys] += values
    np.testing.assert_array_equal(pull(shard, np.arange(len(total)) * 977), total)


def test_a_request_without_keys_creates_no_rows():
    shard = shard_of()
    push(shard, [], np.empty((0, WIDTH)))
    assert pull(shard, []).shape[0] == 0
    assert len(shard) == 0


def test_a_write_does_not_step_the_optimizer():
    shard = shard_of(Access("adagrad", {"lr": 1.0}))
    push(shard, [1], np.ones((1, WIDTH)))
    shard.write(staged(shard, [1, 2], np.array([[1, 2, 3], [4, 5, 6]])))
    np.testing.assert_array_equal(pull(shard, [2, 1]), [[4, 5, 6], [1, 2, 3]])
    push(shard, [1], np.ones((1, WIDTH)))  # its state stayed: s is 2 now
    np.testing.assert_allclose(pull(shard, [1])[0], np.array([1, 2, 3]) - 2**-0.5, rtol=1e-6)


def test_a_key_of_another_shard_is_refused_by_name():
    spec = table().cut(2)
    shard = SparseShard(spec, KeyRange(0, SLOTS // 2))
    keys = np.array([key for key in range(100) if slot_of(key) < SLOTS // 2], np.uint64)
    load = shard.stage_keys(shard.held, len(keys))
    load.keys[:] = keys
    assert not load.problem()
    stranger = next(key for key in range(100) if slot_of(key) >= SLOTS // 2)
    load.keys[3] = stranger
    assert load.problem() == f"key {stranger} is not in the hash slots [0:2048)"


# ---------------------------------------------------------------------------- methods

GRADIENTS = {
    "sum": {},
    "assign": {},
    "sgd": {"lr": 0.3, "weight_decay": 0.1},
    "adagrad": {"lr": 0.3, "eps": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    "adam": {"lr": 0.3, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1},
}


HALVED = {"schedule": "exponential", "schedule_gamma": 0.5}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [*((name, {}) for name in GRADIENTS), *((n, HALVED) for n in ("sgd", "adagrad", "adam"))],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sparse_method_equals_the_dense_one(name, dtype, schedule):
    """Where every push carries every row; and each row has its own past where it does not."""
    access, random = Access(name, {**GRADIENTS[name], **schedule}), np.random.default_rng(0)
    shard = shard_of(access, Init("uniform", seed=1), dtype=dtype)
    method, slots = make(access), {}
    rows = torch.from_numpy(pull(shard, range(20)).copy())
    for slot in method.slots():
        slots[slot] = torch.full_like(rows, method.initial(slot))
    for step in range(5):
        update = torch.from_numpy(random.normal(size=(20, WIDTH))).to(DTYPES[dtype])
        lr = 0.05 if step == 3 and schedule else None
        method.apply(rows, slots, update, step, lr)
        push(shard, range(20), update.numpy(), lr)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(pull(shard, range(20)), rows.numpy(), rtol=tolerance, atol=tolerance)


def test_each_row_counts_its_own_updates():
    """Adam's first step is lr whenever it comes."""
    shard = shard_of(Access("adam", {"lr": 0.5}))
    for _ in range(4):
        push(shard, [1], np.ones((1, WIDTH)))
    push(shard, [2], np.full((1, WIDTH), 7.0))
    np.testing.assert_allclose(pull(shard, [2]), -0.5, rtol=1e-6)


def ftrl(gradients, rate, beta, l1, l2):
    """McMahan et al. 2013, algorithm 1, one coordinate, word for word."""
    z = n = w = 0.0
    for g in gradients:
        sigma = ((n + g * g) ** 0.5 - n**0.5) / rate
        z += g - sigma * w
        n += g * g
        if abs(z) <= l1:
            w = 0.0
        else:
            w = -(z - np.sign(z) * l1) / ((beta + n**0.5) / rate + l2)
        yield w


def test_ftrl_is_the_papers_algorithm_1():
    options = {"lr": 0.3, "beta": 0.7, "l1": 0.4, "l2": 0.2}
    shard = shard_of(Access("ftrl", options), width=1, dtype="float64")
    gradients = np.random.default_rng(0).normal(size=200) * 0.3
    zeros = 0
    for g, expected in zip(gradients, ftrl(gradients, *options.values()), strict=True):
        push(shard, [9], [[g]])
        got = pull(shard, [9])[0, 0]
        assert got == pytest.approx(expected, abs=1e-12)
        zeros += got == 0
    assert 0 < zeros < 200  # L1 makes exact zeros


def test_ftrl_changes_nothing_at_a_rate_of_zero():
    schedule = {"schedule": "polynomial", "schedule_total": 2}
    shard = shard_of(Access("ftrl", {"lr": 0.1, **schedule}))
    for _ in range(4):
        push(shard, [1], np.ones((1, WIDTH)))
        last = pull(shard, [1])
    assert np.isfinite(last).all()
    assert last.any()


@pytest.mark.parametrize("full", ["records", "index"])
def test_a_pull_without_memory_to_grow_changes_nothing(full, monkeypatch):
    shard = shard_of(Access("sum"))
    push(shard, range(100), np.ones((100, WIDTH)))

    def refused(*_):
        raise MemoryError("Cannot allocate memory")

    owner, method = {"records": (Growing, "reserve"), "index": (Segments, "grow")}[full]
    with monkeypatch.context() as patched:
        patched.setattr(owner, method, refused)
        with pytest.raises(AccessFailed, match="no memory for more rows than 100"):
            pull(shard, range(1_000_000, 1_100_000))
    assert len(shard) == 100
    assert (pull(shard, range(100)) == 1).all()
    assert not pull(shard, range(1_000_000, 1_100_000)).any()


def test_staging_memory_is_released_once():
    shard = shard_of(Access("sum"))
    load = staged(shard, [1], np.ones((1, WIDTH)))
    load.kept = True
    shard.apply(load, None)
    shard.read_keys(load)
    shard.release(load)
    assert shard.stage(shard.held, 1).memory is not shard.stage(shard.held, 1).memory


@pytest.mark.parametrize("name", [*row_methods])
def test_equal_pushes_leave_equal_rows_whatever_else_a_shard_holds(name):
    """Whatever else a shard has seen: rows do not know where they are."""
    init = Init() if name == "ftrl" else Init("normal", 0, 1, 5)
    one, two = (shard_of(Access(name), init, width=5) for _ in range(2))
    pull(two, range(1000, 3000))
    random = np.random.default_rng(0)
    for _ in range(5):
        keys = random.choice(300, 100, replace=False)
        update = random.normal(size=(100, 5))
        push(one, keys, update)
        push(two, keys, update)
    np.testing.assert_array_equal(pull(one, range(300)), pull(two, range(300)))


# ---------------------------------------------------------------------------- rounds


@pytest.mark.parametrize("merge", ["mean", "sum"])
def test_a_sparse_round_merges_as_a_dense_one(merge):
    """There a push names all rows; here what it does not carry counts as zero as well."""
    access, random = Access("adagrad", {"lr": 0.5}), np.random.default_rng(0)
    sparse = shard_of(access, merge=merge, dtype="float64")
    spec = TableSpec("d", 40, (WIDTH,), "float64", access=access, merge=merge).cut(1)
    dense = DenseShard(spec, spec.keys)
    for _ in range(3):
        loads, others = [], []
        for weight in (1.0, 3.0, 0.5):
            keys = np.sort(random.choice(40, 15, replace=False))
            values = random.normal(size=(15, WIDTH))
            loads.append((weight, None, staged(sparse, keys, values)))
            other = dense.stage(dense.held, len(keys))
            other.keys[:] = torch.from_numpy(keys)
            other.values[:] = torch.from_numpy(values)
            others.append((weight, None, other))
        sparse.merge(loads)
        dense.merge(others)
    np.testing.assert_allclose(pull(sparse, range(40)), dense.rows.numpy(), rtol=1e-12, atol=1e-12)
    assert sparse.updates == 3


def test_a_round_without_pushes_does_not_count():
    shard = shard_of()
    shard.merge([])
    assert shard.updates == 0


# ---------------------------------------------------------------------------- specifications


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rows": 5}, "row for any 64-bit key"),
        ({"kind": "dense"}, "at least one row"),
        ({"kind": "sprase"}, "sprase"),
        ({"nonfinite": "ignore"}, "ignore"),
        ({"row_shape": (2.0,)}, "a tuple of integers"),
    ],
)
def test_an_impossible_sparse_table_is_refused(options, says):
    with pytest.raises((InvalidValue, UnknownName), match=says):
        TableSpec("e", **{"kind": "sparse", **options})


@pytest.mark.parametrize(
    ("access", "dtype", "error", "says"),
    [
        (Access("rmsprop"), "float32", UnknownName, "sparse"),
        (Access("sgd", {"momentum": 0.9}), "float32", UnknownName, "momentum"),
        (Access("ftrl", {"l1": -1.0}), "float32", InvalidValue, "l1"),
        (Access("adagrad"), "int64", InvalidValue, "int64"),
        (Access("sum"), "bfloat16", InvalidValue, "bfloat16"),
        (Access("ftrl"), "float32", InvalidValue, "zeros"),
    ],
)
def test_a_sparse_table_that_no_server_could_open_is_refused(access, dtype, error, says):
    merge = "sum" if "int" in dtype else "mean"
    init = Init("normal") if says == "zeros" else Init()
    with pytest.raises(error, match=says):
        checked(TableSpec("e", 0, (), dtype, init, access, merge=merge, kind="sparse"))


def test_hash_slots_are_cut_for_any_number_of_servers():
    for servers in (1, 2, 3, 64):
        spec = TableSpec("e", kind="sparse").cut(servers)
        assert spec.fragments()[-1].stop == SLOTS
        assert len(spec.fragments()) >= min(SLOTS, 4 * servers)


def test_a_waiting_pull_of_pushed_keys_reads_the_latest_rows():
    """The pull may be waiting meanwhile, and its own push is not the last."""
    shard = shard_of()
    load = staged(shard, [1, 2], [[1, 1, 1], [2, 2, 2]])
    load.kept = True
    shard.apply(load, None)
    push(shard, [2], [[5, 5, 5]])
    rows = np.frombuffer(shard.read_keys(load), np.float32).reshape(2, WIDTH)
    np.testing.assert_array_equal(rows, pull(shard, [1, 2]))
    load = staged(shard, [1, 2], [[1, 1, 1], [2, 2, 2]])
    load.kept = True
    shard.apply(load, None)
    shard.write(staged(shard, [1], [[9, 9, 9]]))
    rows = np.frombuffer(shard.read_keys(load), np.float32).reshape(2, WIDTH)
    np.testing.assert_array_equal(rows, pull(shard, [1, 2]))
    assert rows[0].tolist() == [9, 9, 9]


def test_a_pull_of_more_keys_than_one_block_reads_the_updated_rows():
    shard, keys = shard_of(), np.arange(3000)
    load = staged(shard, keys, np.ones((3000, WIDTH)))
    load.kept = True
    shard.apply(load, None)
    rows = np.frombuffer(shard.read_keys(load), np.float32).reshape(3000, WIDTH)
    np.testing.assert_array_equal(rows, pull(shard, keys))
    assert shard.updates == 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_rows": -1},
        {"max_rows": (1 << 40) + 1},
        {"max_rows": 5, "kind": "dense", "rows": 3},
        {"evict": "fifo"},
    ],
)
def test_impossible_max_rows_and_policies_are_refused(options):
    with pytest.raises((InvalidValue, UnknownName)):
        TableSpec("e", **{"kind": "sparse", **options})
