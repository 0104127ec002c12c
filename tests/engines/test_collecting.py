"""The collector: what comes from hosts, when, and what is left on them."""

import json
import os
from hashlib import sha256

import pytest

from shoal.engines import collecting
from shoal.engines.collecting import Collector
from shoal.engines.host_files import LocalFiles
from shoal.storage.event_log import EventLog
from shoal.storage.files import flush
from shoal.storage.run_folder import RunFolder


class Rig:
    """A run's folder, and hosts with folders of their own, whose collector looks when asked."""

    def __init__(self, path, kind, *labels):
        self.run = RunFolder.begin_in(path / "run", 1000.0)
        self.hosts = [kind(RunFolder.begin_in(path / each).path, each) for each in labels]
        self.collector = Collector(self.run, self.hosts)

    def write(self, number, name, content):
        path = self.hosts[number].path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def look(self):
        """Look at all hosts, as the collector's thread does."""
        for source in self.collector._sources.values():
            self.collector._guarded(source, lambda s=source: self.collector._take(s, last=False))

    def read(self, name):
        return (self.run.path / name).read_bytes()

    def has(self, name):
        return (self.run.path / name).exists()

    def events(self):
        return [json.loads(line)["kind"] for line in self.read("events.jsonl").splitlines()]


@pytest.fixture
def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "LOOK_S", 3600.0)  # tests look themselves
    made = []

    def make(*labels, kind=LocalFiles):
        made.append(Rig(tmp_path, kind, *labels))
        return made[-1]

    yield make
    for each in made:
        each.collector.finish()


def test_events_of_all_hosts_come_in_whole_lines_without_their_headers(rig):
    rig = rig("a", "b")
    logs = [EventLog((host.path / "events.jsonl"), host.label, 1000.0) for host in rig.hosts]
    logs[0].write("begin", rank=0)
    logs[1].write("begin", rank=1)
    os.write(logs[1]._file, b'{"t": 3, "kind": "st')
    rig.look()
    assert rig.events() == ["format", "begin", "begin"]
    os.write(logs[1]._file, b'ep", "node": "b"}\n')
    rig.look()
    rig.look()
    assert rig.events() == ["format", "begin", "begin", "step"]


def test_events_of_one_host_come_at_once_where_they_are_asked_for(rig):
    rig = rig("a", "b")
    for host in rig.hosts:
        EventLog((host.path / "events.jsonl"), host.label, 1000.0).write(f"of {host.label}")
    rig.collector.events(rig.hosts[1])
    assert rig.events() == ["format", "of b"]
    rig.look()
    assert rig.events() == ["format", "of b", "of a"]


def test_a_line_that_was_cut_off_by_a_kill_is_left_out(rig):
    """It would be glued to the first line of the next host."""
    rig = rig("a", "b")
    path = rig.hosts[0].path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"t": 3, "kind": "st')
    rig.look()
    assert rig.events() == ["format"]
    EventLog(rig.hosts[1].path / "events.jsonl", "b", 1000.0).write("lost")
    rig.collector.finish()
    assert rig.events() == ["format", "lost"]


def test_a_line_of_several_pieces_comes_whole(rig):
    rig = rig("a")
    text = "x" * (collecting.PIECE_BYTES + 10)
    EventLog(rig.hosts[0].path / "events.jsonl", "a", 1000.0).write("begin", text=text)
    rig.look()
    assert rig.events() == ["format", "begin"]


def test_a_log_that_is_always_written_holds_up_nothing(rig):
    class Endless(LocalFiles):
        """Each look at the file finds that it has grown."""

        def read(self, name, start, size):
            if name == "logs/worker-0.log":
                with (self.path / name).open("ab") as file:
                    file.write(b"more\n")
            return super().read(name, start, size)

    rig = rig("a", kind=Endless)
    rig.write(0, "logs/worker-0.log", b"begin\n")
    rig.write(0, "logs/worker-1.log", b"begin\n")
    rig.look()
    assert rig.has("logs/worker-1.log")


def test_hosts_that_share_a_folder_with_each_other_are_collected_once(rig, tmp_path):
    class Shared(LocalFiles):
        def __init__(self, folder, label):
            super().__init__(tmp_path / "both", label)

    RunFolder.begin_in(tmp_path / "both")
    rig = rig("a", "b", kind=Shared)
    EventLog(tmp_path / "both" / "events.jsonl", "a", 1000.0).write("begin")
    rig.look()
    rig.collector.events(rig.hosts[1])
    assert rig.events() == ["format", "begin"]


def test_logs_come_as_they_grow_and_are_there_even_if_empty(rig):
    rig = rig("a")
    log = rig.write(0, "logs/worker-0.log", b"no line end yet")
    rig.write(0, "logs/worker-1.log", b"")
    rig.look()
    assert rig.read("logs/worker-0.log") == b"no line end yet"
    log.write_bytes(log.read_bytes() + b", now\n" + b"x" * (collecting.PIECE_BYTES * 2 + 1))
    rig.look()
    rig.collector.finish()
    assert rig.read("logs/worker-0.log") == log.read_bytes()
    assert rig.read("logs/worker-1.log") == b""


def test_checkpoints_come_during_the_run_and_the_rest_at_its_end(rig):
    rig = rig("a")
    names = ["checkpoints/0000000010/shard-0-0.safetensors", "shards/server-0.safetensors"]
    for name in [*names, "workers/0/result.json", "inputs/before/job.toml"]:
        rig.write(0, name, os.urandom(1000))
    rig.write(0, "checkpoints/0000000010/.shard-0-8.safetensors.12.new", b"half")
    rig.look()
    assert rig.has(names[0])
    assert not rig.has(names[1])
    rig.collector.finish()
    for name in [*names, "workers/0/result.json"]:
        assert rig.read(name) == rig.hosts[0].read(name, 0, 10_000)
    assert not rig.has("inputs"), "what was sent to a host comes back"
    assert not [*rig.run.path.rglob(".*")], "a file that was being written was taken"
    assert rig.collector.left == {}


def test_of_files_of_one_name_the_last_by_the_runs_clock_stays(rig):
    rig = rig("a", "b", "c")
    rig.hosts[2].ahead_s = 100.0
    for number, changed in enumerate((50.0, 70.0, 160.0)):  # c's clock is ahead: 60
        path = rig.write(number, "model.safetensors", f"of host {number}".encode())
        os.utime(path, (changed, changed))
    rig.collector.finish()
    assert rig.read("model.safetensors") == b"of host 1"


class Flaky(LocalFiles):
    """Says something else than what is on the disk, as often as told."""

    times = 0

    def read(self, name, start, size):
        data = super().read(name, start, size)
        if name.startswith("shards/") and data and Flaky.times:
            Flaky.times -= 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    def digest(self, name, start, size):
        return sha256(super().read(name, start, size)).hexdigest()


def test_a_copy_that_is_not_as_on_its_host_is_made_again(rig):
    Flaky.times = 2
    rig = rig("a", kind=Flaky)
    rows = rig.write(0, "shards/server-0.safetensors", os.urandom(1000))
    rig.collector.finish()
    assert sha256(rig.read("shards/server-0.safetensors")).digest() == (
        sha256(rows.read_bytes()).digest()
    )
    assert rig.collector.left == {}


def test_a_file_that_cannot_be_copied_as_it_is_stays_and_is_named(rig, caplog):
    Flaky.times = 1000
    rig = rig("a", kind=Flaky)
    rig.write(0, "shards/server-0.safetensors", os.urandom(1000))
    rig.write(0, "workers/0/result.json", b"{}")
    rig.collector.finish()
    assert not rig.has("shards/server-0.safetensors")
    assert rig.has("workers/0/result.json"), "one file held up the others"
    [left] = rig.collector.left["a"]
    assert left == "shards/server-0.safetensors: its checksum is not that on its host"
    assert "left on host a: shards/server-0.safetensors" in caplog.text


@pytest.mark.parametrize("number", [1, 17])
def test_without_room_the_files_stay_and_come_once_there_is_room(rig, monkeypatch, number):
    rig = rig("a")
    names = [f"checkpoints/0000000010/shard-0-{at}.safetensors" for at in range(number)]
    for name in names:
        rig.write(0, name, os.urandom(1000))
    written = collecting.write_whole

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(collecting, "write_whole", full)
    rig.look()
    assert rig.collector.left == {
        "a": [f"{name}: No space left on device" for name in sorted(names)]
    }
    monkeypatch.setattr(collecting, "write_whole", written)
    rig.collector.finish()
    assert rig.collector.left == {}
    assert all(map(rig.has, names))


def test_a_host_that_is_gone_is_named_and_the_others_are_collected(rig):
    class Gone(LocalFiles):
        def listed(self):
            if self.label == "a":
                raise ConnectionResetError("its connection has broken")
            return super().listed()

    rig = rig("a", "b", kind=Gone)
    rig.write(0, "shards/server-0.safetensors", b"rows")
    rig.write(1, "shards/server-1.safetensors", b"rows")
    rig.look()
    rig.collector.finish()
    assert rig.has("shards/server-1.safetensors")
    [left] = rig.collector.left["a"]
    assert left == "all that had not been collected before: its connection has broken"


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "checkpoints/../../escaped"])
def test_a_host_that_names_files_outside_is_not_believed(rig, tmp_path, name):
    class Forged(LocalFiles):
        def listed(self):
            return {name: next(iter(super().listed().values()))}

        def read(self, name, start, size):
            return b"forged"[start:]

    rig = rig("a", kind=Forged)
    rig.collector.finish()
    assert not [*tmp_path.rglob("escaped")]
    assert "not below the run's folder" in rig.collector.left["a"][0]


def test_pruned_checkpoints_are_removed_from_their_hosts_too(rig, monkeypatch):
    rig = rig("a")
    rig.collector.keep = 2

    class Complete(collecting.Checkpoints):
        def lacks(self, clock, unreadable=True):
            return "" if [*self.path(clock).iterdir()] else "rows"

    monkeypatch.setattr(collecting, "Checkpoints", Complete)
    monkeypatch.setattr("shoal.storage.checkpoints.with_earlier", lambda path: [path])
    for clock in (10, 20, 30, 40):
        rig.write(0, f"checkpoints/{clock:010d}/shard-0-0.safetensors", b"rows")
        flush(rig.hosts[0].path)
        rig.look()
    rig.look()
    both = [rig.run.checkpoints, rig.hosts[0].path / "checkpoints"]
    for folder in both:
        assert sorted(int(each.name) for each in folder.iterdir()) == [30, 40]
    rig.write(0, "checkpoints/0000000010/shard-0-8.safetensors", b"late rows")
    rig.look()
    assert not rig.has("checkpoints/0000000010"), "a late file began a pruned checkpoint again"
    assert not (rig.hosts[0].path / "checkpoints/0000000010").exists()


def test_a_file_that_vanishes_is_no_problem(rig):
    class Pruning(LocalFiles):
        """Its processes remove a checkpoint between the list and the copy."""

        def read(self, name, start, size):
            if name.startswith("checkpoints/"):
                (self.path / name).unlink(missing_ok=True)
            return super().read(name, start, size)

    rig = rig("a", kind=Pruning)
    rig.write(0, "checkpoints/0000000010/shard-0-0.safetensors", b"rows")
    rig.look()
    rig.collector.finish()
    assert rig.collector.left == {}


def test_a_problem_of_one_look_is_none_of_the_next(rig, monkeypatch):
    rig = rig("a")
    rig.write(0, "checkpoints/0000000010/shard-0-0.safetensors", b"rows")
    listed = LocalFiles.listed

    def fails(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(LocalFiles, "listed", fails)
    rig.look()
    assert "Too many open files" in rig.collector.left["a"][0]
    monkeypatch.setattr(LocalFiles, "listed", listed)
    rig.collector.finish()
    assert rig.has("checkpoints/0000000010/shard-0-0.safetensors")
    assert rig.collector.left == {}


@pytest.mark.parametrize("name", ["job.toml", "token", "summary.json"])
def test_what_the_supervisor_writes_comes_from_no_host(rig, name):
    rig = rig("a")
    (rig.run.path / name).write_text("own")
    os.utime(rig.run.path / name, (50.0, 50.0))
    rig.write(0, name, b"model = 'theirs.py:net'")
    rig.collector.finish()
    assert rig.read(name) == b"own"


def test_hosts_that_share_the_folder_cost_no_thread(tmp_path):
    collector = Collector(RunFolder.begin_in(tmp_path / "run"), [])
    assert collector._threads == []
    collector.finish()
    assert collector.left == {}


def test_a_disk_that_takes_a_part_of_a_line_gets_the_rest_later(rig, monkeypatch):
    rig = rig("a")
    EventLog(rig.hosts[0].path / "events.jsonl", "a", 1000.0).write("begin", text="x" * 100)
    opened = collecting.Path.open

    class Small:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            return self.file.write(data[:30])

    monkeypatch.setattr(
        collecting.Path, "open", lambda self, *how, **more: Small(opened(self, *how, **more))
    )
    rig.look()
    monkeypatch.setattr(collecting.Path, "open", opened)
    rig.collector.finish()
    assert rig.events() == ["format", "begin"]


def test_a_file_that_the_run_has_written_later_is_kept(rig):
    rig = rig("a")
    path = rig.write(0, "model.safetensors", b"of host a, earlier")
    os.utime(path, (50.0, 50.0))
    (rig.run.path / "model.safetensors").write_bytes(b"of the run's own host")
    rig.collector.finish()
    assert rig.read("model.safetensors") == b"of the run's own host"
