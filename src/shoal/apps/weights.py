"""The weights of a run's model: on the servers while the run is under way, then in its files."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.client.connect import connect
from shoal.client.places import scheduler_at
from shoal.client.row_cache import MAX_ROWS, RowCache, check_bounds
from shoal.errors import DataCorrupt, DataMissing
from shoal.keys import SLOTS, KeyRange
from shoal.protocol.server.state.shard_store import ShardStore
from shoal.storage.held_file import is_abandoned
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.tables.opening import open_shard

CHECK_S = 0.1  # between two looks whether a run is still under way
JOIN_S = 30.0  # until a run's cluster is complete
BEGIN_S = 60.0  # until the tables of a run are there
PROBE_S = 5.0  # until servers that do not answer are asked why; after twice this a score fails


class Weights(Protocol):
    """Rows and tables of a model."""

    def rows(self, table: str, keys: np.ndarray) -> np.ndarray:
        """Return rows of a sparse table, (n, width) float32; the initial row for an unknown key."""

    def dense(self, table: str) -> Tensor:
        """Return all rows of a dense table."""

    def close(self) -> None: ...


def weights_of(run: Path, max_age_s: float = 1.0, max_rows: int = MAX_ROWS) -> Weights:
    """Return the weights of a run.

    max_age_s:  the time for which values pulled from a run under way are used
    max_rows:   the number of rows of a table to keep from a run under way

    Raises:
        DataMissing: as `SavedShards`; or the run was killed
        DataCorrupt, UnknownFormat: as `SavedShards`
        InvalidValue: a bound out of range
        JoinTimeout: a run under way has not begun in time
    """
    check_bounds(max_age_s, max_rows)
    under_way = RunFolder(run).scheduler
    if is_abandoned(under_way):
        raise DataMissing(f"{run} was killed: it has no model, at most checkpoints to --resume")
    if under_way.exists():
        return RunningWeights(run, max_age_s, max_rows)
    return SavedWeights(run)


class SavedWeights:
    """The weights of a run that has ended, in the memory of this process.

    Raises:
        DataMissing, DataCorrupt, UnknownFormat: as `SavedShards`
    """

    def __init__(self, run: Path) -> None:
        self._saved = SavedShards(run)
        self._open = cache(self._opened)

    def _opened(self, table: str) -> ShardStore:
        spec = self._saved.tables.get(table)
        if spec is None:
            raise DataMissing(f"{self._saved.folder} has no table {table!r}")
        return self._saved.beginning(open_shard)(spec, KeyRange(0, SLOTS))

    def rows(self, table: str, keys: np.ndarray) -> np.ndarray:
        shard = self._open(table)
        asked = shard.stage_keys(shard.spec.keys, len(keys))
        shard.only_read(asked)
        asked.keys[:] = keys
        return np.frombuffer(shard.read_keys(asked), np.float32).reshape(len(keys), -1)

    def dense(self, table: str) -> Tensor:
        return self._saved.merged(table)["rows"]

    def close(self) -> None:
        self._open.cache_clear()


class RunningWeights:
    """The weights of a run under way, pulled by a separate worker group that no worker waits for.

    Raises:
        DataMissing: the run has ended; also raised by `rows` and `dense`
        RequestTimeout: the tables do not exist after BEGIN_S; raised by `rows` and `dense`
    """

    def __init__(self, run: Path, max_age_s: float, max_rows: int) -> None:
        group = f"score-{os.getpid()}-{os.urandom(2).hex()}"
        self.client = connect(
            str(run),
            group=group,
            init_timeout_s=JOIN_S,
            sync_timeout_s=PROBE_S,
            abort_on_error=False,  # the run goes on if this process fails
        )
        self._run = str(run)
        self._next_check = 0.0
        self._max_age_s = max_age_s
        self._max_rows = max_rows
        self._caches: dict[str, RowCache] = {}
        self._dense: dict[str, tuple[float, Tensor]] = {}

    def rows(self, table: str, keys: np.ndarray) -> np.ndarray:
        self._check()
        found = self._caches.get(table)
        if found is None:
            self.client.await_table(f"/{table}", BEGIN_S)
            found = self._caches[table] = RowCache(
                self.client, f"/{table}", max_age_s=self._max_age_s, max_rows=self._max_rows
            )
        return found.pull(keys).numpy()

    def dense(self, table: str) -> Tensor:
        until, values = self._dense.get(table, (-1.0, torch.empty(0)))
        now = time.monotonic()
        if now >= until:
            self._check()
            self.client.await_table(f"/{table}", BEGIN_S)
            values = self.client.blocking.pull(f"/{table}", exact=True)
            self._dense[table] = now + self._max_age_s, values
        return values

    def _check(self) -> None:
        """Refuse a run that has ended, whose servers would be waited for."""
        now = time.monotonic()
        if now >= self._next_check:
            scheduler_at(self._run)
            self._next_check = now + CHECK_S

    def close(self) -> None:
        try:
            scheduler_at(self._run)
        except (DataMissing, DataCorrupt) as error:  # no scheduler is left
            self.client.fail(error)
        else:
            self.client.close()
