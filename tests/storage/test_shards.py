"""Shards on disk: written by some servers, taken over by others; exported."""

import json
import subprocess
import sys
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from shoal.apps.export import export
from shoal.errors import DataCorrupt, DataMissing, InvalidValue
from shoal.keys import SLOTS, KeyRange, slot_of, split_evenly
from shoal.storage.shards import SavedShards, save_shards
from shoal.tables.opening import open_shard
from shoal.tables.sparse.user_methods import access_method
from shoal.tables.spec import Access, Init, TableSpec

DENSE = TableSpec("w", 20, (2,), access=Access("adam", {"lr": 0.1}), fragment_rows=3)
SPARSE = TableSpec(
    "e", 0, (3,), kind="sparse", access=Access("adagrad"), init=Init("normal"), fragment_rows=16
)
KEYS = np.random.default_rng(0).integers(0, 1 << 64, 500, dtype=np.uint64)


def ranges(spec, servers):
    if spec.sparse:
        return split_evenly(SLOTS, servers)
    edges = [20 * i // servers // 3 * 3 for i in range(servers)] + [20]
    return [KeyRange(a, b) for a, b in pairwise(edges)]


def pushed(shard, values, keys=None):
    load = shard.stage(shard.held, -1 if keys is None else len(keys))
    if keys is None:
        load.values[:] = values
    else:
        load.keys[:], load.values[:] = keys, values
    shard.apply(load, None)


def mine(shard):
    from shoal.tables.sparse.distinct import within

    return KEYS[within(KEYS, shard.held.start, shard.held.stop)]


def update(shards, step):
    """The same updates, however many servers there are."""
    dense, sparse = shards
    for shard in dense:
        rows = torch.arange(40.0).view(20, 2).sin() * step
        pushed(shard, rows[shard.held.start : shard.held.stop])
    for shard in sparse:
        keys = mine(shard)
        pushed(shard, np.stack([(keys % 7).astype(np.float32) * step] * 3, 1), keys)


def opened(servers, open_=open_shard):
    return [[open_(spec, held) for held in ranges(spec, servers)] for spec in (DENSE, SPARSE)]


def rows_of(shards):
    dense, sparse = shards
    found = {}
    for shard in sparse:
        for number, key in enumerate(shard.keys.tolist()):
            found[key] = shard.records[number * shard.stride :][: shard.stride].tolist()
    return torch.cat([s.rows for s in dense]), found


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


def fading(row, state, update, lr):
    state[row.size] += 1
    for j in range(row.size):
        state[j] = 0.9 * state[j] + update[j] * update[j]
        row[j] -= lr / state[row.size] * update[j] / (1 + state[j])


access_method("resumed.fading", fading, state=lambda width: width + 1, options={"lr": 0.1})
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


def test_a_table_restored_with_another_method_has_the_rows_and_new_slots(tmp_path):
    shards = opened(1)
    update(shards, 1.0)
    save_shards(tmp_path / "shards", 0, [(0, each[0]) for each in shards])
    saved = SavedShards(tmp_path)
    other = TableSpec("e", 0, (3,), kind="sparse", access=Access("adam"))
    shard = saved.beginning(open_shard)(other, KeyRange(0, SLOTS))
    row, old = shard.records[: shard.stride], shards[1][0]
    place = old.keys.tolist().index(int(shard.keys[0]))
    assert row[:3].tolist() == old.records[place * old.stride :][:3].tolist()
    assert row[3:].tolist() == [0.0] * 7
    with pytest.raises(InvalidValue, match=r"table 'e' has row_shape \(4,\)"):
        saved.beginning(open_shard)(TableSpec("e", 0, (4,), kind="sparse"), KeyRange(0, SLOTS))


def test_export_writes_every_table(tmp_path):
    shards = opened(2)
    update(shards, 1.0)
    for rank in range(2):
        save_shards(tmp_path / "shards", rank, [(0, shards[0][rank]), (0, shards[1][rank])])
    dense, sparse = rows_of(shards)
    [path] = export(tmp_path, "safetensors", None)
    tensors = load_file(path)
    assert torch.equal(tensors["w"], dense)
    keys = tensors["e.keys"].numpy().view(np.uint64)
    assert keys.tolist() == sorted(KEYS.tolist())
    assert tensors["e.rows"][5].tolist() == sparse[int(keys[5])][:3]
    paths = export(tmp_path, "text", tmp_path / "text")
    assert [path.name for path in paths] == ["w.txt", "e.txt"]
    key, *row = paths[1].read_text().splitlines()[5].split()
    assert int(key) == keys[5]
    assert [np.float32(value) for value in row] == [np.float32(x) for x in sparse[int(key)][:3]]


def test_an_exported_text_file_stays_in_its_folder_whatever_the_tables_name(tmp_path):
    shard = open_shard(
        TableSpec("../../up", 3, access=Access("sum"), fragment_rows=3), KeyRange(0, 3)
    )
    save_shards(tmp_path / "run" / "shards", 0, [(0, shard)])
    [path] = export(tmp_path / "run", "text", None)
    assert path == tmp_path / "run" / "export" / "_.._up.txt"
    assert path.read_text() == "0 0\n1 0\n2 0\n"


def test_a_custom_table_is_exported(tmp_path):
    spec = TableSpec("kv", kind="custom", access=Access("lists"))
    for rank, held in enumerate((KeyRange(0, SLOTS // 2), KeyRange(SLOTS // 2, SLOTS))):
        shard = open_shard(spec, held)
        mine = [key for key in range(20) if slot_of(key) in held]
        shard.handler.rows = {key: np.arange(key % 3, dtype=np.float32) for key in mine}
        save_shards(tmp_path / "shards", rank, [(0, shard)])
    [path] = export(tmp_path, "text", None)
    lines = [line.split() for line in path.read_text().splitlines()]
    assert lines == [[str(key), *map(str, range(key % 3))] for key in range(20)]
    tensors = load_file(export(tmp_path, "safetensors", None)[0])
    assert tensors["kv.lens"].tolist() == [key % 3 for key in range(20)]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(DataMissing, match="has no shards"):
        SavedShards(tmp_path)
    save_shards(tmp_path / "shards", 0, [(0, each[0]) for each in opened(1)])
    path = tmp_path / "shards" / "server-0.safetensors"
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(DataCorrupt, match=r"server-0.safetensors is no file of shards"):
            SavedShards(tmp_path).merged("e")


@pytest.mark.parametrize("spec", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_a_shard_file_that_contradicts_its_metadata_is_refused(spec, tmp_path):
    held = spec.keys
    shard = open_shard(spec, held)
    state = shard.state()
    for gone in ("keys", "records") if spec.sparse else ("rows",):
        shard.state = lambda gone=gone: {k: v for k, v in state.items() if k != gone}
        save_shards(tmp_path / gone, 0, [(0, shard)])
        with pytest.raises(DataCorrupt, match="not what their specification says"):
            SavedShards(tmp_path / gone).beginning(open_shard)(spec, held)


@pytest.mark.real
def test_a_run_is_exported_and_continued_on_another_number_of_servers(tmp_path):
    def shoal(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "shoal", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    losses, run = [], ""
    for more in (("--servers", "2"), ("--servers", "3", "--workers", "1")):
        init = ("--init", run) if run else ()
        ended = shoal("train", "ctr", "--model", "deepfm", "--json", *more, *init)
        assert ended.returncode == 0, ended.stderr
        summary = json.loads(ended.stdout.splitlines()[-1])
        run = summary["run_dir"]
        losses.append(summary["progressive"]["log_loss"])
    assert losses[1] < losses[0] - 0.01
    exported = shoal("export", run)
    assert exported.returncode == 0, exported.stderr
    tensors = load_file(tmp_path / exported.stdout.strip())
    assert {"linear.keys", "linear.rows", "params.float32"} <= set(tensors)
    refused = shoal("train", "ctr", "--init", "nowhere")
    assert refused.returncode == 2
    assert "nowhere has no shards" in refused.stderr


def test_the_replica_nearest_to_the_tail_in_the_latest_view_counts(tmp_path):
    """Of an arc the copy counts that was nearest to its tail, in the latest view."""
    (low, high), _ = opened(2)
    low.rows.fill_(1)
    high.rows.fill_(2)
    save_shards(tmp_path, 0, [(0, low), (1, high)], (1, 5))
    expected = torch.cat([low.rows, high.rows])
    assert torch.equal(SavedShards(tmp_path).merged("w")["rows"], expected)
    high.rows.fill_(3)
    save_shards(tmp_path, 1, [(0, high)], (1, 4))  # it was cut off
    assert torch.equal(SavedShards(tmp_path).merged("w")["rows"], expected)
    save_shards(tmp_path, 1, [(0, high)], (1, 5))
    assert torch.equal(SavedShards(tmp_path).merged("w")["rows"][len(low.rows) :], high.rows)


def test_a_table_with_missing_rows_is_refused(tmp_path):
    (low, high), _ = opened(2)
    save_shards(tmp_path, 0, [(0, low)])
    for table in (lambda: SavedShards(tmp_path).merged("w"), lambda: open_saved(tmp_path, high)):
        with pytest.raises(DataCorrupt, match="does not have all rows of table 'w'"):
            table()


def open_saved(folder, shard):
    return SavedShards(folder).beginning(open_shard)(shard.spec, shard.held)
