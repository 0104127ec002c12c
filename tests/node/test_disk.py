"""A disk that is full: what waits for it, and what does not."""

import errno

import pytest

from shoal.node.disk import Disk
from shoal.protocol.machine import Append, Persist, Send
from shoal.protocol.messages.membership import Freeze, HeartbeatSeen
from shoal.protocol.session import ViewAdopted
from shoal.storage.files import FULL
from shoal.storage.journal import Journal
from shoal.storage.lease_log import LeaseLogFile

BEAT, FREEZE = Send("worker-0", HeartbeatSeen()), Send("server-0", Freeze((1, 2)))


class Full:
    """A file that has no room, or fails for another reason."""

    def __init__(self, of):
        self.path = of.path
        self.of = of
        self.error = None

    def write(self, *args):
        if self.error is not None:
            raise OSError(self.error, "no")
        self.of.write(*args)

    def append(self, *args):
        if self.error is not None:
            raise OSError(self.error, "no")
        self.of.append(*args)


@pytest.fixture
def files(tmp_path):
    journal = Full(Journal(tmp_path / "state"))
    leases = Full(LeaseLogFile(tmp_path / "leases"))
    yield journal, leases
    leases.of.close()


@pytest.fixture
def disk(files):
    return Disk(*files)


def left(disk, *effects):
    """The effects that the node performs now."""
    return [effect for effect in effects if not disk.takes(effect)]


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("write", [Persist(b"2"), Append(b'["x"]')])
def test_what_follows_a_write_without_room_waits_in_order(disk, files, full, write, caplog):
    assert left(disk, Persist(b"1"), FREEZE) == [FREEZE]
    for file in files:
        file.error = full
    note = ViewAdopted((1, 1), "")
    assert left(disk, BEAT, write, FREEZE, BEAT, note, Persist(b"3")) == [BEAT, BEAT]
    assert disk
    assert "no space left in" in caplog.text
    assert disk.due(0.0) == []
    later = disk.due(float("inf"))
    assert later == [write, FREEZE, note, Persist(b"3")]
    assert left(disk, *later) == []  # it is still full
    assert caplog.text.count("no space left in") == 1
    for file in files:
        file.error = None
    assert left(disk, *disk.due(float("inf"))) == [FREEZE, note]
    assert not disk
    assert "there is room" in caplog.text
    assert files[0].of.read() == b"3"


def test_another_error_of_the_disk_is_raised(disk, files):
    files[0].error = errno.EIO
    with pytest.raises(OSError, match="no"):
        disk.takes(Persist(b"1"))


def test_a_node_without_files_keeps_nothing():
    disk = Disk(None, None)
    assert left(disk, Persist(b"1"), Append(b"2"), BEAT) == [BEAT]
