"""SparseShard: one server's rows of a sparse table, by 64-bit keys.

A row is created when its key is first named, by a pull or a push, from the seed and the key alone.
Which server a key lives on is said by its hash slot (`keys.slot_of`); a shard holds a range of
slots. A push is staged whole, its keys are checked, and one kernel applies it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from shoal.errors import AccessFailed
from shoal.keys import SLOTS, KeyRange
from shoal.tables.bounded import BoundedIndex
from shoal.tables.creating import KINDS, create
from shoal.tables.distinct import distinct, outside, within
from shoal.tables.index import MISSING, Growing, KeyIndex
from shoal.tables.initial import stream_of
from shoal.tables.kernels import U
from shoal.tables.records import scatter
from shoal.tables.row_methods import row_method_of
from shoal.tables.snapshots import Snapshot, StagedSnapshot, copied
from shoal.tables.spec import TableSpec
from shoal.tables.staging import ALIGN, Merged, Staging

NO_BOUND = 1 << 62


class StagedKeys:
    """Keys and values of a push (or the keys of a pull) as they come in.

    rows:    the slots that the keys are to be in
    keys:    (n,) uint64, in any order
    values:  (n, width) of the table's dtype; (0, width) for a pull
    kept:    its keys are read once it is applied
    retained: it goes to other servers as well, and keeps its memory when it is applied
    """

    __slots__ = ("kept", "keys", "memory", "retained", "rows", "values", "views")

    def __init__(self, rows: KeyRange, memory: np.ndarray, keys: int, values: np.ndarray) -> None:
        self.rows = rows
        self.memory: np.ndarray | None = memory
        self.kept = False
        self.retained = False
        self.keys = memory[: 8 * keys].view(np.uint64)
        self.values = values
        self.views: list[memoryview] = [memory[: 8 * keys].data]
        if values.size:
            self.views.append(values.reshape(-1).view(np.uint8).data)

    def problem(self) -> str:
        if len(self.rows) == SLOTS:
            return ""
        first = outside(self.keys, self.rows.start, self.rows.stop)
        return "" if first < 0 else f"key {self.keys[first]} is not in the hash slots {self.rows}"


class SparseShard:
    """The rows of the hash slots `held`, each with its state, in the order of their creation.

    records:  flat; a row and its state are `stride` elements
    keys:     of the records
    updates:  pushes applied so far: the step of a schedule
    learning: another copy is still sending its rows, and what has not come yet is not changed
    """

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        self.spec = spec
        self.held = held
        self.method = row_method_of(spec)
        self.dtype = np.dtype(spec.dtype)
        self.updates = 0
        self.learning = False
        self._state = self.method.state(spec.width).astype(self.dtype)
        self.stride = spec.width + len(self._state)
        self._index: KeyIndex | BoundedIndex = KeyIndex()
        self._most = rows_held(spec, held) if spec.max_rows else NO_BOUND
        if spec.max_rows:
            self._index = BoundedIndex(self._most, spec.evict)
        self._records = Growing(self.dtype, self.stride)
        self._staging = Staging()
        self._fresh: tuple[StagedKeys, np.ndarray] | None = None  # read with the latest change
        self._load_loops()

    def _load_loops(self) -> None:
        """Have the loops compiled, or fetched from disk: no request is to wait for that."""
        none, rows = np.empty(0, np.uint64), np.empty((0, self.spec.width), self.dtype)
        self.method.apply(self.records, none, rows, self.stride, 0, None)
        self.method.read(self.records, none, rows, self.stride)

    def __len__(self) -> int:
        """The rows that there are."""
        return len(self._index)

    @property
    def records(self) -> np.ndarray:
        return self._records.array

    @property
    def keys(self) -> np.ndarray:
        return self._index.keys

    @property
    def evicted(self) -> int:
        """Rows that have made room for others."""
        return self._index.evicted

    # ------------------------------------------------------------------ arrival

    def stage(self, rows: KeyRange, keys: int) -> StagedKeys:
        """Room for a push of `keys` keys in the slots `rows`."""
        start = -(-8 * keys // ALIGN) * ALIGN
        size = keys * self.spec.row_bytes
        memory = self._staging.take(start + size)
        values = memory[start : start + size].view(self.dtype).reshape(keys, self.spec.width)
        return StagedKeys(rows, memory, keys, values)

    def stage_keys(self, rows: KeyRange, keys: int) -> StagedKeys:
        """Room for the key list of a pull."""
        none = np.empty((0, self.spec.width), self.dtype)
        return StagedKeys(rows, self._staging.take(8 * keys), keys, none)

    def release(self, staged: StagedKeys) -> None:
        """Take staging memory back. Nobody may hold its views any more."""
        if not staged.kept and not staged.retained and staged.memory is not None:
            self._staging.give(staged.memory)
            staged.memory = None  # not twice: two requests would have it

    # ------------------------------------------------------------------ updates

    def apply(self, staged: StagedKeys, lr: float | None) -> None:
        """Hand a push to the row method at once. What is kept is read while it is in the cache."""
        out = None
        if staged.kept and self.method.at_once and not self.spec.max_rows:
            out = np.empty((len(staged.keys), self.spec.width), self.dtype)
        try:
            self._update(staged.keys, staged.values, lr, out)
        finally:
            self.release(staged)
        if out is not None:
            self._fresh = staged, out

    def write(self, staged: StagedKeys) -> None:
        """Set rows to the pushed values; their state stays."""
        self._fresh = None
        keys, values = self._known(staged.keys, staged.values)
        for some in self._slices(len(keys)):
            places = self._places(keys[some])
            scatter(self.records, places, values[some], U(self.stride))
        self.release(staged)

    def merge(
        self, contributions: Sequence[tuple[float, float | None, StagedKeys]]
    ) -> list[Merged]:
        """Apply a round's pushes as one update, merged in the order given (by rank).

        `mean`: u = sum_i w_i u_i / sum_i w_i, where what a push does not carry counts as zero;
        `sum`: the plain sum. Rows that nobody carries are not touched.

        Returns what was applied.
        """
        if not contributions:
            return []
        try:
            return [self._merge(contributions)]
        finally:
            for _, _, staged in contributions:
                self.release(staged)

    def settle(self, updates: Sequence[tuple[float | None, StagedKeys]]) -> None:
        """Apply what another copy has merged."""
        for lr, staged in updates:
            self.apply(staged, lr)

    def _merge(self, contributions: Sequence[tuple[float, float | None, StagedKeys]]) -> Merged:
        keys, numbers = distinct(np.concatenate([each.keys for _, _, each in contributions]))
        merged = np.zeros((len(keys), self.spec.width), self.dtype)
        factors = self.spec.factors([weight for weight, _, _ in contributions])
        at = 0
        for factor, (_, _, staged) in zip(factors, contributions, strict=True):
            mine = numbers[at : at + len(staged.keys)]
            self.method.merge(merged, mine, staged.values, factor)
            at += len(mine)
        lr = contributions[0][1]
        self._update(keys, merged, lr)
        sent = torch.from_numpy(keys.view(np.int64))
        return Merged(self.held, sent, torch.from_numpy(merged), lr)

    def _update(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        lr: float | None,
        out: np.ndarray | None = None,
    ) -> None:
        """Change the rows of the keys; `out` gets what they are then."""
        self._fresh = None
        keys, values = self._known(keys, values)
        for some in self._slices(len(keys)):
            places = self._places(keys[some])
            self._change(places, values[some], lr, None if out is None else out[some])
        self.updates += 1

    def _known(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those that are here, while others are still to come."""
        if not self.learning:
            return keys, values
        here = self._index.find(keys) != MISSING
        return keys[here], values[here]

    def _change(
        self, places: np.ndarray, values: np.ndarray, lr: float | None, out: np.ndarray | None
    ) -> None:
        """... block by block where they are read as well: a block stays in the cache."""
        together = len(places) if out is None else self.method.at_once
        for start in range(0, len(places), max(together, 1)):
            some = slice(start, start + together)
            records, step = self.records, self.updates
            self.method.apply(records, places[some], values[some], self.stride, step, lr)
            if out is not None:
                self.method.read(records, places[some], out[some], self.stride)

    def _slices(self, count: int) -> list[slice]:
        """What of so many keys has places together: a bounded table's must not evict each other.

        As long as they are read and written within one slice, places hold.
        """
        most = self._index.at_once
        return [slice(start, start + most) for start in range(0, max(count, 1), most)]

    # ------------------------------------------------------------------ reads

    def read_keys(self, staged: StagedKeys) -> memoryview:
        """A copy of the rows of `staged.keys`; those that are not there yet are created."""
        if self._fresh is not None and self._fresh[0] is staged:
            out = self._fresh[1]
            self._fresh = None
        else:
            out = np.empty((len(staged.keys), self.spec.width), self.dtype)
            for some in self._slices(len(staged.keys)):
                places = self._places(staged.keys[some])
                self.method.read(self.records, places, out[some], self.stride)
        staged.kept = False
        self.release(staged)
        view: memoryview = out.reshape(-1).view(np.uint8).data
        return view

    def keep(self, clients: Collection[int]) -> None:
        """Only these workers are left. Rows are nobody's."""

    # ------------------------------------------------------------------ other copies

    def split(self, ranges: Sequence[KeyRange]) -> list[SparseShard]:
        """Shards of some of its slots, in its place."""
        parts = [SparseShard(self.spec, rows) for rows in ranges]
        for part in parts:
            part.restore(self.held, self.state(), same=True)
        return parts

    def part_of(self, staged: StagedKeys) -> StagedKeys:
        """What of a push for a shard of which this one is a piece is for this one."""
        mine = within(staged.keys, self.held.start, self.held.stop)
        part = self.stage(staged.rows & self.held, int(mine.sum()))
        part.keys[:], part.values[:] = staged.keys[mine], staged.values[mine]
        return part

    def snapshot(self, at: int, nbytes: int) -> Snapshot:
        """A copy of the records from place `at` on, of about so many bytes."""
        size = 8 + self.stride * self.dtype.itemsize
        stop = min(len(self), at + max(1, nbytes // size))
        keys = torch.from_numpy(self.keys[at:stop].view(np.int64))
        records = torch.from_numpy(self.records[at * self.stride : stop * self.stride])
        views = copied([torch.tensor([self.updates]), keys, records])
        return Snapshot(self.held, stop - at, views, stop, stop == len(self))

    def stage_snapshot(self, rows: KeyRange, keys: int) -> StagedSnapshot:
        """Room for such a copy of so many keys."""
        dtype = torch.from_numpy(np.empty(0, self.dtype)).dtype
        one, all_ = (1,), (keys, self.stride)
        return StagedSnapshot(rows, [(torch.int64, one), (torch.int64, (keys,)), (dtype, all_)])

    def install(self, staged: StagedSnapshot) -> None:
        """What another copy has sent: these records are as they were there."""
        updates, sent, records = (each.numpy() for each in staged.tensors)
        keys = sent.view(np.uint64)
        self._records.reserve(len(self) + len(keys))
        places, _ = self._index.find_or_add(keys, np.empty(len(keys), np.uint64))
        scatter(self.records, places, records, U(self.stride))
        self.updates = int(updates[0])

    # ------------------------------------------------------------------ disk

    def state(self, copied: bool = False) -> dict[str, torch.Tensor]:
        """What is written of it: `keys` (int64 bits), `records` (n, stride), `updates`."""
        count = len(self)
        return {
            "keys": torch.from_numpy(self.keys[:count].view(np.int64).copy()),
            "records": torch.from_numpy(
                self.records[: count * self.stride].reshape(count, self.stride).copy()
            ),
            "updates": torch.tensor([self.updates]),
        }

    def restore(self, held: KeyRange, state: dict[str, torch.Tensor], same: bool) -> None:
        """Take over the rows of another shard that belong here, and where it had the `same` access
        method their state."""
        del held
        keys, records = state["keys"].numpy().view(np.uint64), state["records"].numpy()
        mine = within(keys, self.held.start, self.held.stop)
        keys, records = keys[mine], records[mine]
        width = self.stride if same and records.shape[1] == self.stride else self.spec.width
        for some in self._slices(len(keys)):
            places = self._places(keys[some])
            scatter(
                self.records, places, np.ascontiguousarray(records[some, :width]), U(self.stride)
            )
        if same:
            self.updates = max(self.updates, int(state["updates"][0]))

    # ------------------------------------------------------------------ places

    def _places(self, keys: np.ndarray) -> np.ndarray:
        """Where the keys' records are; new ones are made.

        Raises:
            AccessFailed: there is no memory for them; no row has changed
        """
        try:
            return self._places_of_created(keys) if self.method.creates else self._found(keys)
        except MemoryError as error:
            raise AccessFailed(
                f"table {self.spec.name!r}: no memory for more rows than {len(self)} ({error}); "
                "max_rows bounds them"
            ) from None

    def _found(self, keys: np.ndarray) -> np.ndarray:
        created = np.empty(len(keys), np.uint64)
        self._records.reserve(min(len(self) + len(keys), self._most))  # or fails before any change
        places, added = self._index.find_or_add(keys, created)
        if added:
            new = created[:added]
            self._write_new(self.records, places[new], keys[new])
        return places

    def _places_of_created(self, keys: np.ndarray) -> np.ndarray:
        """... of a method that may raise: new rows are made before they have places."""
        missing = np.flatnonzero(self._index.find(keys) == MISSING)
        fresh = np.empty((len(missing), self.stride), self.dtype)
        self._write_new(fresh.reshape(-1), np.arange(len(missing), dtype=np.uint64), keys[missing])
        self.method.create(fresh, self.spec.width, keys[missing], self.spec.init.seed)
        created = np.empty(len(keys), np.uint64)
        self._records.reserve(min(len(self) + len(keys), self._most))
        places, added = self._index.find_or_add(keys, created)
        new = created[:added].astype(np.int64)
        scatter(self.records, places[new], fresh[np.searchsorted(missing, new)], U(self.stride))
        return places

    def _write_new(self, memory: np.ndarray, places: np.ndarray, keys: np.ndarray) -> None:
        """Records as the table's Init and the method's first state have them."""
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


def rows_held(spec: TableSpec, held: KeyRange) -> int:
    """A shard's share of a table's `max_rows`."""
    return max(1, -(-spec.max_rows * len(held) // SLOTS))
