"""The lease log of a run: which worker was granted which batches, beside the run's checkpoints.

A run that is resumed from a checkpoint does the batches that the checkpoint does not contain, and
goes by this log. Each entry is a line of JSON after its checksum, and is on the disk before the
worker hears of its lease. An entry that a crash has cut off at the end was not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from shoal.protocol.scheduler.leases.log import LeaseLog, LogEntry
from shoal.storage.files import damaged, flush, make_folder, read_whole

_decoder = msgspec.json.Decoder(LogEntry)


class LeaseLogFile:
    """A lease log that is appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1

    def append(self, entry: bytes) -> None:
        """Append an entry and flush it to disk; if that fails, none of it stays.

        Raises:
            OSError: it cannot be written
        """
        if self._file < 0:
            make_folder(self.path.parent)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._file, whole_bytes(read_whole(self.path)))
            flush(self.path.parent)
        end = os.lseek(self._file, 0, os.SEEK_END)
        line = b"%08x %s\n" % (crc32(entry), entry)
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def whole_bytes(data: bytes) -> int:
    """Return the size of a log without an entry that was cut off at its end."""
    return data.rfind(b"\n") + 1


def read_lease_log(path: Path) -> LeaseLog:
    """Read a lease log.

    Raises:
        DataMissing: there is none
        DataCorrupt: an entry is not as it was written
    """
    return LeaseLog(_entries(path))


def _entries(path: Path) -> Iterator[LogEntry]:
    data = read_whole(path)
    for number, line in enumerate(data[: whole_bytes(data)].splitlines(), 1):
        checksum, _, entry = line.partition(b" ")
        if checksum != b"%08x" % crc32(entry):
            raise damaged(path, f"line {number} is not as it was written")
        try:
            yield _decoder.decode(entry)
        except ValueError as error:
            raise damaged(path, f"line {number} is no entry ({error})") from None
