"""The files of a run's folder on a host: names that lead out of it, and parts of files."""

import os

import pytest

from shoal.engines.host_files import LocalFiles, below
from shoal.errors import NotTrusted
from shoal.storage.run_folder import RunFolder


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "worker-0.log").write_bytes(b"0123456789")
    (folder / ".events.1234.new").write_text("half")
    return LocalFiles(folder)


def test_files_are_listed_by_name_without_those_that_are_being_written(files):
    listed = files.listed()
    assert list(listed) == ["logs/worker-0.log"]
    assert listed["logs/worker-0.log"].size == 10


def test_names_that_cannot_be_told_are_not_listed(files, tmp_path):
    (tmp_path / "run" / os.fsdecode(b"not-utf8-\xff")).touch()
    assert list(files.listed()) == ["logs/worker-0.log"]


def test_a_folder_is_known_by_its_mark(tmp_path):
    one, two = (RunFolder.begin_in(tmp_path / name) for name in "ab")
    assert LocalFiles(one.path).mark() == one.mark() != two.mark()
    assert LocalFiles(tmp_path / "c").mark() == ""


def test_links_are_not_listed(files, tmp_path):
    (tmp_path / "secret").write_text("of another user")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "secret")
    assert list(files.listed()) == ["logs/worker-0.log"]


def test_a_part_of_a_file_is_read(files):
    assert files.read("logs/worker-0.log", 4, 3) == b"456"
    assert files.read("logs/worker-0.log", 8, 100) == b"89"
    assert files.read("logs/worker-0.log", 10, 100) == b""


def test_a_file_that_is_put_in_parts_is_there_with_the_last(files, tmp_path):
    files.put("inputs/before/job.toml", 0, b"abc", last=False)
    with pytest.raises(FileNotFoundError):
        files.state("inputs/before/job.toml")
    for _ in range(2):  # the last may come twice
        files.put("inputs/before/job.toml", 3, b"def", last=True)
    assert files.state("inputs/before/job.toml").size == 6
    assert list(files.listed()) == ["logs/worker-0.log"], "what was sent is listed"
    assert (tmp_path / "run" / "inputs" / "before" / "job.toml").read_bytes() == b"abcdef"
    files.put("inputs/before/job.toml", 0, b"new", last=True)
    assert files.read("inputs/before/job.toml", 0, 10) == b"new"


def test_a_removed_file_takes_its_empty_folder_along(files, tmp_path):
    for name in ("a", "b"):
        files.put(f"checkpoints/0000000001/{name}", 0, b"rows", last=True)
    files.remove("checkpoints/0000000001/a")
    assert (tmp_path / "run" / "checkpoints" / "0000000001").is_dir()
    files.remove("checkpoints/0000000001/b")
    assert not (tmp_path / "run" / "checkpoints" / "0000000001").exists()
    files.remove("checkpoints/0000000001/b")  # is gone already
    assert (tmp_path / "run").is_dir()


def test_a_folder_that_is_gone_has_no_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not there"):
        LocalFiles(tmp_path / "gone").listed()


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../other", "logs/../../other", "link/passwd"])
def test_names_that_lead_out_of_the_folder_are_refused(files, tmp_path, name):
    (tmp_path / "run" / "link").symlink_to("/etc")
    calls = [
        lambda: files.read(name, 0, 10),
        lambda: files.digest(name, 0, 1),
        lambda: files.state(name),
        lambda: files.put(name, 0, b"", last=True),
        lambda: files.remove(name),
        lambda: below(tmp_path / "run", name),
    ]
    for call in calls:
        with pytest.raises(NotTrusted, match="not below the run's folder"):
            call()


def test_a_host_sees_what_is_below_its_root(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "rows").write_bytes(b"rows")
    assert LocalFiles(tmp_path / "a").sees(tmp_path / "a" / "rows", 4)
    assert LocalFiles(tmp_path / "a", root=tmp_path / "a").sees(tmp_path / "a" / "rows", 4)
    assert not LocalFiles(tmp_path / "b", root=tmp_path / "b").sees(tmp_path / "a" / "rows", 4)
    assert not LocalFiles(tmp_path / "a").sees(tmp_path / "a" / "nothing", 0)
    assert not LocalFiles(tmp_path / "a").sees(tmp_path / "a" / "rows", 5), "another file"
