"""Access methods of users: what they compute, and what becomes of one that fails."""

from pathlib import Path

import numpy as np
import pytest

from shoal.errors import AccessFailed, InvalidValue, UnknownName
from shoal.keys import KeyRange
from shoal.tables.init import Init
from shoal.tables.own_methods import access_method
from shoal.tables.sparse.optimizers import row_method_of
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.sparse.user_methods import _may_raise
from shoal.tables.spec import SLOTS, Access, TableSpec

WIDTH = 3


@access_method("t.fading", state=lambda width: width + 1)
def fading(row, state, update, lr=0.1, decay=0.9):
    state[row.size] += 1
    for j in range(row.size):
        s = decay * state[j] + update[j] * update[j]
        state[j] = s
        row[j] -= lr * update[j] / np.sqrt(s)


@access_method("t.picky", state=lambda width: 1)
def picky(row, state, update):
    row[0] += update[0]
    state[0] += 1
    if update[1] > 100:
        raise ValueError("too large")
    row[1] += update[1]


def by_key(key, seed, row, state):
    if key == 666:
        raise KeyError("not this one")
    row[:] = seed + np.float32(key)
    state[0] = -1


def plain(row, state, update):
    for j in range(row.size):
        row[j] += update[j]


def largest(into, update, factor):
    for j in range(into.size):
        into[j] = max(into[j], factor * update[j])


def squared(row, state, out):
    for j in range(row.size):
        out[j] = row[j] * row[j]


def shy(row, state, out):
    if row[0] > 5:
        raise ValueError("not shown")
    out[:] = row


access_method("t.shy", read=shy, state=lambda width: 1)(plain)
access_method("t.by_key", init=by_key, state=lambda width: 1)(plain)
access_method("t.largest", merge=largest, read=squared)(plain)


def spec(name, **more):
    options = more.pop("options", {})
    return TableSpec("t", row_shape=(WIDTH,), kind="sparse", access=Access(name, options), **more)


def shard(name, **more):
    return SparseShard(spec(name, **more), KeyRange(0, SLOTS))


def staged(table, keys, values):
    load = table.stage(KeyRange(0, SLOTS), len(keys))
    load.keys[:], load.values[:] = keys, values
    return load


def pull(table, keys):
    load = table.stage_keys(KeyRange(0, SLOTS), len(keys))
    load.keys[:] = keys
    return np.frombuffer(table.read_keys(load), table.dtype).reshape(len(keys), WIDTH)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_users_method_computes_what_its_functions_do(dtype):
    table = shard("t.fading", dtype=dtype, options={"decay": 0.5, "lr": 0.2})
    random, row, state = np.random.default_rng(0), np.zeros(WIDTH), np.zeros(WIDTH + 1)
    for _ in range(5):
        update = random.normal(size=WIDTH).astype(dtype)
        table.apply(staged(table, [5], update), None)
        fading(row, state, update, 0.2, 0.5)
    np.testing.assert_allclose(pull(table, [5])[0], row, rtol=1e-5)
    np.testing.assert_allclose(table.records[WIDTH : 2 * WIDTH + 1], state, rtol=1e-5)
    assert table.records[2 * WIDTH] == 5


def test_a_pushs_rate_overrides_a_users_methods_schedule():
    table = shard("t.fading", options={"schedule": "step", "schedule_every": 1})
    table.apply(staged(table, [1], np.ones(WIDTH)), 2.0)
    assert pull(table, [1])[0].tolist() == [-2.0] * WIDTH


def test_an_apply_that_raises_leaves_all_rows_unchanged():
    table = shard("t.picky")
    table.apply(staged(table, [1, 2, 3], np.ones((3, WIDTH))), None)
    before, updates = table.records[: 3 * table.stride].copy(), np.ones((5, WIDTH))
    updates[4, 1] = 101
    with pytest.raises(AccessFailed, match=r"apply of .* raised ValueError"):
        table.apply(staged(table, [2, 1, 2, 2, 3], updates), None)
    assert np.array_equal(table.records[: 3 * table.stride], before)
    table.apply(staged(table, [2], np.ones(WIDTH)), None)
    assert pull(table, [2])[0].tolist() == [2.0, 2.0, 0.0]


def test_a_read_that_raises_does_not_undo_the_push_before_it():
    """Of the same request, too: the push is applied whole, and counts."""
    table = shard("t.shy")
    load = staged(table, [1, 2], [[6.0] * WIDTH, [1.0] * WIDTH])
    load.kept = True
    table.apply(load, None)
    assert table.updates == 1
    with pytest.raises(AccessFailed, match=r"read of .* raised ValueError"):
        table.read_keys(load)
    assert pull(table, [2]).tolist() == [[1.0] * WIDTH]


def test_a_table_grows_after_its_method_has_raised():
    """Numba holds what a function was given that raised, for ever; the records are not held."""
    table = shard("t.picky")
    updates = np.full((3, WIDTH), 101.0)
    for _ in range(3):
        with pytest.raises(AccessFailed):
            table.apply(staged(table, [1, 2, 3], updates), None)
    assert not pull(table, list(range(50_000)))[3:].any()
    assert len(table) == 50_000


def test_only_a_method_that_may_raise_keeps_a_copy():
    assert _may_raise(row_method_of(spec("t.picky"))._compiled["apply"])
    assert not _may_raise(row_method_of(spec("t.fading"))._compiled["apply"])


@pytest.mark.parametrize("more", [{}, {"max_rows": 4}])
def test_an_init_that_raises_creates_no_rows(more):
    table = shard("t.by_key", init=Init(seed=10), **more)
    assert pull(table, [7, 8, 7])[:, 0].tolist() == [17.0, 18.0, 17.0]
    with pytest.raises(AccessFailed, match=r"init of .* raised KeyError"):
        pull(table, [9, 666, 7])
    assert len(table) == 2
    assert sorted(table.keys[:2].tolist()) == [7, 8]
    assert pull(table, [9])[0, 0] == 19


def test_a_users_merge_and_read_are_used():
    table = shard("t.largest", merge="sum")
    one = staged(table, [1, 2], np.array([[1, 2, 3], [4, 5, 6]]))
    other = staged(table, [2, 3], np.array([[1, 9, 1], [2, 2, 2]]))
    table.merge([(1.0, None, one), (1.0, None, other)])
    assert pull(table, [1, 2, 3]).tolist() == [[1, 4, 9], [16, 81, 36], [4, 4, 4]]


def out_of_range(row, state, update):
    state[row.size] += 1


def returning(row, state, update):
    return row + update


def no_numba(row, state, update):
    Path("/dev/null").touch()


def no_bytecode(row, state, update):
    assert row.size, f"{row.size:>3}"


def half(row, state, out):
    out[0] = row[0]


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"apply": out_of_range}, "apply of access method 't.bad' raised IndexError on a trial"),
        ({"apply": returning}, "returned a ndarray: it has to change its arrays in place"),
        ({"apply": no_numba}, "cannot be compiled by numba"),
        ({"apply": no_bytecode}, "cannot be compiled by numba: format spec in f-strings"),
        ({"apply": plain, "read": half}, "left 2 of 3 elements of a pull unwritten"),
        ({"apply": plain, "init": plain}, "init of access method 't.bad' raised TypeError"),
    ],
)
def test_a_wrong_method_is_refused_when_its_table_is_opened(functions, words):
    apply = functions.pop("apply")
    access_method("t.bad", **functions)(apply)
    with pytest.raises(InvalidValue, match=words):
        row_method_of(spec("t.bad"))


def test_a_methods_name_and_options_are_checked():
    with pytest.raises(InvalidValue, match="'adagrad' is built in"):
        access_method("adagrad")(plain)
    with pytest.raises(InvalidValue, match="lr has to be the first"):
        access_method("t.bad")(lambda row, state, update, decay=1, lr=2: None)
    with pytest.raises(InvalidValue, match=r"decay of apply is an option .* not 'x'"):
        access_method("t.bad")(lambda row, state, update, decay="x": None)
    with pytest.raises(InvalidValue, match=r"decay of apply is an option .* not none"):
        access_method("t.bad")(lambda row, state, update, decay: None)
    for apply in (lambda row, state, update, *o: None, lambda row, state, update, *, lr=1: None):
        with pytest.raises(InvalidValue, match="named parameters after `update`"):
            access_method("t.bad")(apply)
    with pytest.raises(UnknownName, match="--import MODULE"):
        row_method_of(spec("t.nobody"))
    with pytest.raises(UnknownName, match="decay2"):
        row_method_of(spec("t.fading", options={"decay2": 1}))
