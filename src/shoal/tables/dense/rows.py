"""DenseRows: one server's rows of a dense table with their state, contiguous, in fragments.

The state of rows is their values, the values of the access method's slots for them, and the number
of their updates (`UpdateCounts`). It goes as a whole to other replicas (snapshots), to disk
(checkpoints), and to and from workers that save or load an optimizer (`read_state`, `write_state`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.keys import KeyRange
from shoal.tables.access import AccessMethod
from shoal.tables.dense.counts import UpdateCounts
from shoal.tables.dense.methods import method_of
from shoal.tables.dense.references import References
from shoal.tables.initial import fill
from shoal.tables.sizes import dense_bytes
from shoal.tables.snapshots import Sample, Snapshot, StagedSnapshot, copied, crc32, refuse
from shoal.tables.spec import ITEM_SIZES, TableSpec
from shoal.tables.staging import Shard, StagedRows, data_of, in_large_pages

DTYPES = {name: getattr(torch, name) for name in ITEM_SIZES}


class DenseRows(Shard):
    """The rows `held` of a table, with their optimizer state.

    Attributes:
        rows: the values, (len(held), width); a view of those of the shard `of`, if that is split.
        slots: the optimizer state by name, shaped as `rows`.
        references: what workers have of the rows, if they pull differences; else None.
        counts: the numbers of updates applied, by cell: the optimizer's step.
        versions: the number of updates and assignments of each fragment.
    """

    def __init__(self, spec: TableSpec, held: KeyRange, of: DenseRows | None = None) -> None:
        self.spec = spec
        self.held = held
        self.access: AccessMethod = method_of(spec)
        self.dtype: torch.dtype = DTYPES[spec.dtype]
        self._row_bytes = spec.row_bytes
        self.references: References | None = None
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
            self.counts = UpdateCounts(spec, self.fragments)
            self.versions = [0] * len(self.fragments)
            if spec.delta:
                self.references = References(spec, self.fragments, self.rows.clone())
        else:
            self.rows, self.slots = of._piece(held)
            first = of.fragments.index(self.fragments[0])
            last = first + len(self.fragments)
            self.counts = UpdateCounts(spec, self.fragments, of.counts.between(first, last))
            self.versions = of.versions[first:last]
            if of.references is not None:
                self.references = of.references.part(first, last)
        self._bytes = data_of(self.rows)
        self._all = list(enumerate(self.fragments))

    def __len__(self) -> int:
        return len(self.held)

    @property
    def updates(self) -> list[int]:
        """The number of updates of each cell, in order."""
        return self.counts.between(0, len(self.fragments))

    @property
    def nbytes(self) -> int:
        return dense_bytes(self.spec, self.held, len(self.slots))

    def read(self, rows: KeyRange) -> memoryview:
        """Return the live bytes of `rows`, which the next update changes."""
        if rows == self.held:
            return self._bytes
        size = self._row_bytes
        start = rows.start - self.held.start
        return self._bytes[start * size : (start + len(rows)) * size]

    # ------------------------------------------------------------------ replicas

    def snapshot(self, at: int, nbytes: int) -> Snapshot:
        """Return a copy of the state of about `nbytes` bytes of fragments, from number `at` on."""
        size = self._row_bytes * (1 + len(self.slots))
        stop = at + 1
        while stop < len(self.fragments):
            if (self.fragments[stop].stop - self.fragments[at].start) * size > nbytes:
                break
            stop += 1
        some = KeyRange(self.fragments[at].start, self.fragments[stop - 1].stop)
        updates = torch.tensor(self.counts.between(at, stop))
        versions = torch.tensor(self.versions[at:stop])
        views = copied([updates, versions, *self.carried(some)])
        return Snapshot(some, -1, views, stop, stop == len(self.fragments))

    def sample(self, at: int, nbytes: int) -> Sample:
        """Return fragment number `at` as the sample, whatever its size."""
        return Sample(self.fragments[at], None, (at + 1) % len(self.fragments))

    def digest(self, rows: KeyRange, keys: None) -> int:
        """Return a digest of these rows and their state."""
        touched = [index for index, _ in self._touched(rows)]
        updates = torch.tensor([n for index in touched for n in self.counts.of(index)])
        return crc32([updates, *self.carried(rows)])

    def carried(self, rows: KeyRange) -> list[Tensor]:
        """Return the values of rows, their slots and references, and the references' names."""
        values, slots = self._piece(rows)
        if self.references is None:
            return [values, *slots.values()]
        names = torch.tensor([self.references.names[index] for index, _ in self._touched(rows)])
        return [values, *slots.values(), self.references.values[self._slice(rows)], names]

    def stage_snapshot(self, rows: KeyRange, keys: int) -> StagedSnapshot:
        """Return staging memory for a snapshot of these rows."""
        shape = (len(rows), self.spec.width)
        touched = [index for index, _ in self._touched(rows)]
        cells = sum(len(self.counts.edges(index)) for index in touched)
        numbers = torch.int64, (len(touched),)
        told = [(torch.int64, (cells,)), numbers, *[(self.dtype, shape)] * (1 + len(self.slots))]
        if self.references is not None:
            told += [(self.dtype, shape), numbers]
        return StagedSnapshot(rows, told)

    def install(self, staged: StagedSnapshot) -> None:
        """Set fragments to another replica's snapshot.

        Raises:
            AccessFailed: the snapshot is invalid; nothing is changed.
        """
        updates, versions, sent, *states = staged.tensors
        references = [states.pop(), states.pop()] if self.references is not None else []
        wrong = bool((updates < 0).any() or (versions < 0).any())
        refuse(self.spec.name, wrong, "a count below 0")
        rows, slots = self._piece(staged.rows)
        rows.copy_(sent)
        for slot, state in zip(slots.values(), states, strict=True):
            slot.copy_(state)
        first = self._touched(staged.rows)[0][0]
        self.counts.set(first, updates.tolist())
        self.versions[first : first + len(versions)] = versions.tolist()
        if self.references is not None:
            names, values = references
            self.references.set(first, values, names.tolist())

    # ------------------------------------------------------------------ disk

    def state(self, copied: bool = False) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint: `rows`, `slot.NAME`, and `updates` of each cell."""
        slots = {f"slot.{name}": slot for name, slot in self.slots.items()}
        live = {"rows": self.rows, **slots}
        if self.references is not None:
            live["references"] = self.references.values
            live["names"] = torch.tensor(self.references.names)
        here = {name: each.clone() for name, each in live.items()} if copied else live
        return {**here, "updates": torch.tensor(self.updates)}

    def restore(self, held: KeyRange, state: dict[str, Tensor], same: bool) -> None:
        """Restore the rows of a checkpointed shard that belong here.

        With the `same` access method, restore their slots and their numbers of updates as well.

        Raises:
            ValueError: it has other fragments or spans.
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
        fragments = [part for part in self.spec.fragments() if held.covers(part)]
        if same:
            counts, saved = UpdateCounts(self.spec, fragments), state["updates"].tolist()
            cells = sum(len(counts.edges(index)) for index in range(len(fragments)))
            if held.start % self.spec.fragment_rows or len(saved) != cells:
                raise ValueError(f"{len(saved)} update counts, not one for each of {cells} cells")
            counts.set(0, saved)
            for index, part in self._touched(KeyRange(start, stop)):
                self.counts.set(index, counts.of(fragments.index(part)))
        if self.references is not None:
            self._restore_references(KeyRange(start, stop), held, fragments, state)

    def _restore_references(
        self, rows: KeyRange, held: KeyRange, saved: list[KeyRange], state: dict[str, Tensor]
    ) -> None:
        """Restore the references of rows; those that were not saved are the rows."""
        assert self.references is not None
        known = "references" in state and len(state["names"]) == len(saved)
        for index, _ in self._touched(rows):
            part = self.fragments[index]
            if known and part in saved:
                values = state["references"][part.start - held.start : part.stop - held.start]
                self.references.set(index, values, [int(state["names"][saved.index(part)])])
            else:
                self.references.assign(index, self.rows[self._slice(part)])

    # ------------------------------------------------------------------ workers

    def most_updates(self, rows: KeyRange) -> int:
        """Return the largest number of updates that any of these rows has had."""
        return max((self.counts.most(*touched) for touched in self._touched(rows)), default=0)

    def read_state(self, rows: KeyRange) -> list[memoryview]:
        """Return the live bytes of `rows` and of their slots, which the next update changes."""
        values, slots = self._piece(rows)
        return [data_of(each) for each in (values, *slots.values()) if each.numel()]

    def write_state(self, staged: StagedRows, updates: int) -> None:
        """Assign rows and their slots, and the number of updates of their cells."""
        rows, slots = self._piece(staged.rows)
        for here, sent in zip((rows, *slots.values()), staged.states(), strict=True):
            here.copy_(sent)
        for index, part in self._touched(staged.rows):
            self.counts.assign(index, part, updates)
            self.versions[index] += 1
        self._assigned(staged)
        self.release(staged)

    def _assigned(self, staged: StagedRows) -> None:
        """Have workers pull the fragments of assigned rows as they are."""
        if self.references is None:
            return
        touched = [index for index, _ in self._touched(staged.rows)]
        if staged.keys is not None:
            first = self.held.start
            numbers = (staged.keys - first) // self.spec.fragment_rows
            touched = np.unique(numbers.numpy()).tolist()
        for index in touched:
            self.references.assign(index, self.rows[self._slice(self.fragments[index])])

    # ------------------------------------------------------------------ places

    def _piece(self, part: KeyRange) -> tuple[Tensor, dict[str, Tensor]]:
        here = self._slice(part)
        return self.rows[here], {name: slot[here] for name, slot in self.slots.items()}

    def _slice(self, rows: KeyRange) -> slice:
        return slice(rows.start - self.held.start, rows.stop - self.held.start)

    def _touched(self, rows: KeyRange) -> list[tuple[int, KeyRange]]:
        """Return the number of each fragment that `rows` overlap, with the overlap."""
        if rows == self.held:
            return self._all
        if not len(rows):
            return []
        size, base = self.spec.fragment_rows, self.held.start
        first = (rows.start - base) // size
        last = -(-(rows.stop - base) // size)
        return [(i, self.fragments[i] & rows) for i in range(first, last)]
