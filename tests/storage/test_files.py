"""Files that are written whole, and that say their format's version."""

import json
import os
import socket
import stat
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shoal.errors import DataCorrupt, DataMissing, UnknownFormat
from shoal.reports.events import load_run, read_events
from shoal.runs.job import JobSpec
from shoal.runs.job_file import dump_job, load_job, load_run_job
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.event_log import NewEvents
from shoal.storage.files import (
    FORMAT,
    FORMAT_KEY,
    WHOLE_BYTES_MAX,
    check_format,
    make_folder,
    read_arrays,
    read_whole,
    write_whole,
)
from shoal.storage.journal import Journal
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.storage.verified import read_verified, write_verified


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "socket"])
def test_what_is_no_regular_file_is_refused_at_once(what, tmp_path):
    path = tmp_path / "some"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    told = "No such device" if what == "socket" else "it is not a regular file"
    for read in (read_whole, read_verified, lambda path: list(read_events(path))):
        with pytest.raises(DataCorrupt, match=rf"{path}.*{told}"):
            read(path)


def test_a_file_that_is_read_whole_has_a_bound(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(b"first")
    os.truncate(path, WHOLE_BYTES_MAX + 1)  # a hole
    with pytest.raises(DataCorrupt, match=f"it has {WHOLE_BYTES_MAX + 1} bytes, more than"):
        read_whole(path)
    assert read_whole(path, 5) == b"first"


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "some.txt"
    for content in ("first", b"second", lambda fresh: fresh.write_text("third")):
        write_whole(path, content)
    assert path.read_text() == "third"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_stays_as_it_was_where_writing_fails(tmp_path):
    path = tmp_path / "some.txt"
    write_whole(path, "before")

    def fails(fresh):
        fresh.write_text("a part")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, fails)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_file_is_in_the_same_folder_under_a_name_of_its_own(tmp_path):
    seen = []
    for _ in range(2):
        write_whole(tmp_path / "a", lambda fresh: (seen.append(fresh), fresh.write_text("")))
    assert {each.parent for each in seen} == {tmp_path}
    assert len(set(seen)) == 2


def test_the_file_is_on_disk_before_it_has_its_name_and_the_name_after(tmp_path, monkeypatch):
    flushed = []

    def fsync(descriptor):
        mode = os.fstat(descriptor).st_mode
        flushed.append((stat.S_ISDIR(mode), (tmp_path / "a").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "a", "text")
    assert flushed == [(False, False), (True, True)]


def test_the_names_of_new_folders_are_on_disk(tmp_path, monkeypatch):
    flushed = []
    files = Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append((files / str(fd)).readlink()))
    make_folder(tmp_path / "a" / "b")
    assert flushed == [tmp_path, tmp_path / "a"]
    make_folder(tmp_path / "a" / "b")
    assert len(flushed) == 2
    run = RunFolder.create(tmp_path / "runs", "run")
    assert run.path.parent in flushed
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


def test_others_may_read_what_the_users_mask_lets_them(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("found", "said"), [(None, "does not say its format"), (FORMAT + 1, f"has format {FORMAT + 1}")]
)
def test_another_format_is_refused_by_name(found, said, tmp_path):
    with pytest.raises(UnknownFormat, match=rf"job\.toml {said}.* reads format {FORMAT}"):
        check_format(tmp_path / "job.toml", found)
    check_format(tmp_path / "job.toml", FORMAT)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    folder.write_job(dump_job(JobSpec()))
    folder.write_summary({"accuracy": 0.5})
    return folder


def test_a_run_reads_what_it_has_written(run):
    assert load_run(run.path).summary == {"accuracy": 0.5}
    assert load_run(run.path).events == []
    assert msgspec.convert(load_run_job(run.path), JobSpec) == JobSpec()


def replaced(path, new):
    text = path.read_text()
    assert f"{FORMAT}" in text
    path.write_text(new(text))


NEWER = {
    "job": lambda text: text.replace(f"{FORMAT_KEY} = {FORMAT}", f"{FORMAT_KEY} = {FORMAT + 1}"),
    "summary": lambda text: json.dumps({**json.loads(text), FORMAT_KEY: FORMAT + 1}),
    "events": lambda text: json.dumps({**json.loads(text), FORMAT_KEY: FORMAT + 1}) + "\n",
}
OLDER = {
    "job": lambda text: text.partition("\n")[2],
    "summary": lambda text: json.dumps({"accuracy": 0.5}),
    "events": lambda text: '{"t": 0.1, "kind": "begin", "node": "worker-0"}\n',
}


@pytest.mark.parametrize("changes", [NEWER, OLDER], ids=["newer", "older"])
@pytest.mark.parametrize("what", ["job", "summary", "events"])
def test_what_another_version_has_left_is_refused(run, what, changes):
    path = getattr(run, what)
    replaced(path, changes[what])
    with pytest.raises(UnknownFormat, match=path.name):
        load_run_job(run.path) if what == "job" else load_run(run.path)


def test_a_job_file_that_a_person_wrote_needs_no_format(tmp_path):
    (tmp_path / "job.toml").write_text("epochs = 2\n")
    assert load_job(tmp_path / "job.toml") == {"epochs": 2}


def test_a_journal_of_another_version_is_refused(tmp_path):
    journal = Journal(tmp_path / "state")
    assert journal.read() is None
    journal.write(b"a record\nof two lines")
    assert journal.read() == b"a record\nof two lines"
    for found in (b"shoal-journal %d 1\nrecord" % (FORMAT + 1), b"\x9b\x01", b""):
        journal.path.write_bytes(found)
        with pytest.raises(UnknownFormat, match="state"):
            journal.read()


def test_shards_of_another_version_are_refused(tmp_path):
    (tmp_path / "shards").mkdir()
    save_file(
        {"0.rows": torch.ones(2)}, tmp_path / "shards" / "server-0.safetensors", {"tables": "[]"}
    )
    with pytest.raises(UnknownFormat, match=r"server-0\.safetensors does not say its format"):
        SavedShards(tmp_path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    path = tmp_path / f"{10:010d}" / "shard-0-0.safetensors"
    monkeypatch.setattr("shoal.storage.verified.FORMAT", FORMAT + 1)
    write_verified(path, {"0.rows": torch.ones(2)}, {"tables": "[]", "all": "[]"})
    with pytest.raises(UnknownFormat, match=f"has format {FORMAT + 1}"):
        read_verified(path)
    with pytest.raises(UnknownFormat, match=f"has format {FORMAT + 1}"):
        Checkpoints(tmp_path).choose()


def test_events_that_are_being_written_are_read_up_to_the_last_whole_line(run):
    with run.events.open("a") as file:
        file.write('{"t": 0.1, "kind": "begin", "node": "worker-0", "batches": 3}\n{"t": 0.')
    assert [each["kind"] for each in read_events(run.events)] == ["begin"]


def test_a_journal_that_is_not_as_it_was_written_is_refused(tmp_path):
    journal = Journal(tmp_path / "state")
    journal.write(b"a record")
    data = journal.path.read_bytes()
    begin = data.index(b"\n") + 1
    for damaged in (data[:-1], data + b"x", data[:begin], data[:begin] + b"b" + data[begin + 1 :]):
        journal.path.write_bytes(damaged)
        with pytest.raises(DataCorrupt, match=r"state is damaged.* resume it from a checkpoint"):
            journal.read()
    journal.path.unlink()
    journal.path.mkdir()
    with pytest.raises(DataCorrupt, match="state cannot be read"):
        journal.read()


LINES = {
    "no JSON": "{",
    "no object": "[1]",
    "no kind": '{"t": 1.0, "node": "worker-0"}',
    "a step of nobody": '{"t": 1.0, "kind": "step", "node": "worker", "epoch": 0, "step": 1, '
    '"loss": 1.0, "samples": 3}',
    "a step without a loss": '{"t": 1.0, "kind": "step", "node": "worker-0", "epoch": 0, '
    '"step": 1, "samples": 3}',
    "more batches than there are": '{"t": 1.0, "kind": "leased", "node": "scheduler", "epochs": 2, '
    '"batches": 4, "clock": 0, "epoch": 0, "first": 3, "count": 2}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_that_is_no_event_is_refused_by_its_number(run, line):
    with run.events.open("a") as file:
        file.write(f'{{"t": 0.1, "kind": "end", "node": "worker-0"}}\n{line}\n')
    with pytest.raises(DataCorrupt, match=r"events\.jsonl is damaged: line 3 is no event"):
        load_run(run.path)
    assert [each["kind"] for each in read_events(run.events, torn=True)] == ["end"]
    assert len(NewEvents(run.events)()) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_summary_that_is_none_is_refused_by_name(run, text):
    run.summary.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataCorrupt, match=r"summary\.json is damaged: .*restore it from a copy"):
        run.read_summary()


def test_results_without_a_figure_are_refused_and_there_is_one_worker_at_least(run):
    with pytest.raises(DataMissing, match="no worker came to the end"):
        run.results(2, ["steps"])
    run.write_result(1, {"steps": 3})
    assert run.results(2, ["steps"]) == [{"steps": 3}]
    with pytest.raises(DataCorrupt, match=r"result\.json is damaged: it has no number 'loss'"):
        run.results(2, ["steps", "loss"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_arrays_that_are_none_are_refused_by_name(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=r"a\.npz is damaged"):
        read_arrays(path, "ids")
    np.savez(path, ids=np.arange(3))
    assert read_arrays(path, "ids")[0].tolist() == [0, 1, 2]
    with pytest.raises(DataCorrupt, match=r"a\.npz is damaged.*counts"):
        read_arrays(path, "counts")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ids", b"text")
    with pytest.raises(DataCorrupt, match=r"a\.npz is damaged: an entry is no array"):
        read_arrays(path, "ids")
