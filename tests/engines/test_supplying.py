"""Files that go to a host when a process there asks for them, and what it has of them before."""

import shutil
import threading

import pytest
import torch

from shoal.engines import supplying
from shoal.engines.base import Input, Task
from shoal.engines.host_files import LocalFiles
from shoal.engines.placing import placed
from shoal.engines.supplying import Supplies, fetching
from shoal.errors import DataCorrupt, DataMissing
from shoal.node import launch
from shoal.storage.run_folder import RunFolder
from shoal.storage.verified import read_told, read_verified, write_verified
from tests.real.waiting import until

ROWS = 200_000


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "runs", "run")


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with two files of tensors, in a folder of checkpoints."""
    folder = tmp_path / "before" / "30"
    for number in range(2):
        tensors = {"0.rows": torch.full((ROWS,), float(number + 1))}
        write_verified(folder / f"server-{number}.safetensors", tensors, {"n": str(number)})
    return folder


@pytest.fixture
def task(checkpoint):
    names = tuple(f"30/{each.name}" for each in sorted(checkpoint.iterdir()))
    given = Input(("init",), str(checkpoint.parent), names, later="rows")
    return Task("server-0", "m:f", {"init": str(checkpoint), "rows": ""}, inputs=(given,))


@pytest.fixture
def host(tmp_path, run):
    """A host that sees none of the files of this one."""
    root = tmp_path / "b"
    own = RunFolder.begin_in(root / run.path.name)
    return LocalFiles(own.path, "b", root)


def taken(path):
    """The bytes of a file that are not holes."""
    return path.stat().st_blocks * 512


def test_a_host_gets_the_headers_alone_before_it_asks(task, host, run, checkpoint):
    args = placed(task, host, run).args
    assert args == {
        "init": str(host.path / "inputs/init/30"),
        "rows": str(host.path / "inputs/rows"),
    }
    for source in checkpoint.iterdir():
        there = host.path / "inputs/init/30" / source.name
        assert read_told(there) == read_told(source)
        assert there.stat().st_size == source.stat().st_size > 4 * ROWS
        assert taken(there) < 20_000
        with pytest.raises(DataCorrupt):
            read_verified(there)
    assert not (host.path / "inputs/rows").exists()


def test_a_host_that_sees_the_files_gets_nothing(task, run, tmp_path):
    here = LocalFiles(run.path, "a")
    assert placed(task, here, run) == task
    assert not (run.path / "inputs").exists()


def test_a_file_without_tensors_is_sent_whole(host, run, tmp_path):
    write_verified(tmp_path / "before/30/server-0.safetensors", {}, {"n": "7"})
    given = Input(("init",), str(tmp_path / "before"), ("30/server-0.safetensors",), later="rows")
    task = Task("s", "m:f", {"init": str(tmp_path / "before/30"), "rows": ""}, inputs=(given,))
    placed(task, host, run)
    tensors, told = read_verified(host.path / "inputs/init/30/server-0.safetensors")
    assert (tensors, told["n"]) == ({}, "7")


def test_a_process_has_the_files_whole_that_it_asks_for_and_no_others(
    task, host, run, checkpoint, monkeypatch
):
    args = placed(task, host, run).args
    supplies, asked = Supplies(), []

    def wants(file):
        asked.append(file)
        supplies.asked(task, host, file)

    monkeypatch.setattr(supplying, "wants", wants)
    fetch = fetching(args["init"], args["rows"])
    header = host.path / "inputs/init/30/server-1.safetensors"
    for _ in range(2):
        whole = fetch(header)
        assert whole.read_bytes() == (checkpoint / "server-1.safetensors").read_bytes()
    assert asked == ["30/server-1.safetensors"]
    assert [each.name for each in (host.path / "inputs/rows/30").iterdir()] == [whole.name]
    supplies.check()


def test_what_a_process_reads_is_the_file_itself_where_it_is_whole(checkpoint):
    path = checkpoint / "server-0.safetensors"
    assert fetching(str(checkpoint), "")(path) == path


def test_a_file_on_its_way_is_not_sent_twice_at_once(task, host, monkeypatch):
    goes_on, sent = threading.Event(), []

    def slow(path, to, name):
        sent.append(name)
        goes_on.wait(10)

    monkeypatch.setattr(supplying, "send", slow)
    supplies = Supplies()
    for _ in range(3):
        supplies.asked(task, host, "30/server-0.safetensors")
    supplies.asked(task, host, "30/server-1.safetensors")
    until(lambda: len(sent) == 2)
    goes_on.set()
    until(lambda: not supplies._under_way)
    supplies.asked(task, host, "30/server-0.safetensors")  # as by a process that was started again
    until(lambda: len(sent) == 3)
    assert sorted(sent)[:2] == ["inputs/rows/30/server-0.safetensors"] * 2


@pytest.mark.parametrize("file", ["30/server-7.safetensors", "../../secret", "/etc/passwd", ""])
def test_a_file_that_is_not_for_the_process_is_not_sent(task, host, file):
    supplies = Supplies()
    supplies.asked(task, host, file)
    with pytest.raises(DataMissing, match="which it cannot have"):
        supplies.check()
    assert not (host.path / "inputs").exists()


def test_a_file_that_cannot_be_sent_ends_the_wait_with_the_reason(task, host, checkpoint):
    shutil.rmtree(checkpoint)
    supplies = Supplies()
    supplies.asked(task, host, "30/server-0.safetensors")
    until(lambda: supplies._problem)
    with pytest.raises(DataMissing, match=r"server-0\.safetensors cannot be sent to b"):
        supplies.check()


def test_a_host_that_is_lost_is_reported_by_itself(task, host, monkeypatch):
    def gone(*_, **more):
        raise ConnectionError("the host is lost")

    monkeypatch.setattr(host, "put", gone)
    supplies = Supplies()
    supplies.asked(task, host, "30/server-0.safetensors")
    until(lambda: not supplies._under_way)
    supplies.check()


def test_a_process_without_a_host_tells_nobody():
    launch.wants("a file")
    launch.listens_at("tcp://127.0.0.1:1")
