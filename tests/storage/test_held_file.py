"""Files by which others know that their owner still runs."""

import fcntl
import signal
import subprocess
import sys
from errno import ENOLCK
from pathlib import Path

from shoal.storage.held_file import HeldFile, is_abandoned

HOLDER = Path(__file__).parent / "scripts" / "holder.py"


def test_a_held_file_has_its_content_and_an_owner(tmp_path):
    held = HeldFile(tmp_path / "file", "content")
    assert held.path.read_text() == "content"
    assert held.path.stat().st_mode & 0o777 == 0o600
    assert not is_abandoned(held.path)
    assert not is_abandoned(held.path), "a look leaves it as it was"
    held.release()
    assert is_abandoned(held.path)
    again = HeldFile(held.path, "again")
    assert held.path.read_text() == "again"
    assert not is_abandoned(held.path)
    again.remove()
    assert not list(tmp_path.iterdir())


def test_no_file_and_a_link_are_nobodys_files(tmp_path):
    assert not is_abandoned(tmp_path / "none")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert is_abandoned(tmp_path / "file")
    assert not is_abandoned(tmp_path / "link")


def test_without_locks_nothing_is_known(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    held = HeldFile(tmp_path / "file")
    assert not is_abandoned(held.path)
    held.release()
    assert not is_abandoned(held.path)


def test_a_killed_owner_is_known_at_once(tmp_path):
    path = tmp_path / "file"
    with subprocess.Popen(
        [sys.executable, HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "held\n"
        assert not is_abandoned(path)
        child.send_signal(signal.SIGKILL)
    assert is_abandoned(path)
