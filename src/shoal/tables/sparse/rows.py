"""SparseRows: the records of a sparse table's keys on one server, found and created."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import AccessFailed
from shoal.jit import U
from shoal.keys import KeyRange
from shoal.tables.initial import stream_of
from shoal.tables.sizes import INDEX_BYTES, SPARSE_KEY_BYTES
from shoal.tables.sparse.distinct import distinct
from shoal.tables.sparse.eviction import BoundedIndex
from shoal.tables.sparse.index import MISSING, Growing, KeyIndex
from shoal.tables.sparse.init import KINDS, create
from shoal.tables.sparse.optimizers import row_method_of
from shoal.tables.sparse.records import scatter
from shoal.tables.sparse.staging import StagedKeys
from shoal.tables.spec import TableSpec
from shoal.tables.staging import Shard


class SparseRows(Shard):
    """Records by key: an index maps each key to the place of its record.

    Attributes:
        records: the records in one flat array; a row and its state are `stride` elements.
        keys: the keys of the records, by place.
    """

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        self.spec = spec
        self.held = held
        self.method = row_method_of(spec)
        self.dtype = np.dtype(spec.dtype)
        self._state = self.method.state(spec.width).astype(self.dtype)
        self.stride = spec.width + len(self._state)
        if not spec.max_rows:
            self.new_row_bytes = self.stride * self.dtype.itemsize + SPARSE_KEY_BYTES
        self._index = self._new_index()
        self._records = Growing(self.dtype, self.stride)

    def _new_index(self) -> KeyIndex | BoundedIndex:
        return KeyIndex()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._index)

    @property
    def records(self) -> np.ndarray:
        return self._records.array

    @property
    def keys(self) -> np.ndarray:
        return self._index.keys

    @property
    def evicted(self) -> int:
        """The number of evicted rows."""
        return self._index.evicted

    # ------------------------------------------------------------------ memory

    @property
    def nbytes(self) -> int:
        """The bytes that the rows take, also while a segment grows.

        Memory that is mapped beyond the rows is not touched, and does not count.
        """
        return INDEX_BYTES + len(self) * self.new_row_bytes

    def new_keys(self, pushes: Sequence[StagedKeys]) -> int:
        if not pushes:
            return 0
        keys = np.concatenate([each.keys for each in pushes])
        absent = keys[self._index.find(keys) == MISSING]
        return len(distinct(absent)[0])

    def only_read(self, staged: StagedKeys) -> None:
        staged.only_read = True

    def _read_present(self, keys: np.ndarray, out: np.ndarray) -> None:
        """Read present rows, and the initial rows of absent keys, which are not created."""
        places = self._index.find(keys)
        absent = np.flatnonzero(places == MISSING)
        if not len(absent):
            self.method.read(self.records, places, out, self.stride)
            return
        here = np.flatnonzero(places != MISSING)
        new = self._new_records(keys[absent]).reshape(-1)
        first = np.arange(len(absent), dtype=np.uint64)
        for records, at, which in ((new, first, absent), (self.records, places[here], here)):
            rows = np.empty((len(which), self.spec.width), self.dtype)
            self.method.read(records, at, rows, self.stride)
            out[which] = rows

    # ------------------------------------------------------------------ places

    def _places(self, keys: np.ndarray) -> np.ndarray:
        """Return the places of the keys' records, and create absent ones.

        Raises:
            AccessFailed: there is no memory for them; no row has changed.
        """
        try:
            return self._places_of_created(keys) if self.method.creates else self._found(keys)
        except MemoryError as error:
            raise AccessFailed(
                f"table {self.spec.name!r}: no memory for more rows than {len(self)} ({error}); "
                "set max_rows, or add servers"
            ) from None

    def _found(self, keys: np.ndarray) -> np.ndarray:
        created = np.empty(len(keys), np.uint64)
        self._reserve(len(keys))  # fails before any change, if at all
        places, added = self._index.find_or_add(keys, created)
        if added:
            new = created[:added]
            self._write_new(self.records, places[new], keys[new])
        return places

    def _places_of_created(self, keys: np.ndarray) -> np.ndarray:
        """Return the places; create absent rows first, because the method may raise."""
        missing = np.flatnonzero(self._index.find(keys) == MISSING)
        fresh = self._new_records(keys[missing])
        created = np.empty(len(keys), np.uint64)
        self._reserve(len(keys))
        places, added = self._index.find_or_add(keys, created)
        new = created[:added].astype(np.int64)
        scatter(self.records, places[new], fresh[np.searchsorted(missing, new)], U(self.stride))
        return places

    def _reserve(self, more: int) -> None:
        self._records.reserve(min(len(self) + more, self._index.most))

    def _new_records(self, keys: np.ndarray) -> np.ndarray:
        """Return the initial records of these keys, (n, stride)."""
        fresh = np.empty((len(keys), self.stride), self.dtype)
        self._write_new(fresh.reshape(-1), np.arange(len(keys), dtype=np.uint64), keys)
        if self.method.creates:
            self.method.create(fresh, self.spec.width, keys, self.spec.init.seed)
        return fresh

    def _write_new(self, memory: np.ndarray, places: np.ndarray, keys: np.ndarray) -> None:
        """Write initial records: the table's Init, and the method's initial state."""
        init = self.spec.init
        create(
            memory,
            places,
            keys,
            self._state,
            U(self.spec.width),
            KINDS[init.kind],
            np.float64(init.a),
            np.float64(init.b),
            stream_of(init.seed, 0),
            stream_of(init.seed, 1),
        )
