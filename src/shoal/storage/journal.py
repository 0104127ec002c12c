"""The journal of a scheduler: the record from which a restarted one continues."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

from shoal.errors import DataCorrupt
from shoal.storage.files import FORMAT, WHOLE_BYTES_MAX, check_format, open_file, write_whole

JOURNAL = b"shoal-journal"
RESERVE_BYTES = 64 << 10


class Journal:
    """The latest record of a machine on disk.

    A line before it has the format's version and the record's checksum.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """Read the record; return None if there is no file.

        Raises:
            DataCorrupt: it is not as it was written, or cannot be read
            UnknownFormat: another version of Shoal has written it
        """
        try:
            with open_file(self.path) as file:
                found, _, record = file.read(WHOLE_BYTES_MAX).partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.damaged(f"cannot be read ({error.strerror})") from None
        name, version, crc, *_ = [*found.split(b" "), b"", b""]
        check_format(self.path, version.decode("ascii", "replace") if name == JOURNAL else None)
        if crc != b"%d" % crc32(record):
            raise self.damaged("is damaged: its record is not as it was written")
        return record

    def damaged(self, problem: str) -> DataCorrupt:
        return DataCorrupt(
            f"{self.path} {problem}; the run cannot go on from it: resume it from a checkpoint, "
            "with another journal"
        )

    def write(self, record: bytes, reserve: bool = False) -> None:
        """Write a record.

        reserve:  whether to reserve room on the disk first, so that another record can be written
            even if others fill the disk meanwhile

        Raises:
            OSError: it cannot be written, or there is no such room
        """
        data = b"%s %d %d\n%s" % (JOURNAL, FORMAT, crc32(record), record)
        if reserve:
            self._reserve(2 * len(data) + RESERVE_BYTES)
        try:
            write_whole(self.path, data)
        except OSError:
            if not self._reserved.exists():
                raise
            self._reserved.unlink()
            write_whole(self.path, data)

    @property
    def _reserved(self) -> Path:
        return self.path.with_name(f".{self.path.name}.reserve")

    def _reserve(self, nbytes: int) -> None:
        file = os.open(self._reserved, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < nbytes:
                os.posix_fallocate(file, 0, nbytes)
        except OSError:
            self._reserved.unlink()
            raise
        finally:
            os.close(file)

    def remove(self) -> None:
        """Release the room that was reserved, at the end of the run."""
        self._reserved.unlink(missing_ok=True)
