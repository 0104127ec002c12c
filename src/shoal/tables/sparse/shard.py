"""SparseShard: one server's rows of a sparse table, by 64-bit keys.

A row is created when its key is first pulled or pushed, from the seed and the key alone. A key's
hash slot (`keys.slot_of`) determines its shard, which has a range of slots. A push is staged whole,
its keys are checked, and one kernel applies it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import pack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.errors import AccessFailed, BadEncoding, NotFinite
from shoal.jit import U
from shoal.keys import KeyRange, digest64
from shoal.tables.row_encoding import RowEncoding
from shoal.tables.snapshots import Sample, Snapshot, StagedSnapshot, copied, crc32, refuse
from shoal.tables.sparse.distinct import distinct, outside, within
from shoal.tables.sparse.index import MISSING
from shoal.tables.sparse.records import gather, scatter
from shoal.tables.sparse.rows import SparseRows
from shoal.tables.sparse.staging import Contribution, MergedKeys, StagedKeys, room_for
from shoal.tables.spec import TableSpec
from shoal.tables.staging import ALIGN, Staging
from shoal.tables.touched import Touched


class SparseShard(SparseRows):
    """The rows of the hash slots `held`, each with its state, in the order of their creation.

    Attributes:
        updates: the number of pushes applied, which is the step of a schedule.
        syncing: whether rows are still being received; pushes change only rows that are here.
    """

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        super().__init__(spec, held)
        self.updates = 0
        self._staging = Staging()
        self._touched = Touched()
        self._encoding = RowEncoding(spec) if spec.codec else None
        self._pulled = RowEncoding(spec, pulled=True) if spec.server_codec else None
        self._fresh: tuple[StagedKeys, np.ndarray] | None = None  # rows read with the latest change
        self._load_loops()

    def _load_loops(self) -> None:
        """Compile the loops, or load them from disk, so that no request waits for that."""
        none, rows = np.empty(0, np.uint64), np.empty((0, self.spec.width), self.dtype)
        self.method.apply(self.records, none, rows, self.stride, 0, None)
        self.method.read(self.records, none, rows, self.stride)

    # ------------------------------------------------------------------ arrival

    def stage(self, rows: KeyRange, keys: int) -> StagedKeys:
        """Return staging memory for a push of `keys` keys in the slots `rows`."""
        start = -(-8 * keys // ALIGN) * ALIGN
        size = keys * self.spec.row_bytes
        memory = self._staging.take(start + size)
        values = memory[start : start + size].view(self.dtype).reshape(keys, self.spec.width)
        return StagedKeys(rows, memory, keys, values)

    def stage_encoded_keys(self, rows: KeyRange, keys: int, row_bytes: int) -> StagedKeys:
        """Return staging memory for a push of `keys` keys whose rows come encoded."""
        staged = self.stage(rows, keys)
        nbytes = keys * row_bytes
        staged.comes_encoded(self._staging.take(nbytes), nbytes)
        return staged

    def decode(self, staged: StagedKeys) -> None:
        """Decode the rows of a push.

        Raises:
            BadEncoding: what has come is no encoding of rows.
        """
        assert staged.encoded is not None
        if self._encoding is None:
            raise BadEncoding(f"table {self.spec.name!r} has no codec")
        self._encoding.decode(staged.encoded, staged.values)
        self._staging.give(staged.is_decoded())

    def stage_told(self, rows: KeyRange, keys: int) -> StagedKeys:
        """Return staging memory for a push that the head of the chain has applied."""
        return self.stage(rows, keys)

    def stage_keys(self, rows: KeyRange, keys: int) -> StagedKeys:
        """Return staging memory for the keys of a pull."""
        none = np.empty((0, self.spec.width), self.dtype)
        return StagedKeys(rows, self._staging.take(8 * keys), keys, none)

    def release(self, staged: StagedKeys) -> None:
        """Reuse staging memory, whose views must not be in use any more."""
        if self.lent:
            self._released.append(staged)
        elif not staged.kept and not staged.retained and staged.memory is not None:
            if staged.encoded is not None:
                self._staging.give(staged.is_decoded())
            self._staging.give(staged.memory)
            staged.memory = None  # not twice: two requests would share it

    # ------------------------------------------------------------------ updates

    def apply(self, staged: StagedKeys, lr: float | None) -> None:
        """Apply a push; if a pull reads its keys, read their rows while they are in the cache."""
        self._fresh = out = None
        if staged.kept and self.method.at_once and not self.spec.max_rows:
            out = room_for(self.spec, len(staged.keys), self.dtype)
        try:
            for some, places in self._placed(staged):
                self._change(places, staged.values[some], lr, None if out is None else out[some])
            self.updates += 1
        finally:
            self.release(staged)
        if out is not None:
            self._fresh = staged, out

    def write(self, staged: StagedKeys) -> None:
        """Assign rows; their state stays."""
        self._fresh = None
        for some, places in self._placed(staged):
            self._touched.mark(places, len(self))
            scatter(self.records, places, staged.values[some], U(self.stride))
        self.release(staged)

    def merge(self, contributions: Sequence[Contribution]) -> list[MergedKeys]:
        """Apply a round's pushes as one update, merged in the order given (by rank).

        "mean": u = sum_i w_i u_i / sum_i w_i, where a push without the key counts as zero; "sum":
        the plain sum. Rows without a key in any push are not changed.

        Returns the applied updates.
        """
        if not contributions:
            return []
        try:
            return [self._merge(contributions)]
        finally:
            for _, _, staged in contributions:
                self.release(staged)

    def apply_round(self, updates: Sequence[tuple[float | None, StagedKeys]]) -> None:
        """Apply a round that another replica has merged."""
        for lr, staged in updates:
            self.apply(staged, lr)

    def _merge(self, contributions: Sequence[Contribution]) -> MergedKeys:
        keys, numbers = distinct(np.concatenate([each.keys for _, _, each in contributions]))
        merged = np.zeros((len(keys), self.spec.width), self.dtype)
        factors = self.spec.factors([weight for weight, _, _ in contributions])
        at = 0
        for factor, (_, _, staged) in zip(factors, contributions, strict=True):
            mine = numbers[at : at + len(staged.keys)]
            self.method.merge(merged, mine, staged.values, factor)
            at += len(mine)
        update = StagedKeys(self.held, keys.view(np.uint8), len(keys), merged)
        update.retained = True  # its memory is not from the pool
        lr = contributions[0][1]
        self.apply(update, lr)
        return MergedKeys(self.held, lr, tuple(update.views))

    def _change(
        self, places: np.ndarray, values: np.ndarray, lr: float | None, out: np.ndarray | None
    ) -> None:
        """Update records; block by block if they are read as well, so that a block stays cached."""
        self._touched.mark(places, len(self))
        together = len(places) if out is None else self.method.at_once
        for start in range(0, len(places), max(together, 1)):
            some = slice(start, start + together)
            records, step = self.records, self.updates
            self.method.apply(records, places[some], values[some], self.stride, step, lr)
            if out is not None:
                self.method.read(records, places[some], out[some], self.stride)

    # ------------------------------------------------------------------ reads

    def read_keys(self, staged: StagedKeys) -> memoryview:
        """Return a copy of the rows of `staged.keys`."""
        if self._fresh is not None and self._fresh[0] is staged:
            out = self._fresh[1]
            self._fresh = None
        else:
            out = room_for(self.spec, len(staged.keys), self.dtype)
            read = self._read_present if staged.only_read else self._read
            read(staged.keys, out)
        staged.kept = False
        self.release(staged)
        view: memoryview = out.reshape(-1).view(np.uint8).data
        return view

    def encode_keys(self, rows: memoryview, row_bytes: int) -> memoryview:
        """Return rows that `read_keys` has returned, encoded.

        Raises:
            AccessFailed: a value cannot be encoded, or rows do not become so many bytes.
        """
        name = self.spec.name
        if self._pulled is None or self._pulled.nbytes(1) != row_bytes:
            raise AccessFailed(f"table {name!r} does not have encoded rows of {row_bytes} bytes")
        values = np.frombuffer(rows, self.dtype).reshape(-1, self.spec.width)
        try:
            return self._pulled.encode(values, digest64(pack("<q", self.updates))).data
        except NotFinite as error:
            raise AccessFailed(f"table {name!r}: {error}") from None

    def _read(self, keys: np.ndarray, out: np.ndarray) -> None:
        places = self._places(keys)  # which may move the records
        self.method.read(self.records, places, out, self.stride)

    # ------------------------------------------------------------------ replicas

    def sync(self, on: bool) -> None:
        """Record whether rows are still coming from another replica.

        A shard that was opened with the rows of a checkpoint drops them first: they are older than
        the rows that come, and at other places.
        """
        if on and not self.syncing and len(self):
            self._index = self._new_index()
        super().sync(on)

    def split(self, ranges: Sequence[KeyRange]) -> list[SparseShard]:
        """Return the shards of these ranges of slots, with copies of the rows."""
        parts = [type(self)(self.spec, rows) for rows in ranges]
        for part in parts:
            part.restore(self.held, self.state(), same=True)
        return parts

    def part_of(self, staged: StagedKeys, rows: KeyRange) -> StagedKeys:
        """Return a copy of the part of a push for some of its hash slots, staged here."""
        mine = within(staged.keys, rows.start, rows.stop)
        part = self.stage(rows, int(mine.sum()))
        part.keys[:], part.values[:] = staged.keys[mine], staged.values[mine]
        return part

    def snapshot(self, at: int, nbytes: int) -> Snapshot:
        """Return a copy of the records from place `at` on, of about `nbytes` bytes."""
        size = 8 + self.stride * self.dtype.itemsize
        stop = min(len(self), at + max(1, nbytes // size))
        views = copied(self._tensors(at, stop))
        return Snapshot(self.held, stop - at, views, stop, stop == len(self))

    def _tensors(self, at: int, stop: int) -> list[Tensor]:
        """Return the tensors of a snapshot of the rows at these places."""
        keys = torch.from_numpy(self.keys[at:stop].view(np.int64))
        records = torch.from_numpy(self.records[at * self.stride : stop * self.stride])
        return [torch.tensor([self.updates]), keys, records]

    def sample(self, at: int, nbytes: int) -> Sample:
        """Return the keys from place `at` on, whose records have about `nbytes` bytes."""
        stop = min(len(self), at + max(1, nbytes // (self.stride * self.dtype.itemsize)))
        after = 0 if stop == len(self) else stop
        return Sample(self.held, self.keys[at:stop].copy(), after)

    def digest(self, rows: KeyRange, keys: np.ndarray) -> int:
        """Return a digest of the records of these keys; absent keys have their initial records."""
        places = self._index.find(keys)
        here = places != MISSING
        records = np.empty((len(keys), self.stride), self.dtype)
        records[~here] = self._new_records(keys[~here])
        found = np.empty((int(here.sum()), self.stride), self.dtype)
        gather(self.records, places[here], found, U(self.stride))
        records[here] = found
        return crc32([torch.tensor([self.updates]), torch.from_numpy(records)])

    def stage_snapshot(self, rows: KeyRange, keys: int) -> StagedSnapshot:
        """Return staging memory for a snapshot of `keys` keys."""
        return StagedSnapshot(rows, self._shapes(keys))

    def _shapes(self, keys: int) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtypes and shapes of `_tensors`."""
        dtype = torch.from_numpy(np.empty(0, self.dtype)).dtype
        return [(torch.int64, (1,)), (torch.int64, (keys,)), (dtype, (keys, self.stride))]

    def install(self, staged: StagedSnapshot) -> None:
        """Set records to another replica's snapshot; an invalid one changes nothing."""
        updates, sent, records = (each.numpy() for each in staged.tensors[:3])
        keys = sent.view(np.uint64)
        refuse(self.spec.name, updates[0] < 0, "a count below 0")
        other = outside(keys, staged.rows.start, staged.rows.stop) >= 0
        refuse(self.spec.name, other, "keys of other hash slots")
        self._records.reserve(len(self) + len(keys))
        places = self._places_to_learn(keys)
        self._touched.mark(places, len(self))
        scatter(self.records, places, records, U(self.stride))
        self.updates = int(updates[0])

    def _places_to_learn(self, keys: np.ndarray) -> np.ndarray:
        return self._index.find_or_add(keys, np.empty(len(keys), np.uint64))[0]

    # ------------------------------------------------------------------ scans

    def scan(self, rows: KeyRange) -> memoryview:
        """Return all rows of these slots: their number (int64), their keys, and their values."""
        count = len(self)
        places = np.flatnonzero(within(self.keys[:count], rows.start, rows.stop))
        out = np.empty(8 + len(places) * (8 + self.spec.row_bytes), np.uint8)
        out[:8].view(np.int64)[0] = len(places)
        values = out[8 + 8 * len(places) :].view(self.dtype).reshape(-1, self.spec.width)
        out[8 : 8 + 8 * len(places)].view(np.uint64)[:] = self.keys[places]
        records = self.records[: count * self.stride].reshape(count, self.stride)
        values[:] = records[places, : self.spec.width]
        return out.data

    # ------------------------------------------------------------------ disk

    def state(self, copied: bool = False) -> dict[str, torch.Tensor]:
        """Return the tensors of a checkpoint: `keys` as int64, `records` (n, stride), `updates`.

        copied: whether to begin to mark changes, for `changes`
        """
        if copied:
            self._touched.begin(len(self))
        return {**self._rows_at(slice(len(self))), **self._counts()}

    def changes(self) -> dict[str, torch.Tensor] | None:
        """Return the rows that have changed since the last checkpoint, with their `places`.

        Return None if the whole state has to be written.
        """
        places = self._touched.since(len(self))
        if not self._touched.begun or 2 * len(places) > len(self):
            return None
        self._touched.begin(len(self))
        return {"places": torch.from_numpy(places), **self._rows_at(places), **self._counts()}

    def _rows_at(self, places: slice | np.ndarray) -> dict[str, torch.Tensor]:
        count = len(self)
        rows = self.records[: count * self.stride].reshape(count, self.stride)
        found = {"keys": self.keys[:count].view(np.int64)[places], "records": rows[places]}
        return {name: torch.from_numpy(each.copy()) for name, each in found.items()}

    def _counts(self) -> dict[str, torch.Tensor]:
        """Return the tensors of a checkpoint other than rows."""
        return {"updates": torch.tensor([self.updates])}

    def restore(self, held: KeyRange, state: dict[str, torch.Tensor], same: bool) -> None:
        """Restore the rows of a checkpointed shard that belong here.

        With the `same` access method, restore their state as well. The number of updates is the
        largest of those of all restored shards.
        """
        keys, records = state["keys"].numpy().view(np.uint64), state["records"].numpy()
        mine = within(keys, self.held.start, self.held.stop)
        keys, records = keys[mine], records[mine]
        width = self.stride if same and records.shape[1] == self.stride else self.spec.width
        self._put(keys, np.ascontiguousarray(records[:, :width]))
        if same and len(held & self.held):
            self.updates = max(self.updates, int(state["updates"][0]))

    def _put(self, keys: np.ndarray, records: np.ndarray) -> None:
        places = self._places(keys)
        self._touched.mark(places, len(self))
        scatter(self.records, places, records, U(self.stride))

    # ------------------------------------------------------------------ places

    def _placed(self, staged: StagedKeys) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the parts of a push to apply together: indices of keys, and their places.

        While the shard is syncing, these are only the keys that are here.
        """
        if self.syncing:
            places = self._index.find(staged.keys)
            here = places != MISSING
            yield here, places[here]
        else:
            yield slice(None), self._places(staged.keys)
