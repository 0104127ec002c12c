"""The weights of a run's model: on its servers while it is under way, in its files afterwards."""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.client.connect import connect
from shoal.client.sparse.row_cache import MAX_ROWS, RowCache
from shoal.errors import DataMissing, JoinTimeout
from shoal.keys import SLOTS, KeyRange
from shoal.protocol.machine import Note
from shoal.protocol.server.shard_store import ShardStore
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.tables.opening import open_shard

JOIN_S = 30.0  # until a run's cluster is complete
BEGIN_S = 60.0  # until the tables of a run are there
PROBE_S = 5.0  # until servers that do not answer are asked why; after twice this a score fails


class Weights(Protocol):
    """Rows and tables of a model."""

    def rows(self, table: str, keys: np.ndarray) -> np.ndarray:
        """Rows of a sparse table, (n, width) float32. A key without a row has its initial one."""

    def dense(self, table: str) -> Tensor:
        """All of a dense table."""

    def close(self) -> None: ...


def weights_of(run: Path, max_age_s: float = 1.0, max_rows: int = MAX_ROWS) -> Weights:
    """The weights of a run.

    max_age_s:  how long what was pulled from a run under way is used
    max_rows:   rows of a table that are kept of a run under way

    Raises:
        DataMissing, DataCorrupt, UnknownFormat: as `SavedShards`
        JoinTimeout: a run under way has not begun in time
    """
    if RunFolder(run).scheduler.exists():
        return RunningWeights(run, max_age_s, max_rows)
    return SavedWeights(run)


class SavedWeights:
    """Of a run that has ended, in this process.

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
    """Of a run under way: pulled by a worker group of its own, for which no worker waits."""

    def __init__(self, run: Path, max_age_s: float, max_rows: int) -> None:
        group = f"score-{os.getpid()}-{os.urandom(2).hex()}"
        try:
            self.client = connect(
                str(run), group=group, init_timeout_s=JOIN_S, sync_timeout_s=PROBE_S
            )
        except JoinTimeout as error:
            raise JoinTimeout(
                f"{run} is not under way, and has not ended in order: a run that was killed has no "
                f"model, at most checkpoints to --resume ({error.message})"
            ) from None
        self._max_age_s = max_age_s
        self._max_rows = max_rows
        self._caches: dict[str, RowCache] = {}
        self._dense: dict[str, tuple[float, Tensor]] = {}

    def rows(self, table: str, keys: np.ndarray) -> np.ndarray:
        found = self._caches.get(table)
        if found is None:
            self._await(table)
            found = self._caches[table] = RowCache(
                self.client, f"/{table}", max_age_s=self._max_age_s, max_rows=self._max_rows
            )
        return found.pull(keys).numpy()

    def dense(self, table: str) -> Tensor:
        until, values = self._dense.get(table, (-1.0, torch.empty(0)))
        now = time.monotonic()
        if now >= until:
            self._await(table)
            values = self.client.blocking.pull(f"/{table}")
            self._dense[table] = now + self._max_age_s, values
        return values

    def _await(self, table: str) -> None:
        """Wait until the run's workers have created a table.

        Raises:
            DataMissing: they have not in time.
        """
        client, changed = self.client, threading.Event()
        before = client.on_note
        end = time.monotonic() + BEGIN_S

        def noted(note: Note) -> None:
            before(note)
            changed.set()

        client.on_note = noted
        try:
            while f"/{table}" not in {spec.name for spec in client.view.tables}:
                if not changed.wait(end - time.monotonic()):
                    raise DataMissing(f"the run has no table {table!r} after {BEGIN_S:g} s")
                changed.clear()
        finally:
            client.on_note = before

    def close(self) -> None:
        self.client.close()
