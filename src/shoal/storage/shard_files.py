"""The metadata of files of shards: their tables, rows, run, clock and view.

A file may have only the changes since an earlier file, which its metadata then name. `shards` reads
the tensors; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from shoal.errors import DataCorrupt, DataMissing, UsageError
from shoal.keys import KeyRange
from shoal.protocol.views import NO_VIEW, ViewId
from shoal.storage.files import damaged
from shoal.storage.run_folder import is_checkpoint, shard_files
from shoal.storage.verified import CRC, read_told
from shoal.tables.spec import TableSpec

Tables = list[tuple[TableSpec, tuple[int, int]]]
Places = tuple[ViewId, list[int]]
# In a file's metadata:
SINCE = "since"  # the folder of the earlier file since which this one has the changes
SINCE_CRC = "since_crc32"  # the checksum of that earlier file
RUN, CLOCK, VIEW = "run", "clock", "view"
ENDED = (
    "ended"  # of a worker's file: it was written at the end of its work, maybe before that clock
)
PLACES = "places"  # the view, and the place of each shard's replica in its chain, from the tail
LAYOUT = ("kind", "row_shape", "dtype", "rows")  # what the tensors of a table depend on


class Origin(msgspec.Struct, frozen=True):
    """The origin of the contents of a file.

    run:    the name of the run
    clock:  the clock of its checkpoint, which names the folder; -1 for what a run leaves at its end
    view:   the view in which it was written
    """

    run: str = ""
    clock: int = -1
    view: ViewId = NO_VIEW

    def told(self) -> dict[str, str]:
        """Return the origin as metadata of a file."""
        view = ".".join(map(str, self.view))
        clock = {CLOCK: str(self.clock)} if self.clock >= 0 else {}
        return {RUN: self.run, VIEW: view, **clock}


def check_origins(paths: Iterable[Path], clock: int = -1) -> None:
    """Check that files are of one run and of one clock.

    The checksums do not tell that a file was copied, or that a folder was renamed. A file that a
    worker wrote when it ended may be of an earlier clock.

    Raises:
        DataCorrupt: they are not, or as `read_told`
        DataMissing, UnknownFormat: as `read_told`
    """
    of: tuple[Path, str] | None = None
    for path in paths:
        told = read_told(path)
        written, ended = told.get(CLOCK, "-1"), ENDED in told
        if not (int(written) <= clock if ended else int(written) == clock):
            raise damaged(path, f"it is of clock {written}, and was put into a folder of {clock}")
        run = told.get(RUN, "")
        of = of or (path, run)
        if run != of[1]:
            raise damaged(path, f"it is of run {run!r}, and {of[0].name} beside it of {of[1]!r}")


class SavedPart(msgspec.Struct, frozen=True):
    """A shard in a file.

    number:  the number of the shard in the file
    place:   the sort key among replicas: the latest view first, then the nearest to the tail
    """

    path: Path
    number: int
    spec: TableSpec
    rows: KeyRange
    place: tuple[int, int, int]


class SavedTables:
    """The tables of a run that has ended, or of a checkpoint.

    Args:
        folder: the folder of the run, of its shards, or of the checkpoint.

    Attributes:
        folder: the same folder.
        parts: the shards in its files.
        run: the name of the run that has left the files.

    Raises:
        DataMissing: it has no shards.
        DataCorrupt: a file is not as it was written.
        UnknownFormat: another version of Shoal has written one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = shard_files(folder)
        check_origins(files, int(folder.name) if is_checkpoint(files) else -1)
        self.run = read_told(files[0]).get(RUN, "")
        self.parts = [part for path in files for part in _parts_of(path)]
        first: dict[str, SavedPart] = {}
        for part in self.parts:
            other = first.setdefault(part.spec.name, part)
            if _layout(other.spec) != _layout(part.spec):
                raise contradiction(part, f"{other.path} has another table of that name")

    @property
    def specs(self) -> dict[str, TableSpec]:
        """The specifications of the tables by name."""
        return {part.spec.name: part.spec for part in self.parts}

    @property
    def fragment_rows(self) -> dict[str, int]:
        """The tables' fragment sizes, which a run that begins with these shards keeps."""
        return {name: spec.fragment_rows for name, spec in self.specs.items()}


def contradiction(part: SavedPart, problem: str) -> DataCorrupt:
    """Return the error for a shard whose tensors are not what its table's specification says."""
    return damaged(
        part.path,
        f"its rows {part.rows} of table {part.spec.name!r} are not what their specification says "
        f"({problem})",
    )


def _layout(spec: TableSpec) -> list[object]:
    return [getattr(spec, what) for what in LAYOUT]


def _parts_of(path: Path) -> list[SavedPart]:
    told = read_told(path)
    try:
        tables = msgspec.json.decode(told.get("tables", ""), type=Tables)
        (term, number), places = NO_VIEW, [0] * len(tables)
        if PLACES in told:
            (term, number), places = msgspec.json.decode(told[PLACES], type=Places)
        elif VIEW in told:
            term, number = map(int, told[VIEW].split("."))
        parts = [
            SavedPart(path, i, spec, KeyRange(*held), (-term, -number, place))
            for i, ((spec, held), place) in enumerate(zip(tables, places, strict=True))
        ]
    except (ValueError, UsageError) as error:
        raise damaged(path, f"it is no file of shards ({error})") from None
    for part in parts:
        if not part.spec.keys.covers(part.rows):
            raise damaged(path, f"table {part.spec.name!r} has no rows {part.rows}")
    return parts


def with_earlier(path: Path) -> list[Path]:
    """Return a file, and the earlier files to which it has the changes; the last has all rows.

    Raises:
        DataMissing: an earlier file is not there
        DataCorrupt: a file is not as it was written, or an earlier one is not the file to which
            there are changes
        UnknownFormat: another version of Shoal has written one
    """
    found, crc = [path], ""
    while True:
        told = read_told(found[-1])
        if crc and told.get(CRC) != crc:  # another server has written it since
            raise damaged(found[-2], f"its changes are of another {found[-1]}")
        since, crc = told.get(SINCE, ""), told.get(SINCE_CRC, "")
        earlier = path.parent.parent / since / path.name
        if not since.isdigit() or earlier in found:
            return found
        if not earlier.exists():
            raise DataMissing(f"{found[-1]} has changes of {earlier}, which does not exist")
        found.append(earlier)
