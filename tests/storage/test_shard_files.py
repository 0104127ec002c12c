"""What files of shards say of themselves: files of another run or clock are refused."""

from shutil import copyfile

import pytest
import torch

from shoal.errors import DataCorrupt
from shoal.keys import KeyRange
from shoal.protocol.machine import Save
from shoal.storage.checkpoints import Checkpoints, Writer
from shoal.storage.shard_files import ENDED, Origin
from shoal.storage.shards import SavedShards
from shoal.storage.verified import write_verified
from shoal.tables.opening import open_shard
from shoal.tables.spec import TableSpec

SPEC = TableSpec("w", 12, (3,), fragment_rows=2)
PARTS = [KeyRange(0, 6), KeyRange(6, 12)]


def of(run, folder, clock, **more):
    """A checkpoint of a run of that name."""
    writer = Writer(lambda: folder, origin=lambda: (run, (1, clock)), **more)
    for rows in PARTS:
        writer.put(Save(clock, 0, SPEC, rows, open_shard(SPEC, rows).state(copied=True), ("w",)))
    writer.close()


def test_a_file_of_another_clock_is_refused(tmp_path):
    """It was copied, and is as it was written."""
    of("a", tmp_path, 10)
    of("a", tmp_path, 20)
    name = "shard-0-6.safetensors"
    copyfile(tmp_path / "0000000010" / name, tmp_path / "0000000020" / name)
    why = r"checkpoint 20 .*0000000020/shard-0-6.*it is of clock 10.*folder of 20.*--resume-at 10"
    with pytest.raises(DataCorrupt, match=why):
        Checkpoints(tmp_path).choose()
    with pytest.raises(DataCorrupt, match="it is of clock 10"):
        SavedShards(tmp_path / "0000000020")
    assert SavedShards(tmp_path / "0000000010").run == "a"


def test_a_folder_that_was_renamed_is_refused(tmp_path):
    of("a", tmp_path, 10)
    (tmp_path / "0000000010").rename(tmp_path / "0000009999")
    with pytest.raises(DataCorrupt, match=r"it is of clock 10, and was put into a folder of 9999"):
        Checkpoints(tmp_path).choose()


def test_files_of_two_runs_are_no_checkpoint(tmp_path):
    of("a", tmp_path / "a", 10)
    of("b", tmp_path / "b", 10)
    name = "0000000010/shard-0-6.safetensors"
    copyfile(tmp_path / "a" / name, tmp_path / "b" / name)
    why = "shard-0-6.* it is of run 'a', and shard-0-0.safetensors beside it of 'b'"
    with pytest.raises(DataCorrupt, match=why):
        Checkpoints(tmp_path / "b").choose()
    with pytest.raises(DataCorrupt, match=why):
        SavedShards(tmp_path / "b" / "0000000010")


def test_of_replicas_that_differ_the_latest_view_counts(tmp_path):
    """A server that was cut off has written its file after its successor."""
    of("a", tmp_path, 10)
    [late] = [p for p in SavedShards(tmp_path / "0000000010")._parts if p.rows == PARTS[0]]
    assert late.place == (-1, -10, 0)


@pytest.mark.parametrize(
    ("clock", "ended", "taken"),
    [(10, False, True), (9, False, False), (11, False, False), (9, True, True), (11, True, False)],
)
def test_a_workers_file_is_of_its_checkpoint(tmp_path, clock, ended, taken):
    """Written at the end of its work, it may be of an earlier clock than the last worker's."""
    of("a", tmp_path, 10)
    path = tmp_path / "0000000010" / "worker-0.safetensors"
    told = {**Origin("a", clock, (1, 1)).told(), **({ENDED: "1"} if ended else {})}
    write_verified(path, {"x": torch.zeros(1)}, told)
    if taken:
        assert Checkpoints(tmp_path, 1).choose() == 10
    else:
        with pytest.raises(DataCorrupt, match=f"worker-0.* it is of clock {clock}"):
            Checkpoints(tmp_path, 1).choose()
