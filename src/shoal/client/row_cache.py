"""RowCache: rows of a sparse table that a reader keeps for a while, as near caches do."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from shoal.client.client import Client
from shoal.client.sparse.exchanges import keys_of
from shoal.errors import InvalidValue
from shoal.tables.dense.rows import DTYPES
from shoal.tables.sparse.index import Growing, KeyIndex

MAX_ROWS = 1 << 20


def check_bounds(max_age_s: float, max_rows: int) -> None:
    """Refuse bounds of a cache that are out of range."""
    if not max_age_s >= 0:
        raise InvalidValue(f"max_age_s is {max_age_s}, and has to be 0 or more")
    if max_rows < 1:
        raise InvalidValue(f"max_rows is {max_rows}, and has to be 1 or more")


class RowCache:
    """Pulls rows of a sparse table, and keeps each of them for `max_age_s`.

    A row that it returns is one that the servers had at most `max_age_s` seconds before the call.
    A pull that finds more than `max_rows` rows forgets all of them first. One thread at a time may
    use it.

    Args:
        client: a connected client.
        table: the name of a sparse table; the first group's `w` is `/w` to other groups.
        max_age_s: the age in seconds, 0 or more; infinity for rows that do not change any more.
        max_rows: the number of rows to keep, each with its key and 8 bytes more.

    Attributes:
        hits: the number of keys whose rows were kept.
        misses: the number of keys whose rows were pulled.

    Raises:
        InvalidValue: no such table, a table that is not sparse, or a bound out of range.

    Example:
        >>> import shoal, torch
        >>> client = shoal.init().client
        >>> spec = shoal.TableSpec("docs/seen", 0, (2,), kind="sparse", consistency=shoal.asp())
        >>> spec = client.create_table(spec)
        >>> cache = shoal.RowCache(client, "docs/seen", max_age_s=60)
        >>> cache.pull([3, 5, 3]).tolist(), cache.pull([5]).tolist()
        ([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0]])
        >>> cache.hits, cache.misses
        (1, 3)

    References:
        Li et al. 2014, section 3.3: a bounded delay between what is read and what is newest.
    """

    def __init__(
        self, client: Client, table: str, *, max_age_s: float = 1.0, max_rows: int = MAX_ROWS
    ) -> None:
        self._spec = client.table(table)
        if self._spec.kind != "sparse":
            raise InvalidValue(f"table {table!r} is {self._spec.kind}: only sparse rows are cached")
        check_bounds(max_age_s, max_rows)
        self._client = client
        self._table = table
        self._max_age_s = max_age_s
        self._max_rows = max_rows
        self.hits = self.misses = 0
        self.forget()

    def __len__(self) -> int:
        """Return the number of kept rows, including those that are too old."""
        return len(self._index)

    def forget(self) -> None:
        """Drop all rows."""
        self._index = KeyIndex()
        dtype = torch.empty(0, dtype=DTYPES[self._spec.dtype]).numpy().dtype
        self._rows = Growing(dtype, self._spec.width)
        self._until = Growing(np.dtype(np.float64), 1)  # 0 for new rows: fresh memory is zero

    def pull(self, keys: object) -> Tensor:
        """Return the rows of keys.

        Args:
            keys: the (n,) 64-bit integers, as `Client.pull` takes them.

        Returns:
            A new tensor, (n, *row_shape).

        Raises:
            InvalidValue: keys are no list of integers.
            PeerError: as `Client.pull`; the kept rows stay as they were.
        """
        named, now = keys_of(self._spec, keys), time.monotonic()
        if len(self._index) > self._max_rows:
            self.forget()
        places, _ = self._index.find_or_add(named, np.empty(len(named), np.uint64))
        self._until.reserve(len(self._index))
        self._rows.reserve(len(self._index))
        stale = np.flatnonzero(self._until.array[places] <= now)
        rows = self._rows.array[: len(self._index) * self._spec.width].reshape(-1, self._spec.width)
        if len(stale):
            pulled = self._client.blocking.pull(self._table, named[stale])
            rows[places[stale]] = pulled.numpy().reshape(len(stale), -1)
            self._until.array[places[stale]] = now + self._max_age_s
        self.misses += len(stale)
        self.hits += len(named) - len(stale)
        return torch.from_numpy(rows[places]).reshape(len(named), *self._spec.row_shape)
