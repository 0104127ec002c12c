"""Shards on disk: written by some servers, taken over by others; exported."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shoal.apps.export import export
from shoal.errors import AccessFailed, DataCorrupt, DataMissing, InvalidValue
from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.storage.shards import SavedShards, save_shards
from shoal.tables.custom.shard import handler
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec
from tests.storage.saving import DENSE, KEYS, SPARSE, opened, pushed, rows_of, update


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
        with pytest.raises(DataCorrupt, match=r"server-0.safetensors is damaged"):
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


BOUNDED = TableSpec("b", row_shape=(2,), kind="sparse", max_rows=40, access=Access("sum"))
CUSTOM = TableSpec("kv", kind="custom", access=Access("lists"))


def saved_with(folder, spec, **changes):
    """The shards of a run in which a server has written another state than it had."""
    shard = open_shard(spec, spec.keys)
    if spec.kind == "custom":
        shard.handler.rows = {key: np.ones(2, np.float32) for key in range(8)}
    elif spec.sparse:
        pushed(shard, 1.0, np.arange(40, dtype=np.uint64))
    state = {**shard.state(), **changes}
    shard.state = lambda: state
    save_shards(folder, 0, [(0, shard)])
    return SavedShards(folder)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (BOUNDED, {"drawn": torch.tensor([0])}),  # evictions would draw the same place for ever
        (BOUNDED, {"uses": torch.full((40, 2), -1)}),
        (CUSTOM, {"lens": torch.full((8,), 1 << 61), "values": torch.ones(0)}),  # sum: 2^64
        (SPARSE, {"records": torch.ones(0, 6), "keys": torch.ones(0, dtype=torch.int32)}),
        (DENSE, {"updates": torch.tensor([-1])}),
    ],
    ids=["drawn", "uses", "lens", "keys", "updates"],
)
def test_a_state_that_no_shard_has_is_refused_by_name_and_reaches_no_loop(spec, changes, tmp_path):
    saved = saved_with(tmp_path, spec, **changes)
    for read in (
        lambda: saved.merged(spec.name),
        lambda: saved.beginning(open_shard)(spec, spec.keys),
    ):
        with pytest.raises(DataCorrupt, match=r"server-0\.safetensors is damaged: its rows"):
            read()


@pytest.mark.parametrize("read", ["export", "begin"])
def test_a_changed_byte_of_a_final_shard_is_refused_by_name(read, tmp_path):
    shard = open_shard(DENSE, DENSE.keys)
    save_shards(tmp_path / "shards", 0, [(0, shard)])
    path = tmp_path / "shards" / "server-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataCorrupt, match=r"server-0\.safetensors is damaged: its rows are not"):
        export(tmp_path, "text", None) if read == "export" else open_saved(tmp_path, shard)


def test_files_that_disagree_on_a_table_are_refused(tmp_path):
    (low, high), _ = opened(2)
    other = TableSpec("w", 20, (3,), access=Access("adam"), fragment_rows=3)
    save_shards(tmp_path, 0, [(0, low)])
    save_shards(tmp_path, 1, [(0, open_shard(other, high.held))])
    with pytest.raises(DataCorrupt, match=r"server-1.*server-0\.safetensors has another table"):
        SavedShards(tmp_path)


def test_a_server_reads_no_file_whose_rows_it_does_not_have(tmp_path):
    (low, high), _ = opened(2)
    for rank, shard in enumerate((low, high)):
        save_shards(tmp_path, rank, [(0, shard)])
    path = tmp_path / "server-1.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert torch.equal(open_saved(tmp_path, low).rows, low.rows)
    with pytest.raises(DataCorrupt, match="server-1"):
        open_saved(tmp_path, high)


def test_a_handler_that_cannot_load_is_told_with_the_file(tmp_path):
    saved = saved_with(tmp_path, CUSTOM)

    class Refusing:
        def load(self, pairs):
            raise KeyError("no")

    handler("test-refusing", Refusing)
    spec = TableSpec("kv", kind="custom", access=Access("test-refusing"))
    with pytest.raises(AccessFailed, match=r"server-0\.safetensors: table 'kv'.* failed in load"):
        saved.beginning(open_shard)(spec, spec.keys)
