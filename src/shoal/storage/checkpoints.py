"""Checkpoints on disk, written during training: a folder for each clock, a file for each shard.

A file is written whole, and has a checksum and the names of all tables of the run. A checkpoint is
complete when its files cover every table: no other file says so. A checkpoint of a run without
servers has no rows, but a file of each worker, which lists the ranks of all workers.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from threading import Lock, Thread
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import DataCorrupt, DataMissing, UnknownFormat, UsageError
from shoal.keys import KeyRange, tiles
from shoal.protocol.machine import Save
from shoal.protocol.views import NO_VIEW, ViewId
from shoal.storage.run_folder import folder_of
from shoal.storage.shard_files import (
    SINCE,
    SINCE_CRC,
    Origin,
    Tables,
    check_origins,
    with_earlier,
)
from shoal.storage.verified import check_verified, read_told, write_verified
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.storage.shards import SavedShards

WORKERS = "workers"  # in a worker's metadata: the ranks that form a checkpoint without rows
WAITING_BYTES = 1 << 30  # of shards that wait to be written; a single shard may be larger

log = logging.getLogger("shoal.checkpoints")


class Writer:
    """Writes a server's part of checkpoints, in a thread of its own.

    A file that cannot be written, or not as fast as others follow, is left out: its checkpoint
    stays incomplete, the one before it counts, and the server continues.

    folder:      the function that returns the folder of all checkpoints; called at each write
    offset:      the clock of the checkpoint that the run continues from
    left_out:    the function that is called, in any thread, when a file is left out
    keep:        the number of complete checkpoints to keep, the last ones; 0 for all
    most_bytes:  the limit for shards that wait to be written
    origin:      the function that returns the run's name and the view; called by `put`
    """

    def __init__(
        self,
        folder: Callable[[], Path],
        offset: int = 0,
        left_out: Callable[[], None] = lambda: None,
        keep: int = 0,
        most_bytes: int = WAITING_BYTES,
        origin: Callable[[], tuple[str, ViewId]] = lambda: ("", NO_VIEW),
    ) -> None:
        self._folder = folder
        self._offset = offset
        self._most_bytes = most_bytes
        self._left_out = left_out
        self._keep = keep
        self._origin = origin
        self._lock = Lock()
        self._bytes = 0
        self._wrote: dict[tuple[int, int], tuple[str, int]] = {}  # by shard: checksum, clock
        self._waiting: SimpleQueue[tuple[Save, Origin] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, save: Save) -> None:
        nbytes = _size(save)
        with self._lock:
            full = self._bytes > 0 and self._bytes + nbytes > self._most_bytes
            self._bytes += 0 if full else nbytes
        if full:
            log.warning("checkpoint %d is left out: the disk is too slow", save.clock)
            self._left_out()
        else:
            run, view = self._origin()
            self._waiting.put((save, Origin(run, save.clock + self._offset, view)))

    def close(self) -> None:
        """Write the files that wait, then end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            save, origin = waiting
            try:
                key = save.table, save.rows.start
                if save.since >= 0 and self._wrote.get(key, ("", 0))[1] != save.since:
                    raise ValueError("the file whose changes it would have was not written")
                before = folder_of(save.since + self._offset), self._wrote.get(key, ("", 0))[0]
                crc = _write(self._folder(), save, origin, before if save.since >= 0 else None)
                self._wrote[key] = crc, save.clock
            except Exception as error:  # the server continues, and the next checkpoint is tried
                log.warning("checkpoint %d could not be written: %s", save.clock, error)
                self._left_out()
            else:
                Checkpoints(self._folder()).keep(self._keep)
            with self._lock:
                self._bytes -= _size(save)


def _size(save: Save) -> int:
    return sum(tensor.nbytes for tensor in save.state.values())


def _write(folder: Path, save: Save, origin: Origin, before: tuple[str, str] | None) -> str:
    """Write a file and return its checksum.

    before:  the folder and the checksum of the file to which it has the changes; None for all rows
    """
    metadata = origin.told()
    if before is not None:
        metadata[SINCE], metadata[SINCE_CRC] = before
    path = folder / folder_of(origin.clock) / _file(save.table, save.rows)
    return _write_rows(path, save.spec, save.rows, save.state, save.tables, metadata)


def _file(table: int, rows: KeyRange) -> str:
    return f"shard-{table}-{rows.start}.safetensors"


def _write_rows(
    path: Path,
    spec: TableSpec,
    rows: KeyRange,
    state: Mapping[str, Tensor],
    names: Sequence[str],
    metadata: Mapping[str, str],
) -> str:
    """Write a file and return its checksum.

    names:  the names of all tables of the run
    """
    tensors = {f"0.{name}": tensor.contiguous() for name, tensor in state.items()}
    described: Tables = [(spec, (rows.start, rows.stop))]
    told = {
        "tables": msgspec.json.encode(described).decode(),
        "all": msgspec.json.encode(names).decode(),
    }
    return write_verified(path, tensors, {**told, **metadata})


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: the folder of the checkpoints.
        workers: the number of workers, without whose state files a checkpoint is not complete.
    """

    def __init__(self, folder: Path, workers: int = 0) -> None:
        self.folder = folder
        self._workers = workers

    def choose(self, clock: int = -1) -> int:
        """Verify the checkpoint at `clock`, or the newest complete one, and return its clock.

        Raises:
            DataMissing: there is no such complete checkpoint
            DataCorrupt: a file is not as it was written; the text names the last intact checkpoint
            UnknownFormat: another version of Shoal has written a file
        """
        lacking = {each: self.lacks(each) for each in self._clocks()}
        complete = [each for each, lack in lacking.items() if not lack]
        if not complete or (clock >= 0 and clock not in complete):
            known = ", ".join(map(str, complete)) or "none"
            which = f"no complete checkpoint {clock}" if clock >= 0 else "no complete checkpoint"
            asked = clock if clock >= 0 else max(lacking, default=-1)
            why = f"; {asked} is not: {lacking[asked]}" if asked in lacking else ""
            raise DataMissing(f"{self.folder}: {which} (complete: {known}){why}")
        chosen = complete[-1] if clock < 0 else clock
        damage = self._damage(chosen)
        if damage:
            good = next((each for each in reversed(complete) if not self._damage(each)), None)
            offer = (
                "no other is intact" if good is None else f"the last intact one: --resume-at {good}"
            )
            raise DataCorrupt(f"checkpoint {chosen} is damaged ({damage}); {offer}")
        return chosen

    def add(self, clock: int, ended: SavedShards) -> None:
        """Write a checkpoint at `clock` of the rows that a run had at its end.

        Raises:
            DataCorrupt: a file of the run is not as it was written
            OSError, SafetensorError: a file cannot be written
        """
        names, origin = list(ended.tables), Origin(ended.run, clock)
        for number, name in enumerate(names):
            for part, state in ended.parts(name):
                path = self.path(clock) / _file(number, part.rows)
                _write_rows(path, part.spec, part.rows, state, names, origin.told())

    def complete(self) -> list[int]:
        """Return the clocks of the complete checkpoints, whose files may be damaged."""
        return [clock for clock in self._clocks() if not self.lacks(clock)]

    def prune(self, keep: int) -> None:
        """Remove checkpoints before the last `keep` complete ones, except those that these need.

        A checkpoint with an unreadable file does not count as complete. All servers of a run may
        prune at once.
        """
        clocks = self._clocks()
        complete = [clock for clock in clocks if not self.lacks(clock, unreadable=False)]
        oldest = complete[-keep] if len(complete) >= keep else 0
        if not clocks or clocks[0] >= oldest:
            return
        kept = [path for clock in clocks if clock >= oldest for path in self._files(clock)]
        needed = {each.parent for path in kept for each in with_earlier(path)}
        for clock in clocks:
            if clock < oldest and self.path(clock) not in needed:
                rmtree(self.path(clock), ignore_errors=True)

    def has_rows(self, clock: int) -> bool:
        """Return whether servers have written rows at a clock."""
        return bool(self._files(clock))

    def keep(self, count: int) -> None:
        """Prune after a write, unless `count` is 0; if that fails, the next write tries again."""
        try:
            if count:
                self.prune(count)
        except (OSError, UsageError) as error:
            log.info("older checkpoints could not be removed: %s", error)

    def path(self, clock: int) -> Path:
        return self.folder / folder_of(clock)

    def _clocks(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(each.name) for each in self.folder.iterdir() if each.name.isdecimal())

    def _files(self, clock: int) -> list[Path]:
        """Return the files of rows at a clock, without the files of workers."""
        return sorted(self.path(clock).glob("shard-*.safetensors"))

    def lacks(self, clock: int, unreadable: bool = True) -> str:
        """Return what a checkpoint lacks; "" if all rows and the files of all workers are there.

        unreadable:  whether a checkpoint with a damaged file counts as complete
        """
        try:
            alone = self._alone(clock)
            lacking = "" if alone else self._lacks_rows(clock)
        except DataMissing as error:
            return error.message
        except UnknownFormat:
            raise
        except (ValueError, UsageError) as error:
            return "" if unreadable else str(error)
        ranks = sorted(alone) or range(self._workers)
        files = (self.path(clock) / f"worker-{rank}.safetensors" for rank in ranks)
        return lacking or next((f"{each} is not there" for each in files if not each.is_file()), "")

    def _alone(self, clock: int) -> set[int]:
        """Return the ranks that form a checkpoint without rows, as listed in its files."""
        if self.has_rows(clock):
            return set()
        files = sorted(self.path(clock).glob("worker-*.safetensors"))
        told = [read_told(each).get(WORKERS, "") for each in files]
        return {int(rank) for ranks in told for rank in ranks.split(",") if rank}

    def _lacks_rows(self, clock: int) -> str:
        """Return what a checkpoint lacks of its tables; "" if nothing."""
        held: defaultdict[str, list[KeyRange]] = defaultdict(list)
        specs: dict[str, TableSpec] = {}
        wanted: dict[str, Path] = {}  # tables, each with a file that names it
        for path in self._files(clock):
            with_earlier(path)
            told = read_told(path)
            tables = msgspec.json.decode(told.get("tables", ""), type=Tables)
            names = msgspec.json.decode(told.get("all", ""), type=list[str])
            for spec, rows in tables:
                specs[spec.name] = spec
                held[spec.name].append(KeyRange(*rows))
            wanted.update(dict.fromkeys(names, path))
        for name, path in wanted.items():
            if name not in specs or not tiles(sorted(held[name]), specs[name].keys.stop):
                return f"{path} names table {name!r}, and not all rows of it are there"
        return "" if wanted else f"{self.path(clock)} has no rows"

    def _damage(self, clock: int) -> str:
        """Return the damage of the first file that is not as it was written; "" if there is none.

        A file of another run or clock is damaged as well.
        """
        files = sorted(self.path(clock).glob("*.safetensors"))
        try:
            check_origins(files, clock)
            for path in files:
                for each in with_earlier(path):
                    check_verified(each)
        except (DataMissing, DataCorrupt) as error:
            return error.message
        return ""
