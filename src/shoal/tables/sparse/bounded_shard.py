"""BoundedShard: one server's rows of a sparse table whose memory is bounded (`max_rows`).

A push creates rows, which may evict others; a pull creates none and does not count as a use. All
replicas have the same keys at the same places: a replicated push carries the places of its keys. So
a syncing replica, which receives rows in the order of their places, knows of each pushed key
whether its row has arrived already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.jit import U
from shoal.keys import KeyRange
from shoal.tables.sizes import BOUNDED_KEY_BYTES, USES_MOST, rows_held
from shoal.tables.snapshots import StagedSnapshot, refuse
from shoal.tables.sparse.eviction import BoundedIndex
from shoal.tables.sparse.index import MISSING
from shoal.tables.sparse.records import scatter
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.sparse.staging import StagedKeys


class BoundedShard(SparseShard):
    """A shard of at most its share of the table's rows, at the same places in each replica."""

    _index: BoundedIndex

    @property
    def nbytes(self) -> int:
        """The bytes that the shard takes with as many rows as it may have."""
        return self._index.most * (self.stride * self.dtype.itemsize + BOUNDED_KEY_BYTES)

    def _new_index(self) -> BoundedIndex:
        return BoundedIndex(rows_held(self.spec, self.held), self.spec.evict)

    def stage_told(self, rows: KeyRange, keys: int) -> StagedKeys:
        staged = self.stage(rows, keys)
        staged.place(np.empty(keys, np.uint64))
        staged.told = True
        return staged

    # ------------------------------------------------------------------ updates

    def _placed(self, staged: StagedKeys) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the parts of a push to apply together, whose keys do not evict each other."""
        if staged.retained and staged.places is None:
            staged.place(np.empty(len(staged.keys), np.uint64))
        for some in self._slices(len(staged.keys)):
            if staged.told:
                yield self._told(staged, some)
                continue
            places = self._places(staged.keys[some])
            if staged.places is not None:
                staged.places[some] = places
            yield some, places

    def _told(self, staged: StagedKeys, some: slice) -> tuple[Any, np.ndarray]:
        """Put keys at the places that the head chose; while syncing, only keys that are here."""
        assert staged.places is not None
        which, places = some, staged.places[some]
        if self.syncing:
            which = some.start + np.flatnonzero(places < U(len(self)))
            places = staged.places[which]
        keys = staged.keys[which]
        self._reserve(len(keys))
        new = self._index.assume(keys, places)
        scatter(self.records, places[new], self._new_records(keys[new]), U(self.stride))
        return which, places

    def _slices(self, count: int) -> list[slice]:
        most = self._index.at_once
        return [slice(start, start + most) for start in range(0, count, most)]

    # ------------------------------------------------------------------ reads

    def _read(self, keys: np.ndarray, out: np.ndarray) -> None:
        """Read rows without creating any."""
        self._read_present(keys, out)

    # ------------------------------------------------------------------ replicas and disk

    def _tensors(self, at: int, stop: int) -> list[Tensor]:
        index = self._index
        counted = torch.tensor([index.evicted, index.requests])
        return [*super()._tensors(at, stop), counted, torch.from_numpy(index.uses(at, stop))]

    def _shapes(self, keys: int) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        return [*super()._shapes(keys), (torch.int64, (2,)), (torch.int64, (keys, 2))]

    def _places_to_learn(self, keys: np.ndarray) -> np.ndarray:
        places = np.arange(len(self), len(self) + len(keys), dtype=np.uint64)
        self._index.assume(keys, places)
        return places

    def install(self, staged: StagedSnapshot) -> None:
        first, keys = len(self), staged.tensors[1].numpy().view(np.uint64)
        (evicted, requests), uses = (each.numpy() for each in staged.tensors[3:])
        counts = (staged.tensors[3] < 0).any() or (uses < 0).any() or (uses[:, 0] > USES_MOST).any()
        refuse(self.spec.name, bool(counts), "counts out of their range")
        again = len(np.unique(keys)) < len(keys) or (self._index.find(keys) != MISSING).any()
        refuse(self.spec.name, bool(again), "keys that have come before")
        most = rows_held(self.spec, self.held)
        refuse(self.spec.name, first + len(keys) > most, f"more than {most} rows")
        super().install(staged)
        self._index.remember(first, uses, int(evicted), int(requests))

    def _counts(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint other than rows.

        `uses` (n, 2) has each row's number of uses and last use, and `drawn` the sampling state.
        """
        uses = torch.from_numpy(self._index.uses(0, len(self)))
        return {**super()._counts(), "uses": uses, "drawn": torch.tensor([self._index.drawn])}

    def restore(self, held: KeyRange, state: dict[str, Tensor], same: bool) -> None:
        super().restore(held, state, same)
        if "uses" in state:
            keys, drawn = state["keys"].numpy().view(np.uint64), int(state.get("drawn", [1])[0])
            self._index.recall(keys, state["uses"].numpy(), drawn)

    def _put(self, keys: np.ndarray, records: np.ndarray) -> None:
        for some in self._slices(len(keys)):
            super()._put(keys[some], records[some])
