"""Temporary folders, and those that killed processes have left."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from errno import ENOLCK
from pathlib import Path

import pytest

from shoal.storage import scratch
from shoal.storage.scratch import LOCK, ScratchFolder, remove_abandoned

JOINED = Path(__file__).parent / "scripts" / "joined.py"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_behind(temporary, name="shoal-run-left"):
    """A folder of a process that was killed: its lock is free."""
    folder = temporary / name
    folder.mkdir()
    (folder / LOCK).touch()
    (folder / "data").write_text("data")
    return folder


def test_a_new_folder_takes_away_what_a_dead_owner_has_left(temporary):
    left = left_behind(temporary)
    mine = ScratchFolder("run")
    assert not left.exists()
    assert mine.path.parent == temporary
    assert mine.path.stat().st_mode & 0o077 == 0
    mine.remove()
    mine.remove()
    assert list(temporary.iterdir()) == []


def test_a_folder_in_use_stays(temporary):
    mine, other = ScratchFolder("run"), ScratchFolder("run")
    remove_abandoned(temporary)
    assert mine.path.exists()
    assert other.path.exists()
    mine.remove()
    other.remove()


def test_folders_that_are_none_of_ours_stay(temporary, monkeypatch):
    none_of_ours = temporary / "shoal-notes"
    none_of_ours.mkdir()
    kept = left_behind(temporary, "kept")
    (temporary / "shoal-link").symlink_to(kept)
    linked = temporary / "shoal-linked-lock"
    linked.mkdir()
    (linked / LOCK).symlink_to(kept / LOCK)
    remove_abandoned(temporary)
    assert (kept / "data").exists()
    assert none_of_ours.exists()
    assert linked.exists()
    anothers = left_behind(temporary)
    monkeypatch.setattr(scratch.os, "geteuid", lambda: os.getuid() + 1)
    remove_abandoned(temporary)
    assert anothers.exists()


def test_a_lock_is_held_as_soon_as_it_can_be_seen(temporary, monkeypatch):
    """Otherwise a process that starts at the same time would take the folder away."""
    right, seen = fcntl.flock, []

    def flock(file, how):
        seen.append([each.name for each in temporary.glob(f"shoal-run-*/{LOCK}")])
        right(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    ScratchFolder("run").remove()
    assert seen == [[]]


def test_a_file_system_without_locks_has_folders_that_nobody_takes_away(temporary, monkeypatch):
    def flock(file, how):
        raise OSError(ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    mine = ScratchFolder("run")
    remove_abandoned(temporary)
    assert mine.path.exists()
    mine.remove()
    assert not mine.path.exists()


@pytest.mark.real
def test_what_a_killed_script_has_left_is_removed_by_the_next_start(temporary):
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, JOINED, "wait"], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "joined\n"
        assert len(list(temporary.glob("shoal-*"))) == 2  # the run's folder, and its sockets
        process.send_signal(signal.SIGKILL)
    assert list(temporary.glob("shoal-run-*"))
    subprocess.run([sys.executable, JOINED, "leave"], env=env, check=True, timeout=60)
    assert not list(temporary.glob("shoal-*"))
