"""RunFolder: every path of a run, built here and nowhere else.

events.jsonl        what happened, from all processes
job.toml            the resolved configuration
summary.json        the figures at the end
model.safetensors   the trained parameters
shards/server-N.safetensors    the tables' rows, as each server had them at the end
checkpoints/CLOCK/arc-TABLE-ROW.safetensors    rows at a clock, where they were asked for
checkpoints/CLOCK/worker-N.safetensors         ... and a worker's random states and buffers
workers/N/train.csv, eval.csv
pids.json           the processes
scheduler           its address, while the run goes on
logs/NAME.log       standard output and error of each process
logs/NAME.error     the typed error that ended it, where one did
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from shoal.errors import DataMissing, InvalidValue


class RunFolder:
    """The directory that a run leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path, title: str) -> RunFolder:
        """A fresh folder named by title and time."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", title) or "run"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for attempt in range(1000):
            path = parent / (f"{name}-{stamp}" + (f"-{attempt}" if attempt else ""))
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if parent.is_dir():
                    continue
                raise InvalidValue(f"{parent} is not a folder; name another with --out") from None
            except OSError as error:
                raise InvalidValue(
                    f"no run folder can be made in {parent.absolute()}: {error.strerror}; name "
                    "another with --out"
                ) from None
            (path / "logs").mkdir()
            return cls(path)
        raise FileExistsError(f"no free run folder beside {path}")

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def job(self) -> Path:
        return self.path / "job.toml"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def shards(self) -> Path:
        return self.path / "shards"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, clock: int) -> Path:
        return self.checkpoints / folder_of(clock)

    @property
    def scheduler(self) -> Path:
        """Has the scheduler's address while the run goes on."""
        return self.path / "scheduler"

    @property
    def pids(self) -> Path:
        return self.path / "pids.json"

    def worker(self, rank: int) -> Path:
        folder = self.path / "workers" / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def error(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.error"


def folder_of(clock: int) -> str:
    """The name of a checkpoint's folder."""
    return f"{clock:010d}"


def shard_files(folder: Path) -> list[Path]:
    """The shards that a run has left; `folder` is the run's, or that of its shards.

    Raises:
        DataMissing: there are none
    """
    found = sorted((folder / "shards").glob("*.safetensors"))
    found = found or sorted(folder.glob("server-*.safetensors"))
    found = found or sorted(folder.glob("arc-*.safetensors"))  # of a checkpoint
    if not found:
        raise DataMissing(f"{folder} has no shards: it is no run that ended with its servers")
    return found
