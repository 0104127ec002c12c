"""The lease log on disk: whole entries, or none."""

import msgspec
import pytest

from shoal.errors import DataCorrupt, DataMissing
from shoal.protocol.scheduler.leases.ledger import Granted, Span
from shoal.protocol.scheduler.leases.log import LeaseGranted, WorkerGone
from shoal.storage import lease_log as lease_log_module
from shoal.storage.lease_log import LeaseLogFile, read_lease_log


def entry(first):
    return msgspec.json.encode(LeaseGranted(1, 8, Granted(1, first, Span(0, first, 2))))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoints" / "leases"


@pytest.fixture
def log(path):
    log = LeaseLogFile(path)
    yield log
    log.close()


def test_a_log_says_what_was_appended(path, log):
    for first in (0, 2):
        log.append(entry(first))
    log.append(msgspec.json.encode(WorkerGone(1, 3)))
    assert read_lease_log(path).as_of(9).returned == (Span(0, 3, 5),)


def test_another_process_appends_to_what_is_there(path, log):
    log.append(entry(0))
    again = LeaseLogFile(path)
    again.append(entry(2))
    again.close()
    assert read_lease_log(path).as_of(9).returned == (Span(0, 4, 4),)


def test_an_entry_that_a_crash_has_cut_off_was_never_heard_of(path, log):
    log.append(entry(0))
    log.append(entry(2))
    whole = path.read_bytes()
    cut = whole[: -len(entry(2)) // 2]
    path.write_bytes(cut)
    assert read_lease_log(path).as_of(9).returned == (Span(0, 2, 6),)
    again = LeaseLogFile(path)
    again.append(entry(4))
    again.close()
    assert read_lease_log(path).as_of(9).returned == (Span(0, 2, 2), Span(0, 6, 2))


def test_an_entry_that_finds_no_room_leaves_nothing(path, log, monkeypatch):
    log.append(entry(0))
    before = path.read_bytes()
    real = lease_log_module.os.write
    with monkeypatch.context() as patched:
        patched.setattr(lease_log_module.os, "write", lambda fd, data: real(fd, data[:5]))
        with pytest.raises(OSError, match="No space left"):
            log.append(entry(2))
    assert path.read_bytes() == before
    log.append(entry(2))
    assert read_lease_log(path).as_of(9).returned == (Span(0, 4, 4),)


@pytest.mark.parametrize("at", [0, 9, 20])
def test_a_changed_byte_is_refused_by_name(path, log, at):
    log.append(entry(0))
    log.append(entry(2))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataCorrupt, match=f"{path} is damaged: line 1 is not as it was written"):
        read_lease_log(path)


def test_an_entry_that_is_none_is_refused_by_name(path, log):
    log.append(b'["LeaseGranted", 1, 8, [1, 0, [3, 0, 2]]]')
    with pytest.raises(DataCorrupt, match="line 1 is no entry"):
        read_lease_log(path)


def test_a_missing_log_is_named(path):
    with pytest.raises(DataMissing, match="leases"):
        read_lease_log(path)
