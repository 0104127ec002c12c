"""RunFolder: every path of a run, built here and nowhere else.

events.jsonl        what happened, from all processes; the first line has the format's version, when
                    the run began, and a mark that no other folder has
job.toml            the resolved configuration
summary.json        the figures at the end
model.safetensors   the trained parameters
shards/server-N.safetensors    the tables' rows, as each server had them at the end
checkpoints/CLOCK/shard-TABLE-ROW.safetensors    rows at a clock
checkpoints/CLOCK/worker-N.safetensors         a worker's random states and buffers at it
checkpoints/leases                             which batches workers were granted
workers/N/train.csv, eval.csv, logged.csv, result.json
workers/N/values.json           texts of categories that a worker of `shoal train ctr` has seen
workers/N/state.safetensors     a worker's random state and buffers at the end, until the last
                                checkpoint has them
pids.json           the processes
scheduler           its address, during the run
token               the secret of its members, during a run over TCP; only its owner may read it
logs/NAME.log       standard output and error of each process
logs/NAME.error     the typed error that ended it, if any
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import DataMissing, InvalidValue
from shoal.ownership import PRIVATE
from shoal.storage.files import (
    FORMAT,
    FORMAT_KEY,
    check_format,
    damaged,
    flush,
    make_folder,
    open_file,
    read_object,
    write_whole,
)

RESULT = "result.json"  # of a worker
EVENTS = "events.jsonl"
CHECKPOINTS = "checkpoints"
LEASES = f"{CHECKPOINTS}/leases"
SUPERVISORS = ("job.toml", "summary.json", "scheduler", "token", "pids.json")  # it writes them
HEADER_BYTES_MAX = 4096  # of an event log
MARK_BYTES = 8  # random ones, of each folder


class RunFolder:
    """The directory that a run leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = path / EVENTS
        self.job = path / "job.toml"
        self.summary = path / "summary.json"
        self.model = path / "model.safetensors"
        self.shards = path / "shards"
        self.checkpoints = path / CHECKPOINTS
        self.leases = path / LEASES
        self.scheduler = path / "scheduler"  # has the address, during the run
        self.token = path / "token"  # during the run, if the run has one
        self.pids = path / "pids.json"

    @classmethod
    def create(cls, parent: Path, title: str, started_at: float | None = None) -> RunFolder:
        """Create a fresh folder named by title and time, which only its owner may enter.

        started_at:  `time.time()` when the run began; now, if not given
        """
        return cls.begin_in(stamped_folder(parent, title), started_at)

    @classmethod
    def begin_in(cls, path: Path, started_at: float | None = None) -> RunFolder:
        """Begin a run in a folder, which is made if missing."""
        folder = cls(path)
        make_folder(path, PRIVATE)
        make_folder(path / "logs")
        write_whole(folder.events, _header(started_at))
        return folder

    @classmethod
    def begun(cls, path: Path) -> tuple[RunFolder, bool]:
        """Return the folder of a run, made if missing, and whether this process has made it.

        Several processes may try at once.

        Raises:
            OSError: it cannot be made
        """
        folder = cls(path)
        if folder.events.exists():
            return folder, False
        make_folder(path, PRIVATE)
        fresh = folder.events.with_name(f".events.{secrets.token_hex(8)}.new")
        write_whole(fresh, _header())
        try:
            folder.events.hardlink_to(fresh)  # which fails where another process was first
        except FileExistsError:
            return folder, False
        finally:
            fresh.unlink()
        return folder, True

    def started_at(self) -> float:
        """Return the `time.time()` of the run's beginning, as its event log has it, else of now."""
        return self._begun().started_at or time.time()

    def mark(self) -> str:
        """Return what no other folder has in its event log; "" without an event log."""
        return self._begun().mark

    def _begun(self) -> _Header:
        try:
            with open_file(self.events) as file:
                return header_of(file.readline(HEADER_BYTES_MAX))
        except OSError:
            return _Header()

    def write_job(self, toml: str) -> None:
        write_whole(self.job, f"{FORMAT_KEY} = {FORMAT}\n{toml}")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_whole(self.summary, json.dumps({FORMAT_KEY: FORMAT, **summary}, indent=2) + "\n")

    def read_summary(self) -> dict[str, Any]:
        """Read the figures at the run's end; return {} for a run that has not ended.

        Raises:
            UnknownFormat: another version of Shoal has written them
            DataCorrupt: the file is damaged
        """
        try:
            figures = read_object(self.summary)
        except DataMissing:
            return {}
        check_format(self.summary, figures.pop(FORMAT_KEY, None))
        return figures

    def checkpoint(self, clock: int) -> Path:
        return self.checkpoints / folder_of(clock)

    def _worker(self, rank: int) -> Path:
        return self.path / "workers" / str(rank)

    def worker(self, rank: int) -> Path:
        folder = self._worker(rank)
        make_folder(folder)
        return folder

    def state(self, rank: int) -> Path:
        return self._worker(rank) / "state.safetensors"

    def values(self, rank: int) -> Path:
        return self._worker(rank) / "values.json"

    def result_file(self, rank: int) -> Path:
        return self._worker(rank) / RESULT

    def write_result(self, rank: int, figures: Mapping[str, Any]) -> None:
        write_whole(self.worker(rank) / RESULT, json.dumps(figures))

    def result(self, rank: int) -> dict[str, Any]:
        """Read the figures of a worker; return {} if the worker has not come to the end.

        Raises:
            DataCorrupt: the file is damaged
        """
        try:
            return read_object(self.result_file(rank))
        except DataMissing:
            return {}

    def results(self, workers: int, needed: Sequence[str]) -> list[dict[str, Any]]:
        """Read the figures of all workers that have come to the end.

        needed:  the names of the numbers that each of them must have

        Raises:
            DataMissing: no worker has come to the end
            DataCorrupt: a file is damaged, or lacks one of these numbers
        """
        found = []
        for rank in range(workers):
            if figures := self.result(rank):
                for name in needed:
                    if not isinstance(figures.get(name), int | float):
                        raise damaged(self.result_file(rank), f"it has no number {name!r}")
                found.append(figures)
        if not found:
            raise DataMissing(f"{self.path / 'workers'} has no results: no worker came to the end")
        return found

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def error(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.error"


class _Header(msgspec.Struct):
    """The first line of an event log; another version may have written fewer fields."""

    started_at: float = 0.0
    mark: str = ""


def _header(started_at: float | None = None) -> str:
    began = time.time() if started_at is None else started_at
    header = {"t": 0.0, "kind": "format", "node": "", FORMAT_KEY: FORMAT, "started_at": began}
    return json.dumps({**header, "mark": secrets.token_hex(MARK_BYTES)}) + "\n"


def header_of(line: bytes) -> _Header:
    """Return the header in the first line of an event log; an empty one if it is none."""
    try:
        return msgspec.json.decode(line, type=_Header)
    except ValueError:
        return _Header()


def stamped_folder(parent: Path, title: str) -> Path:
    """Create a fresh folder named by title and time, which only its owner may enter.

    Raises:
        InvalidValue: it cannot be made there
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", title) or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        path = parent / (f"{name}-{stamp}" + (f"-{attempt}" if attempt else ""))
        try:
            make_folder(parent, PRIVATE)
            path.mkdir(PRIVATE)
            flush(parent)
        except FileExistsError:
            if parent.is_dir():
                continue
            raise InvalidValue(f"{parent} is not a folder; name another with --out") from None
        except OSError as error:
            raise InvalidValue(
                f"no run folder can be made in {parent.absolute()}: {error.strerror}; name "
                "another with --out"
            ) from None
        return path
    raise FileExistsError(f"no free run folder beside {path}")


def is_log(name: str) -> bool:
    """Return whether a file of a run, by its name in the folder, is the log of a process."""
    return name.startswith("logs/") and name.endswith(".log")


def folder_of(clock: int) -> str:
    """Return the name of the folder of the checkpoint at a clock."""
    return f"{clock:010d}"


def is_checkpoint(files: Sequence[Path]) -> bool:
    """Return whether files of shards are of a checkpoint, whose folder is named by its clock."""
    return files[0].name.startswith("shard-")


def shard_files(folder: Path) -> list[Path]:
    """Return the files of shards in the folder of a run, of its shards, or of a checkpoint.

    Raises:
        DataMissing: there are none
    """
    found = sorted((folder / "shards").glob("*.safetensors"))
    found = found or sorted(folder.glob("server-*.safetensors"))
    found = found or sorted(folder.glob("shard-*.safetensors"))  # of a checkpoint
    if not found:
        raise DataMissing(f"{folder} has no shards: it is not a run that has ended in order")
    return found
