"""Checkpoints on disk: complete or not there, and never a damaged one by mistake."""

import json
import random
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from shoal.errors import DataCorrupt, DataMissing
from shoal.keys import KeyRange
from shoal.protocol.machine import Save
from shoal.storage import checkpoints
from shoal.storage.checkpoints import Checkpoints, Writer
from shoal.storage.shards import SavedShards
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec

SPEC = TableSpec("w", 12, (3,), access=Access("adam", {"lr": 0.1}), fragment_rows=2)
PARTS = [KeyRange(0, 6), KeyRange(6, 12)]


def shard_of(rows, value):
    shard = open_shard(SPEC, rows)
    staged = shard.stage(rows, -1)
    staged.values.copy_(torch.full((len(rows), 3), float(value)))
    shard.apply(staged, None)
    return shard


def save(folder, clock, parts=PARTS, tables=("w",), offset=0):
    writer = Writer(lambda: folder, offset)
    for rows in parts:
        state = shard_of(rows, clock).state(copied=True)
        writer.put(Save(clock, 0, SPEC, rows, state, tables))
    writer.close()


def test_the_newest_complete_checkpoint_is_chosen(tmp_path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    save(tmp_path, 30, PARTS[:1])
    found = Checkpoints(tmp_path)
    assert found.choose() == 20
    assert found.choose(10) == 10
    lack = r"names table 'w', and not all rows of it are there"
    with pytest.raises(
        DataMissing, match=rf"no complete checkpoint 30 \(complete: 10, 20\); 30 is not.*{lack}"
    ):
        found.choose(30)


def test_pruning_keeps_the_last_complete_checkpoints_and_newer_ones(tmp_path):
    for clock in (10, 20, 30):
        save(tmp_path, clock)
    save(tmp_path, 25, PARTS[:1])
    save(tmp_path, 40, PARTS[:1])
    Checkpoints(tmp_path).prune(4)
    assert len(list(tmp_path.iterdir())) == 5
    Checkpoints(tmp_path).prune(2)
    assert sorted(int(each.name) for each in tmp_path.iterdir()) == [20, 25, 30, 40]
    Checkpoints(tmp_path).prune(1)
    assert sorted(int(each.name) for each in tmp_path.iterdir()) == [30, 40]


def test_pruning_does_not_count_a_damaged_checkpoint(tmp_path):
    for clock in (10, 20):
        save(tmp_path, clock)
    file = next((tmp_path / "0000000020").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-3])
    Checkpoints(tmp_path).prune(1)
    assert sorted(int(each.name) for each in tmp_path.iterdir()) == [10, 20]
    assert Checkpoints(tmp_path).choose(10) == 10


def test_pruning_keeps_the_bases_of_kept_checkpoints(tmp_path):
    shard, writer = open_shard(SPARSE, SPARSE.keys), Writer(lambda: tmp_path, keep=1)
    since = -1
    push_to(shard, *range(200))
    for clock in (10, 20, 30):
        push_to(shard, clock)
        state = shard.state(copied=True) if since < 0 else shard.changes()
        writer.put(Save(clock, 0, SPARSE, SPARSE.keys, state, ("s",), since))
        since = clock
    writer.close()
    assert sorted(int(each.name) for each in tmp_path.iterdir()) == [10, 20, 30]
    writer = Writer(lambda: tmp_path, keep=1)
    writer.put(Save(40, 0, SPARSE, SPARSE.keys, shard.state(copied=True), ("s",), -1))
    writer.close()
    assert [int(each.name) for each in tmp_path.iterdir()] == [40]


def test_a_checkpoint_without_one_of_the_tables_is_not_complete(tmp_path):
    save(tmp_path, 10, tables=("w", "other"))
    with pytest.raises(DataMissing, match="no complete checkpoint"):
        Checkpoints(tmp_path).choose()
    with pytest.raises(DataMissing):
        Checkpoints(tmp_path / "nowhere").choose()


def test_a_resumed_run_continues_the_checkpoint_clocks(tmp_path):
    save(tmp_path, 10, offset=40)
    assert Checkpoints(tmp_path).choose() == 50


def test_another_number_of_servers_begins_with_the_saved_rows(tmp_path):
    save(tmp_path, 10)
    saved = SavedShards(Checkpoints(tmp_path).path(10))
    thirds = [KeyRange(start, start + 4) for start in (0, 4, 8)]
    shards = [saved.beginning(open_shard)(SPEC, rows) for rows in thirds]
    whole = [shard_of(rows, 10) for rows in PARTS]
    assert torch.equal(torch.cat([s.rows for s in shards]), torch.cat([s.rows for s in whole]))
    for slot in shards[0].slots:
        ours = torch.cat([s.slots[slot] for s in shards])
        assert torch.equal(ours, torch.cat([s.slots[slot] for s in whole]))
    assert [n for s in shards for n in s.updates] == [1] * 6


def test_a_truncated_file_is_refused_and_the_last_good_checkpoint_offered(tmp_path):
    """At 200 places, the first and the last byte among them."""
    save(tmp_path, 10)
    save(tmp_path, 20)
    path = Checkpoints(tmp_path).path(20) / "shard-0-6.safetensors"
    data = path.read_bytes()
    places = {0, 1, 7, 8, 9, len(data) - 1}
    draw = random.Random(0)
    while len(places) < 200:
        places.add(draw.randrange(len(data)))
    for place in sorted(places):
        path.write_bytes(data[:place])
        with pytest.raises(DataCorrupt, match=r"checkpoint 20 is damaged .*--resume-at 10"):
            Checkpoints(tmp_path).choose()
    path.write_bytes(data)
    assert Checkpoints(tmp_path).choose() == 20


@pytest.mark.parametrize(
    ("old", "new"), [(b'"lr\\":0.1', b'"lr\\":0.9'), (b"[6,12]", b"[6,13]"), (b'"w\\"]', b'"v\\"]')]
)
def test_a_checkpoints_metadata_is_checked(tmp_path, old, new):
    save(tmp_path, 10)
    save(tmp_path, 20)
    path = Checkpoints(tmp_path).path(20) / "shard-0-6.safetensors"
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    with pytest.raises(DataCorrupt, match=r"metadata are not as they were.*--resume-at 10"):
        Checkpoints(tmp_path).choose()


def test_a_changed_byte_is_refused(tmp_path):
    save(tmp_path, 10)
    path = Checkpoints(tmp_path).path(10) / "shard-0-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DataCorrupt, match=r"its rows are not as they were written.*no other is intact"
    ):
        Checkpoints(tmp_path).choose()


def test_a_checkpoint_that_cannot_be_written_is_skipped(tmp_path, caplog):
    save(tmp_path, 10)
    (tmp_path / "0000000020").write_text("in its way")
    writer = Writer(lambda: tmp_path)
    for clock in (20, 30):
        for rows in PARTS:
            writer.put(Save(clock, 0, SPEC, rows, shard_of(rows, clock).state(copied=True), ("w",)))
    writer.close()
    (tmp_path / "0000000020").unlink()
    assert Checkpoints(tmp_path).choose() == 30
    assert caplog.text.count("checkpoint 20 could not be written") == 2


def test_a_slow_disk_skips_checkpoints_and_blocks_nothing(tmp_path, caplog, monkeypatch):
    slow, begun = threading.Event(), threading.Event()

    def write(*arguments):
        begun.set()
        slow.wait()
        return right(*arguments)

    right = checkpoints._write
    monkeypatch.setattr(checkpoints, "_write", write)
    writer = Writer(lambda: tmp_path, most_bytes=1)
    for clock in (10, 20, 30):
        writer.put(Save(clock, 0, SPEC, PARTS[0], shard_of(PARTS[0], clock).state(copied=True), ()))
        begun.wait()
    slow.set()
    writer.close()
    assert [each.name for each in tmp_path.iterdir()] == ["0000000010"]
    assert "checkpoint 20 is left out" in caplog.text
    assert "checkpoint 30 is left out" in caplog.text


def mutated(data, draw):
    """A file with some bytes changed, cut out or put in, most of them in its header."""
    changed = bytearray(data)
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(header if draw.random() < 0.7 else len(changed))
        kind = draw.randrange(4)
        if kind == 0:
            changed[at : at + draw.randrange(1, 20)] = b""
        elif kind == 1:
            changed[at:at] = draw.randbytes(draw.randrange(1, 20))
        elif kind == 2:  # a digit: still a header that can be read
            changed[at : at + 1] = b"%d" % draw.randrange(10)
        else:
            changed[at % len(changed)] = draw.randrange(256)
    return bytes(changed)


def siege(folder, count, seed=0):
    """Read that many mutated checkpoints; those that are taken have the rows that were written."""
    draw = random.Random(seed)
    save(folder, 10)
    save(folder, 20)
    found = Checkpoints(folder)
    path = found.path(20) / "shard-0-6.safetensors"
    data, refused, memory = path.read_bytes(), 0, []
    for number in range(count):
        path.write_bytes(mutated(data, draw))
        try:
            clock = found.choose()
        except DataCorrupt as error:
            refused += "--resume-at 10" in error.message
        else:
            rows = SavedShards(found.path(clock)).beginning(open_shard)(SPEC, PARTS[1]).rows
            assert torch.equal(rows, shard_of(PARTS[1], clock).rows)
        if number in (count // 10, count - 1):
            status = Path("/proc/self/status").read_text()
            memory.append(int(status.split("VmRSS:")[1].split()[0]))
    return {"mutated": count, "refused": refused, "growth": memory[1] / memory[0] - 1}


def test_a_mutated_checkpoint_is_refused_or_reads_as_written(tmp_path):
    report = siege(tmp_path, 300)
    assert report["refused"] > 290  # the others have a byte for the same one, or none
    assert report["growth"] < 0.05


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(siege(Path(place), int(sys.argv[1]))))


def test_a_sparse_table_without_rows_is_saved(tmp_path):
    spec = TableSpec("s", kind="sparse", access=Access("adagrad", {"lr": 0.1}))
    rows = spec.keys
    writer = Writer(lambda: tmp_path)
    writer.put(Save(10, 0, spec, rows, open_shard(spec, rows).state(copied=True), ("s",)))
    writer.close()
    found = Checkpoints(tmp_path)
    assert found.choose() == 10
    assert len(open_saved(found.path(10), spec)) == 0


def open_saved(folder, spec):
    return SavedShards(folder).beginning(open_shard)(spec, spec.keys)


SPARSE = TableSpec("s", kind="sparse", access=Access("sum"))


def push_to(shard, *keys):
    staged = shard.stage(shard.held, len(keys))
    staged.keys[:] = keys
    staged.values[:] = 1
    shard.apply(staged, None)


@pytest.fixture
def chain(tmp_path):
    """Three files: all rows, and twice what has changed since."""
    shard, writer = open_shard(SPARSE, SPARSE.keys), Writer(lambda: tmp_path, offset=100)
    push_to(shard, *range(200))
    for clock, since in ((10, -1), (20, 10), (30, 20)):
        state = shard.state(copied=True) if since < 0 else shard.changes()
        writer.put(Save(clock, 0, SPARSE, SPARSE.keys, state, ("s",), since))
        push_to(shard, 3, 250 + clock)
    writer.close()
    return tmp_path


def test_an_incremental_checkpoint_reads_with_its_bases(chain):
    found = Checkpoints(chain)
    assert [found.choose(clock) for clock in (110, 120, 130)] == [110, 120, 130]
    sizes = [next(found.path(c).iterdir()).stat().st_size for c in (110, 120)]
    assert sizes[1] < sizes[0]
    merged = SavedShards(found.path(130)).merged("s")
    rows = dict(zip(merged["keys"].tolist(), merged["rows"].flatten().tolist(), strict=True))
    assert rows == {**dict.fromkeys(range(200), 1.0), 3: 3.0, 260: 1.0, 270: 1.0}
    assert len(open_saved(found.path(130), SPARSE)) == 202


def test_an_incremental_checkpoint_with_a_damaged_or_missing_base_is_refused(chain):
    found = Checkpoints(chain)
    file = next(found.path(120).iterdir())
    content = file.read_bytes()
    file.write_bytes(content[:-3])
    with pytest.raises(DataCorrupt, match="--resume-at 110"):
        found.choose()
    file.unlink()
    assert found.choose() == 110
    with pytest.raises(
        DataMissing, match=r"130 \(complete: 110\); 130 is not.*0120.*, which does not exist"
    ):
        found.choose(130)
    file.write_bytes(content)
    assert found.choose() == 130


def test_a_checkpoint_that_is_left_out_is_reported_to_its_shard(tmp_path):
    heard = []
    writer = Writer(lambda: tmp_path, left_out=lambda: heard.append(True))
    (tmp_path / "0000000010").write_text("in its way")
    save = Save(10, 0, SPARSE, SPARSE.keys, open_shard(SPARSE, SPARSE.keys).state(), ("s",))
    writer.put(save)
    writer.close()
    assert heard == [True]


def test_an_incremental_file_based_on_another_servers_file_is_refused(chain):
    """Another server may have written the same rows since, at other places."""
    found = Checkpoints(chain)
    shard, other = open_shard(SPARSE, SPARSE.keys), Writer(lambda: chain, offset=100)
    push_to(shard, 1, 2, 3)
    other.put(Save(10, 0, SPARSE, SPARSE.keys, shard.state(copied=True), ("s",)))
    other.close()
    with pytest.raises(DataCorrupt, match=r"its changes are of another .*0000000110"):
        found.choose(120)
    assert found.choose(110) == 110


def test_changes_of_a_file_that_was_not_written_are_left_out(tmp_path):
    heard = []
    shard = open_shard(SPARSE, SPARSE.keys)
    writer = Writer(lambda: tmp_path, left_out=lambda: heard.append(True))
    push_to(shard, 1, 2)
    state = shard.state(copied=True)
    writer.put(Save(20, 0, SPARSE, SPARSE.keys, state, ("s",), 10))
    writer.close()
    assert heard == [True]
    assert list(tmp_path.iterdir()) == []
