"""DenseShard: one server's rows of a dense table, contiguous, cut into fragments.

A push is staged whole (`stage`) and checked before it changes rows, one fragment at a time: a
sender that dies half-way changes nothing. Streamed pushes are the exception (`stream`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from shoal.errors import AccessFailed
from shoal.keys import KeyRange, cut_at_edges
from shoal.tables.access import Prepared, Slots
from shoal.tables.dense.merge import Contribution, merge_some, merge_whole, rows_of
from shoal.tables.dense.pulled import PulledFragments
from shoal.tables.dense.rows import DenseRows
from shoal.tables.dense.torch_methods import TorchMethod
from shoal.tables.encoding import Encoding
from shoal.tables.spec import TableSpec
from shoal.tables.staging import (
    ALIGN,
    POOLED_PER_SIZE,
    Merged,
    StagedRows,
    Staging,
    StreamedRows,
    aligned,
    side_by_side,
    tensor_in,
)

_RANGES_KEPT = 64
KEPT_BYTES = 32 << 10


class DenseShard(DenseRows):
    """The rows `held` of a table, with their optimizer state: how pushes arrive and change them.

    streams:     whether a push may be applied fragment by fragment, while it comes in
    reads_lent:  whether updates may be in memory that cannot be written to; torch's own code, which
                 computes some access methods, may write to an update
    """

    streams = True

    def __init__(self, spec: TableSpec, held: KeyRange, of: DenseShard | None = None) -> None:
        super().__init__(spec, held, of)
        self.reads_lent = not isinstance(self.access, TorchMethod)
        self._staging = Staging()
        self._ready: dict[KeyRange, list[StagedRows]] = {}
        self._ready_bytes = 0
        self._streams: dict[KeyRange, list[StreamedRows]] = {}
        self._encoding = Encoding(spec)  # refuses codecs that do not exist
        self._pulled = PulledFragments(spec)  # but for differences

    # ------------------------------------------------------------------ replicas

    def split(self, ranges: Sequence[KeyRange]) -> list[DenseShard]:
        """Return the shards of these ranges of whole fragments, which share this shard's memory."""
        return [type(self)(self.spec, rows, self) for rows in ranges]

    def part_of(self, staged: StagedRows, rows: KeyRange) -> StagedRows:
        """Return a copy of the part of a push for some of its rows, staged here."""
        if staged.slots:
            part = self.stage_state(rows)
            start = rows.start - staged.rows.start
            for into, each in zip(part.states(), staged.states(), strict=True):
                into.copy_(each[start : start + len(rows)])
        elif staged.keys is None:
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

    # ------------------------------------------------------------------ arrival

    def stage(self, rows: KeyRange, keys: int) -> StagedRows:
        """Return staging memory for a push of `rows`, or of `keys` keys among them."""
        ready = self._ready.get(rows) if keys < 0 else None
        if ready:
            self._ready_bytes -= ready[-1].nbytes
            return ready.pop()
        count = len(rows) if keys < 0 else keys
        return self._stage(rows, keys, count * self._row_bytes)

    stage_told = stage

    def stage_encoded(self, rows: KeyRange, sizes: Sequence[int]) -> StagedRows:
        """Return staging memory for a push of `rows` that comes encoded, in fragments of `sizes`.

        Raises:
            MemoryError: there is none for the rows or for what they are decoded from.
        """
        staged = self.stage(rows, -1)
        staged.comes_encoded(self._staging.take(sum(sizes)), sizes)
        return staged

    def decode(self, staged: StagedRows) -> None:
        """Decode a push, into the memory of its rows.

        Raises:
            BadEncoding: what has come is no encoding of rows.
        """
        assert staged.encoded is not None
        self._encoding.decode(staged.rows, staged.encoded.data, staged.encoded.sizes, staged.values)
        staged.is_decoded()

    def stage_keys(self, rows: KeyRange, keys: int) -> StagedRows:
        """Return staging memory for the keys of a pull."""
        return self._stage(rows, keys, 0)

    def stage_state(self, rows: KeyRange) -> StagedRows:
        """Return staging memory for the state of these rows, which `write_state` assigns."""
        slots = len(self.slots)
        return self._stage(rows, -1, len(rows) * self._row_bytes * (1 + slots), slots)

    def stream(self, rows: KeyRange) -> StreamedRows:
        """Return staging memory for a push of `rows` that is applied fragment by fragment."""
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
            pieces.append((index, part, self._prepared(index, part, values[: len(part)])))
        return StreamedRows(rows, values, views, pieces)

    def rows_of(self, streamed: StreamedRows, number: int) -> KeyRange:
        """Return the rows of view `number`."""
        return streamed.pieces[number][1]

    def apply_piece(
        self, streamed: StreamedRows, number: int, landed: memoryview, lr: float | None
    ) -> None:
        """Apply fragment `number`, whose values are in its view or in other memory."""
        index, part, update = streamed.pieces[number]
        counts = self.counts
        values = streamed.values[: len(part)]
        if landed is not streamed.views[number]:
            values = tensor_in(landed, self.dtype).view(values.shape)
            if update is not None:
                update = partial(self._run, *self._piece(part), values)
        if update is None or index in counts.apart:
            self._update(index, part, Merged(part, None, values, lr))
            counts.count(index, (part,))
        else:
            update(counts.together[index], lr)
            counts.together[index] += 1
        self.versions[index] += 1

    def end_stream(self, streamed: StreamedRows) -> None:
        """Keep the memory of a streamed push for the next push of the same rows."""
        if len(self._streams) > _RANGES_KEPT:
            self._streams.clear()
        ready = self._streams.setdefault(streamed.rows, [])
        if len(ready) < POOLED_PER_SIZE:
            ready.append(streamed)

    def _stage(self, rows: KeyRange, keys: int, values_bytes: int, slots: int = 0) -> StagedRows:
        keys_bytes = 0 if keys < 0 else -(-8 * keys // ALIGN) * ALIGN
        memory = self._staging.take(keys_bytes + values_bytes)
        return StagedRows(rows, memory, keys, values_bytes, self.dtype, self.spec.width, slots)

    def retain(self, staged: StagedRows) -> None:
        if staged.loan is not None:
            staged.own()
        staged.retained = True

    def release(self, staged: StagedRows) -> None:
        """Reuse staging memory, whose views must not be in use any more."""
        if self.lent:
            self._released.append(staged)
            return
        if staged.retained:
            return
        if staged.encoded is not None:
            self._staging.give(staged.encoded.memory)
            staged.encoded = None
            staged.is_decoded()
        if staged.loan is not None:  # nothing here refers to the sender's memory any more
            staged.loan = None
            return
        if staged.keys is not None or staged.slots:
            if not staged.kept:
                self._staging.give(staged._memory)
            return
        # Most pushes have the same rows as the last one, whose memory is kept as it is. All kept
        # memory is dropped once it exceeds the needs of a few pushes of the whole shard, or of the
        # many small ones that may be under way.
        limit = max(POOLED_PER_SIZE * self.rows.nbytes, KEPT_BYTES)
        if self._ready_bytes + staged.nbytes > limit or len(self._ready) > _RANGES_KEPT:
            self._ready.clear()
            self._ready_bytes = 0
        self._ready.setdefault(staged.rows, []).append(staged)
        self._ready_bytes += staged.nbytes

    # ------------------------------------------------------------------ updates

    def apply(self, staged: StagedRows, lr: float | None) -> None:
        """Apply a push with the access method, fragment by fragment."""
        if staged.keys is None and staged.prepared is None and staged.loan is None:
            staged.prepared = self._pieces(staged)
        touched: Sequence[tuple[int, KeyRange, Prepared | None]] = staged.prepared or [
            (index, part, None) for index, part in self._touched(staged.rows)
        ]
        counts = self.counts
        for index, part, update in touched:
            if update is None or index in counts.apart:
                self._update(index, part, Merged(staged.rows, staged.keys, staged.values, lr))
                counts.count(index, (part,))
            else:
                update(counts.together[index], lr)
                counts.together[index] += 1
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
        self._assigned(staged)
        self.release(staged)

    def merge(self, contributions: Sequence[Contribution]) -> list[Merged]:
        """Apply a round's pushes as one update, merged in the order given (by rank).

        "mean": u = sum_i w_i u_i / sum_i w_i, over the pushes that cover the row; "sum": the plain
        sum. Rows that a push covers without a key count as zeros; rows without a key in any push
        are not changed.

        Returns the applied updates. They may use the memory of the pushes, which has to be
        retained.
        """
        first = contributions[0][2].rows if contributions else None
        alike = all(each.keys is None and each.rows == first for _, _, each in contributions)
        applied = (self._merge_alike if alike else self._merge_pieces)(contributions)
        if self.references is not None:
            self._advance({index for each in applied for index, _ in self._touched(each.rows)})
        borrowed = any(staged.loan is not None for _, _, staged in contributions)
        for _, _, staged in contributions:
            self.release(staged)
        return applied if borrowed else side_by_side(applied)  # if so no other server gets them

    def _merge_alike(self, contributions: Sequence[Contribution]) -> list[Merged]:
        """Merge and apply pushes of the same whole rows, with the update prepared for the first."""
        if not contributions:
            return []
        applied, counts = [], self.counts
        into = contributions[0][2]  # `merge_whole` merges in its memory, if it is this server's
        if into.prepared is None and into.loan is None:
            into.prepared = self._pieces(into)
        pieces: Sequence[tuple[int, KeyRange, Prepared | None]] = into.prepared or [
            (index, part, None) for index, part in self._touched(into.rows)
        ]
        for index, part, update in pieces:
            merged = merge_whole(self.spec, part, contributions)
            if update is None or index in counts.apart:
                self._update(index, part, merged)
                counts.count(index, (part,))
            else:
                update(counts.together[index], merged.lr)
                counts.together[index] += 1
            self.versions[index] += 1
            applied.append(merged)
        return applied

    def _merge_pieces(self, contributions: Sequence[Contribution]) -> list[Merged]:
        """Merge and apply pushes that cover different rows, or name keys."""
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
                self._update(index, piece, pieces[-1])
            if pieces:
                self.counts.count(index, [piece.rows for piece in pieces])
                self.versions[index] += 1
            applied += pieces
        return applied

    def apply_round(self, updates: Sequence[tuple[float | None, StagedRows]]) -> None:
        """Apply a round that another replica has merged, as one update of each cell."""
        touched: dict[int, list[KeyRange]] = {}
        for lr, staged in updates:
            merged = Merged(staged.rows, staged.keys, staged.values, lr)
            for index, part in self._touched(staged.rows):
                self._update(index, part, merged)
                touched.setdefault(index, []).append(part)
        for index, parts in touched.items():
            self.counts.count(index, parts)
            self.versions[index] += 1
        self._advance(touched)
        for _, staged in updates:
            self.release(staged)

    def _advance(self, touched: Iterable[int]) -> None:
        """Have workers pull what a round has changed in these fragments."""
        if self.references is None:
            return
        for index in touched:
            part = self.fragments[index]
            updates = self.counts.most(index, part)
            self.references.advance(index, self.rows[self._slice(part)], updates)

    def _pieces(self, staged: StagedRows) -> list[tuple[int, KeyRange, Prepared | None]]:
        """Return each fragment that a push of whole rows changes, with its prepared update."""
        return [
            (index, part, self._prepared(index, part, rows_of(staged, part)))
            for index, part in self._touched(staged.rows)
        ]

    def _prepared(self, index: int, part: KeyRange, values: Tensor) -> Prepared | None:
        """Return a prepared update of these rows; None if it does not count for all cells."""
        if not self.counts.covers_all(index, part):
            return None
        return self.access.prepared(*self._piece(part), values)

    def _run(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float | None) -> None:
        self.access.apply(rows, slots, update, step, lr)

    def _update(self, index: int, part: KeyRange, update: Merged) -> None:
        """Apply an update to its rows in `part` of a fragment; the caller counts it."""
        for rows, step in self.counts.steps(index, part):
            if update.keys is not None:
                self._update_some(rows, update.keys, update.values, step, update.lr)
                continue
            start = rows.start - update.rows.start
            values = update.values[start : start + len(rows)]
            self._run(*self._piece(rows), values, step, update.lr)

    def _update_some(
        self, part: KeyRange, keys: Tensor, values: Tensor, step: int, lr: float | None
    ) -> None:
        """Update the rows of the keys that are in `part`."""
        first, last = torch.searchsorted(keys, torch.tensor([part.start, part.stop])).tolist()
        if first == last:
            return
        places = keys[first:last] - self.held.start
        rows = self.rows[places]
        slots = {name: slot[places] for name, slot in self.slots.items()}
        self._run(rows, slots, values[first:last], step, lr)
        self.rows[places] = rows
        for name, slot in slots.items():
            self.slots[name][places] = slot

    # ------------------------------------------------------------------ reads

    def is_encoded(self, rows: KeyRange) -> bool:
        """Return whether `read_encoded` has nothing to encode."""
        return self.references is not None or all(
            self._pulled.has(part, self.versions[index]) for index, part in self._touched(rows)
        )

    def encode(self, rows: KeyRange) -> None:
        """Encode rows for those who pull them.

        Raises:
            AccessFailed: a value cannot be encoded.
        """
        self.read_encoded(rows, ())

    def read_encoded(self, rows: KeyRange, sizes: Sequence[int]) -> list[memoryview]:
        """Return rows as the table's codec for pulls encodes them: a view for each fragment.

        A fragment is encoded once for all workers that pull it. Rows that have no encoding, such as
        large ones, come as they are.

        Args:
            rows: the rows.
            sizes: the bytes that the caller takes of each fragment: where workers pull differences,
                these or those of a whole reference.

        Raises:
            AccessFailed: a value cannot be encoded, or there is nothing of such a size.
        """
        touched = self._touched(rows)
        if self.references is not None:
            return [
                self.references.read(index, part, self.rows[self._slice(part)], nbytes)
                for (index, part), nbytes in zip(touched, sizes, strict=True)
            ]
        return [
            self._pulled.read(
                part,
                self.rows[self._slice(part)],
                self.versions[index],
                self.counts.most(index, part),
            )
            for index, part in touched
        ]

    def read_keys(self, staged: StagedRows) -> memoryview:
        """Return a copy of the rows at `staged.keys`."""
        assert staged.keys is not None
        try:
            rows = self.rows[staged.keys - self.held.start]
        except RuntimeError as error:  # torch raises it when memory runs out
            raise AccessFailed(f"table {self.spec.name!r}: no memory to answer: {error}") from None
        staged.kept = False
        self.release(staged)
        return rows.view(-1).view(torch.uint8).numpy().data
