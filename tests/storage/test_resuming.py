"""A run that begins with the shards of another one trains as that one."""

from itertools import chain

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from shoal.errors import InvalidValue
from shoal.keys import KeyRange, split_evenly
from shoal.storage.shards import SavedShards, save_shards
from shoal.tables.opening import open_shard
from shoal.tables.own_methods import access_method
from shoal.tables.spec import Access, TableSpec
from tests.storage.saving import DENSE, opened, rows_of, update


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_a_table_restored_on_another_number_of_servers_trains_as_before(before, after, tmp_path):
    shards = opened(before)
    update(shards, 1.0)
    for rank in range(before):
        save_shards(tmp_path / "shards", rank, [(0, shards[0][rank]), (0, shards[1][rank])])
    again = opened(after, SavedShards(tmp_path).beginning(open_shard))
    for each in (shards, again):
        update(each, 0.5)
    dense, sparse = rows_of(shards)
    dense_again, sparse_again = rows_of(again)
    assert torch.equal(dense, dense_again)
    assert sparse == sparse_again
    assert len(sparse) == 500


RATE = {"lr": 0.1, "schedule": "exponential", "schedule_gamma": 0.9}
COUNTING = [Access("adam", {"lr": 0.1}), Access("sgd", {**RATE, "momentum": 0.9})]


@access_method("resumed.fading", state=lambda width: width + 1)
def fading(row, state, update, lr=0.1):
    state[row.size] += 1
    for j in range(row.size):
        state[j] = 0.9 * state[j] + update[j] * update[j]
        row[j] -= lr / state[row.size] * update[j] / (1 + state[j])


ROW_METHODS = [
    *(Access(name) for name in ("adam", "ftrl", "adagrad")),
    *(Access(name, RATE) for name in ("sgd", "resumed.fading")),
]
by_name = {"ids": lambda each: getattr(each, "name", str(each))}


def placed(spec, servers, open_=open_shard):
    """The shards of a table on that many servers, whatever number it was cut for."""
    fragments = spec.fragments()
    parts = [part for part in split_evenly(len(fragments), servers) if len(part)]
    edges = [(fragments[part.start].start, fragments[part.stop - 1].stop) for part in parts]
    return [open_(spec, KeyRange(*each)) for each in edges]


def resumed(shards, servers, folder):
    for rank, shard in enumerate(shards):
        save_shards(folder, rank, [(0, shard)])
    return placed(shards[0].spec, servers, SavedShards(folder).beginning(open_shard))


def partial_rounds(shards, seed, count=6):
    """Rounds of two pushes, of ranges of a dense table and of some rows of ranges."""
    draw, size = np.random.default_rng(seed), shards[0].spec.rows
    for _ in range(count):
        pushes = []
        for _ in range(2):
            start, stop = sorted(draw.choice(size + 1, 2, replace=False).tolist())
            keys = np.arange(start, stop, 3) if draw.random() < 0.3 else None
            number = stop - start if keys is None else len(keys)
            pushes.append((KeyRange(start, stop), keys, draw.normal(size=(number, 2))))
        for shard in shards:
            shard.merge([(1.0, None, part) for part in cut(shard, pushes)])


def cut(shard, pushes):
    for named, keys, values in pushes:
        rows = named & shard.held
        if not len(rows):
            continue
        at = slice(rows.start - named.start, rows.stop - named.start)
        if keys is not None:
            at = slice(*np.searchsorted(keys, [rows.start, rows.stop]).tolist())
        staged = shard.stage(rows, -1 if keys is None else at.stop - at.start)
        if keys is not None:
            staged.keys.copy_(torch.from_numpy(keys[at]))
        staged.values.copy_(torch.from_numpy(values[at]))
        yield staged


def keyed_rounds(shards, seed, count=6, keys=400):
    """Rounds of a push to a sparse table, of which some servers may have no key."""
    from shoal.tables.sparse.distinct import within

    draw = np.random.default_rng(seed)
    for _ in range(count):
        chosen = draw.choice(keys, draw.choice([1, 60]), replace=False).astype(np.uint64)
        values = draw.normal(size=(len(chosen), 3)).astype(np.float32)
        for shard in shards:
            here = within(chosen, shard.held.start, shard.held.stop)
            staged = shard.stage(shard.held, int(here.sum()))
            staged.keys[:], staged.values[:] = chosen[here], values[here]
            shard.merge([(1.0, None, staged)])


def bits(shards):
    """All rows with their state, by row or key, and a dense table's counts."""
    if shards[0].spec.kind == "dense":
        states = [shard.state() for shard in shards]
        return {name: torch.cat([each[name] for each in states]).tolist() for name in states[0]}
    states = [(shard.state()["keys"], shard.state()["records"]) for shard in shards]
    found = [zip(keys.tolist(), rows.tolist(), strict=True) for keys, rows in states]
    return dict(chain.from_iterable(found))


@pytest.mark.parametrize("after", [1, 2, 3, 5])
@pytest.mark.parametrize("before", [1, 2, 3, 5])
@pytest.mark.parametrize("access", COUNTING, **by_name)
def test_partial_rounds_resume_bitwise_on_any_number_of_servers(access, before, after, tmp_path):
    spec = TableSpec("w", 101, (2,), access=access, fragment_rows=-(-101 // (2 * before)))
    shards = placed(spec, before)
    partial_rounds(shards, 0)
    assert len({n for shard in shards for n in shard.updates}) > 1
    again = resumed(shards, after, tmp_path)
    assert bits(again) == bits(shards)
    for each in (shards, again):
        partial_rounds(each, 1)
    assert bits(again) == bits(shards)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 2), (3, 1), (2, 5)])
@pytest.mark.parametrize("access", ROW_METHODS, **by_name)
def test_a_sparse_table_resumes_bitwise_on_any_number_of_servers(access, before, after, tmp_path):
    shards = placed(TableSpec("e", 0, (3,), kind="sparse", access=access).cut(before), before)
    keyed_rounds(shards, 0)
    again = resumed(shards, after, tmp_path)
    for each in (shards, again):
        keyed_rounds(each, 1)
    assert bits(again) == bits(shards)
    assert {s.updates for s in again} == {s.updates for s in shards} == {12}


def test_a_sparse_shard_resumes_with_its_own_number_of_updates(tmp_path):
    """A server that refused a push has fewer; its rows have the rate that follows from them."""
    spec = TableSpec("e", 0, (3,), kind="sparse", access=Access("sgd", RATE)).cut(2)
    shards = placed(spec, 2)
    keyed_rounds(shards, 0)
    keyed_rounds(shards[1:], 1)
    again = resumed(shards, 2, tmp_path)
    assert [shard.updates for shard in again] == [6, 12]
    for each in (shards, again):
        keyed_rounds(each, 2)
    assert bits(again) == bits(shards)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_a_bounded_table_resumes_bitwise_on_as_many_servers(evict, servers, tmp_path):
    """The same rows are evicted, and the others are at the same places."""
    spec = TableSpec(
        "e", 0, (3,), kind="sparse", access=ROW_METHODS[0], max_rows=100, evict=evict
    ).cut(servers)
    shards = placed(spec, servers)
    keyed_rounds(shards, 0, 20)
    again = resumed(shards, servers, tmp_path)
    evicted = sum(shard.evicted for shard in shards)
    for each in (shards, again):
        keyed_rounds(each, 1, 20)
    assert bits(again) == bits(shards)
    assert [s.keys.tolist() for s in again] == [s.keys.tolist() for s in shards]
    assert sum(shard.evicted for shard in shards) > evicted + 100


def test_a_dense_table_of_other_fragments_is_refused(tmp_path):
    """Its counts of updates are those of the fragments that it had."""
    resumed(placed(DENSE, 2), 2, tmp_path)
    other = replace(DENSE, fragment_rows=5)
    with pytest.raises(InvalidValue, match=r"_rows 5 and in .* 3; declare it with fragment_rows=3"):
        SavedShards(tmp_path).beginning(open_shard)(other, DENSE.keys)
    other = replace(other, access=Access("sgd"))  # which takes no counts of it
    again = SavedShards(tmp_path).beginning(open_shard)(other, DENSE.keys)
    assert again.updates == [0] * 4
