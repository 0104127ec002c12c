"""The journal on disk, and the room that is kept for its next record."""

import errno
import os

import pytest

from shoal.storage import journal as journal_module
from shoal.storage.journal import RESERVE_BYTES, Journal


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "state")


def test_a_record_with_a_reserve_has_room_for_another(journal, tmp_path):
    journal.write(b"x" * 1000, reserve=True)
    [reserve] = [each for each in tmp_path.iterdir() if each.name != "state"]
    assert reserve.stat().st_size >= RESERVE_BYTES + 2000
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES  # not a hole
    journal.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
    assert journal.read() == b"x" * 1000


def test_a_full_disk_gives_the_reserve_for_the_record(journal, monkeypatch, tmp_path):
    journal.write(b"before", reserve=True)
    real = journal_module.write_whole

    def write_whole(path, data):
        if len(list(tmp_path.iterdir())) > 1:  # the reserve takes the room
            raise OSError(errno.ENOSPC, "full")
        real(path, data)

    monkeypatch.setattr(journal_module, "write_whole", write_whole)
    journal.write(b"the view")
    assert journal.read() == b"the view"


def test_a_record_is_not_written_where_there_is_no_room_for_another(journal, monkeypatch, tmp_path):
    journal.write(b"before")

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="full"):
        journal.write(b"a view is proposed", reserve=True)
    assert journal.read() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
