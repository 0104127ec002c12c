"""DenseShard: one server's rows of a dense table, contiguous, cut into fragments.

A push is staged whole (`stage`) and checked before it changes rows, one fragment at a time: a
sender that dies half-way changes nothing. Streamed pushes are the exception (`stream`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.errors import AccessFailed
from shoal.keys import KeyRange, cut_at_edges
from shoal.tables.access import AccessMethod
from shoal.tables.dense.merge import Contribution, merge_some, merge_whole, rows_of
from shoal.tables.initial import fill
from shoal.tables.methods import method_of
from shoal.tables.sizes import dense_bytes
from shoal.tables.snapshots import Sample, Snapshot, StagedSnapshot, copied, crc32, refuse
from shoal.tables.spec import ITEM_SIZES, TableSpec
from shoal.tables.staging import (
    ALIGN,
    POOLED_PER_SIZE,
    Merged,
    Shard,
    StagedRows,
    Staging,
    StreamedRows,
    aligned,
    in_large_pages,
    side_by_side,
)

DTYPES = {name: getattr(torch, name) for name in ITEM_SIZES}
_RANGES_KEPT = 64


class DenseShard(Shard):
    """The rows `held` of a table, with their optimizer state.

    Attributes:
        rows: (len(held), width) of the table's dtype; views of the shard `of`, if it is split.
        slots: by name, optimizer state shaped as `rows`.
        updates: for each fragment, the number of updates applied: the optimizer's step.
        versions: for each fragment, the number of updates and assignments.
    """

    def __init__(self, spec: TableSpec, held: KeyRange, of: DenseShard | None = None) -> None:
        self.spec = spec
        self.held = held
        self.access: AccessMethod = method_of(spec)
        self.dtype: torch.dtype = DTYPES[spec.dtype]
        self._row_bytes = spec.row_bytes
        self.fragments = [part for part in spec.fragments() if held.covers(part)]
        if of is None:
            shape = (len(held), spec.width)
            memory = in_large_pages(len(held) * self._row_bytes)
            self.rows = torch.from_numpy(memory).view(self.dtype).view(shape)
            fill(self.rows, spec.init, held)
            self.slots = {
                slot: torch.full(shape, self.access.initial(slot), dtype=self.dtype)
                for slot in self.access.slots()
            }
            self.updates = [0] * len(self.fragments)
            self.versions = [0] * len(self.fragments)
        else:
            self.rows, self.slots = of._piece(held)
            first = of.fragments.index(self.fragments[0])
            self.updates = of.updates[first : first + len(self.fragments)]
            self.versions = of.versions[first : first + len(self.fragments)]
        self._bytes = self.rows.view(-1).view(torch.uint8).numpy().data
        self._staging = Staging()
        self._ready: dict[KeyRange, list[StagedRows]] = {}
        self._ready_bytes = 0
        self._all = list(enumerate(self.fragments))
        self._streams: dict[KeyRange, list[StreamedRows]] = {}

    def __len__(self) -> int:
        return len(self.held)

    @property
    def nbytes(self) -> int:
        return dense_bytes(self.spec, self.held, len(self.slots))

    # ------------------------------------------------------------------ replicas

    def split(self, ranges: Sequence[KeyRange]) -> list[DenseShard]:
        """Split into shards of these rows, which are whole fragments."""
        return [DenseShard(self.spec, rows, self) for rows in ranges]

    def part_of(self, staged: StagedRows, rows: KeyRange) -> StagedRows:
        """The part of a push for some of its rows, staged here."""
        if staged.keys is None:
            part = self.stage(rows, -1)
            part.values.copy_(rows_of(staged, rows))
        else:
            edges = torch.tensor([rows.start, rows.stop])
            first, last = torch.searchsorted(staged.keys, edges).tolist()
            part = self.stage(rows, last - first)
            assert part.keys is not None
            part.keys.copy_(staged.keys[first:last])
            part.values.copy_(staged.values[first:last])
        return part

    def snapshot(self, at: int, nbytes: int) -> Snapshot:
        """A copy of the fragments from number `at` on with their state, of about `nbytes` bytes."""
        size = self._row_bytes * (1 + len(self.slots))
        stop = at + 1
        while stop < len(self.fragments):
            if (self.fragments[stop].stop - self.fragments[at].start) * size > nbytes:
                break
            stop += 1
        some = KeyRange(self.fragments[at].start, self.fragments[stop - 1].stop)
        counted = torch.tensor([self.updates[at:stop], self.versions[at:stop]])
        rows, slots = self._piece(some)
        views = copied([counted, rows, *slots.values()])
        return Snapshot(some, -1, views, stop, stop == len(self.fragments))

    def sample(self, at: int, nbytes: int) -> Sample:
        """Fragment number `at`, of any size."""
        return Sample(self.fragments[at], None, (at + 1) % len(self.fragments))

    def digest(self, rows: KeyRange, keys: None) -> int:
        """A digest of these rows and their state."""
        updates = torch.tensor([self.updates[index] for index, _ in self._touched(rows)])
        values, slots = self._piece(rows)
        return crc32([updates, values, *slots.values()])

    def stage_snapshot(self, rows: KeyRange, keys: int) -> StagedSnapshot:
        """Staging memory for a snapshot of these rows."""
        shape = (len(rows), self.spec.width)
        counted = (torch.int64, (2, len(self._touched(rows))))
        return StagedSnapshot(rows, [counted, *[(self.dtype, shape)] * (1 + len(self.slots))])

    def install(self, staged: StagedSnapshot) -> None:
        """Set fragments to another replica's snapshot.

        Raises:
            AccessFailed: it is none; nothing is changed.
        """
        counted, sent, *states = staged.tensors
        refuse(self.spec.name, bool((counted < 0).any()), "a count below 0")
        rows, slots = self._piece(staged.rows)
        rows.copy_(sent)
        for slot, state in zip(slots.values(), states, strict=True):
            slot.copy_(state)
        for (index, _), updates, versions in zip(
            self._touched(staged.rows), *counted.tolist(), strict=True
        ):
            self.updates[index], self.versions[index] = updates, versions

    # ------------------------------------------------------------------ disk

    def state(self, copied: bool = False) -> dict[str, Tensor]:
        """The tensors of a checkpoint: `rows`, `slot.NAME`, and `updates` of each fragment."""
        slots = {f"slot.{name}": slot for name, slot in self.slots.items()}
        live = {"rows": self.rows, **slots}
        here = {name: each.clone() for name, each in live.items()} if copied else live
        return {**here, "updates": torch.tensor(self.updates)}

    def restore(self, held: KeyRange, state: dict[str, Tensor], same: bool) -> None:
        """Restore the rows of a checkpointed shard that belong here, and with the `same` access
        method their slots, and each fragment's number of updates.

        Raises:
            ValueError: it has other fragments.
        """
        start, stop = max(held.start, self.held.start), min(held.stop, self.held.stop)
        if start >= stop:
            return
        here = slice(start - self.held.start, stop - self.held.start)
        there = slice(start - held.start, stop - held.start)
        self.rows[here] = state["rows"][there]
        for name, slot in self.slots.items():
            if same and f"slot.{name}" in state:
                slot[here] = state[f"slot.{name}"][there]
        if same:
            size, updates = self.spec.fragment_rows, state["updates"].tolist()
            if held.start % size or len(updates) != -(-len(held) // size):
                raise ValueError(f"{len(updates)} update counts, not one for each {size} rows")
            for index, part in self._touched(KeyRange(start, stop)):
                self.updates[index] = updates[(part.start - held.start) // size]

    # ------------------------------------------------------------------ arrival

    def stage(self, rows: KeyRange, keys: int) -> StagedRows:
        """Staging memory for a push of `rows`, or of `keys` keys among them."""
        ready = self._ready.get(rows) if keys < 0 else None
        if ready:
            self._ready_bytes -= ready[-1].nbytes
            return ready.pop()
        count = len(rows) if keys < 0 else keys
        return self._stage(rows, keys, count * self._row_bytes)

    stage_told = stage

    def stage_keys(self, rows: KeyRange, keys: int) -> StagedRows:
        """Staging memory for the keys of a pull."""
        return self._stage(rows, keys, 0)

    def stream(self, rows: KeyRange) -> StreamedRows:
        """Staging memory for a push of `rows` that is applied fragment by fragment."""
        ready = self._streams.get(rows)
        if ready:
            return ready.pop()
        touched = self._touched(rows)
        most = max(len(part) for _, part in touched)
        memory = aligned(most * self._row_bytes)
        values = torch.from_numpy(memory).view(self.dtype).view(most, self.spec.width)
        views, pieces = [], []
        for index, part in touched:
            views.append(memory[: len(part) * self._row_bytes].data)
            update = self.access.prepared(*self._piece(part), values[: len(part)])
            pieces.append((index, part, update))
        return StreamedRows(rows, views, pieces)

    def rows_of(self, streamed: StreamedRows, number: int) -> KeyRange:
        """The rows of view `number`."""
        return streamed.pieces[number][1]

    def apply_piece(self, streamed: StreamedRows, number: int, lr: float | None) -> None:
        """Apply the fragment in view `number`."""
        index, _, update = streamed.pieces[number]
        update(self.updates[index], lr)
        self.updates[index] += 1
        self.versions[index] += 1

    def end_stream(self, streamed: StreamedRows) -> None:
        """Reuse its memory."""
        if len(self._streams) > _RANGES_KEPT:
            self._streams.clear()
        ready = self._streams.setdefault(streamed.rows, [])
        if len(ready) < POOLED_PER_SIZE:
            ready.append(streamed)

    def _stage(self, rows: KeyRange, keys: int, values_bytes: int) -> StagedRows:
        keys_bytes = 0 if keys < 0 else -(-8 * keys // ALIGN) * ALIGN
        memory = self._staging.take(keys_bytes + values_bytes)
        return StagedRows(rows, memory, keys, values_bytes, self.dtype, self.spec.width)

    def release(self, staged: StagedRows) -> None:
        """Reuse staging memory, whose views must not be in use any more."""
        if self.lent:
            self._released.append(staged)
            return
        if staged.retained:
            return
        if staged.keys is not None:
            if not staged.kept:
                self._staging.give(staged._memory)
            return
        # Most pushes have the same rows as the last one: its memory is kept as it is. All is
        # dropped once it exceeds what a few pushes of the whole shard need.
        limit = POOLED_PER_SIZE * self.rows.nbytes
        if self._ready_bytes + staged.nbytes > limit or len(self._ready) > _RANGES_KEPT:
            self._ready.clear()
            self._ready_bytes = 0
        self._ready.setdefault(staged.rows, []).append(staged)
        self._ready_bytes += staged.nbytes

    # ------------------------------------------------------------------ updates

    def apply(self, staged: StagedRows, lr: float | None) -> None:
        """Apply a push with the access method, fragment by fragment."""
        if staged.keys is None:
            if staged.prepared is None:
                staged.prepared = [
                    (index, self.access.prepared(*self._piece(part), rows_of(staged, part)))
                    for index, part in self._touched(staged.rows)
                ]
            for index, update in staged.prepared:
                update(self.updates[index], lr)
                self.updates[index] += 1
                self.versions[index] += 1
        else:
            for index, part in self._touched(staged.rows):
                self._update_some(index, part, staged.keys, staged.values, lr)
                self.updates[index] += 1
                self.versions[index] += 1
        self.release(staged)

    def write(self, staged: StagedRows) -> None:
        """Assign rows; the optimizer state stays."""
        if staged.keys is not None:
            self.rows[staged.keys - self.held.start] = staged.values
        else:
            self.rows[self._slice(staged.rows)] = staged.values
        for index, _ in self._touched(staged.rows):
            self.versions[index] += 1
        self.release(staged)

    def merge(self, contributions: Sequence[Contribution]) -> list[Merged]:
        """Apply a round's pushes as one update, merged in the order given (by rank).

        "mean": u = sum_i w_i u_i / sum_i w_i, over the pushes that cover the row; "sum": the plain
        sum. Rows that a push covers without a key count as zeros; rows without a key in any push
        are not changed.

        Returns the applied updates, in the memory of pushes that are retained.
        """
        ranges = [staged.rows for _, _, staged in contributions]
        applied: list[Merged] = []
        for index, part in enumerate(self.fragments):
            pieces = []
            for piece in cut_at_edges(part, ranges):
                named = [c for c in contributions if c[2].rows.covers(piece)]
                if not named:
                    continue
                if all(staged.keys is None for _, _, staged in named):
                    pieces.append(merge_whole(self.spec, piece, named))
                else:
                    pieces.append(merge_some(self.spec, piece, named))
                self._apply_merged(index, piece, pieces[-1])
            self.updates[index] += bool(pieces)
            self.versions[index] += bool(pieces)
            applied += pieces
        for _, _, staged in contributions:
            self.release(staged)
        return side_by_side(applied)

    def apply_round(self, updates: Sequence[tuple[float | None, StagedRows]]) -> None:
        """Apply a round that another replica has merged, as one update of each fragment."""
        touched: dict[int, None] = {}
        for lr, staged in updates:
            merged = Merged(staged.rows, staged.keys, staged.values, lr)
            for index, part in self._touched(staged.rows):
                self._apply_merged(index, part, merged)
                touched[index] = None
        for index in touched:
            self.updates[index] += 1
            self.versions[index] += 1
        for _, staged in updates:
            self.release(staged)

    def _apply_merged(self, index: int, part: KeyRange, update: Merged) -> None:
        keys, values, lr = update.keys, update.values, update.lr
        if keys is None:
            rows = values[part.start - update.rows.start : part.stop - update.rows.start]
            self.access.apply(*self._piece(part), rows, self.updates[index], lr)
        else:
            self._update_some(index, part, keys, values, lr)

    def _piece(self, part: KeyRange) -> tuple[Tensor, dict[str, Tensor]]:
        here = self._slice(part)
        return self.rows[here], {name: slot[here] for name, slot in self.slots.items()}

    def _update_some(
        self, index: int, part: KeyRange, keys: Tensor, values: Tensor, lr: float | None
    ) -> None:
        """Update the rows of those keys that are in `part` of a fragment."""
        first, last = torch.searchsorted(keys, torch.tensor([part.start, part.stop])).tolist()
        if first == last:
            return
        places = keys[first:last] - self.held.start
        rows = self.rows[places]
        slots = {name: slot[places] for name, slot in self.slots.items()}
        self.access.apply(rows, slots, values[first:last], self.updates[index], lr)
        self.rows[places] = rows
        for name, slot in slots.items():
            self.slots[name][places] = slot

    # ------------------------------------------------------------------ reads

    def read(self, rows: KeyRange) -> memoryview:
        """The live bytes of `rows`, which the next update changes."""
        if rows == self.held:
            return self._bytes
        size = self._row_bytes
        start = rows.start - self.held.start
        return self._bytes[start * size : (start + len(rows)) * size]

    def read_keys(self, staged: StagedRows) -> memoryview:
        """A copy of the rows at `staged.keys`."""
        assert staged.keys is not None
        try:
            rows = self.rows[staged.keys - self.held.start]
        except RuntimeError as error:  # torch's for memory that it does not get
            raise AccessFailed(f"table {self.spec.name!r}: no memory to answer: {error}") from None
        staged.kept = False
        self.release(staged)
        return rows.view(-1).view(torch.uint8).numpy().data

    # ------------------------------------------------------------------ helpers

    def _slice(self, rows: KeyRange) -> slice:
        return slice(rows.start - self.held.start, rows.stop - self.held.start)

    def _touched(self, rows: KeyRange) -> list[tuple[int, KeyRange]]:
        """The fragments that `rows` overlap, each with the overlap."""
        if rows == self.held:
            return self._all
        if not len(rows):
            return []
        size, base = self.spec.fragment_rows, self.held.start
        first = (rows.start - base) // size
        last = -(-(rows.stop - base) // size)
        return [(i, self.fragments[i] & rows) for i in range(first, last)]
