"""UserShard: a dense shard whose access method is a user's, and may raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from shoal.errors import AccessFailed
from shoal.keys import KeyRange
from shoal.tables.access import Prepared, Slots
from shoal.tables.dense.merge import Contribution
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import TableSpec
from shoal.tables.staging import Merged, StagedRows


class UserShard(DenseShard):
    """A dense shard that is left as it was by a push or a round whose access method raises.

    No push to it is streamed: a fragment may fail when others are in the rows. None is read in its
    sender's memory, which ends a process that writes there, as a method may try to.
    """

    streams = False

    def __init__(self, spec: TableSpec, held: KeyRange, of: DenseShard | None = None) -> None:
        super().__init__(spec, held, of)
        self.reads_lent = False

    def apply(self, staged: StagedRows, lr: float | None) -> None:
        with self._undone(staged.rows):
            super().apply(staged, lr)

    def merge(self, contributions: Sequence[Contribution]) -> list[Merged]:
        named = [staged.rows for _, _, staged in contributions] or [KeyRange(0, 0)]
        first, last = min(each.start for each in named), max(each.stop for each in named)
        with self._undone(KeyRange(first, last)):
            return super().merge(contributions)

    @contextmanager
    def _undone(self, rows: KeyRange) -> Iterator[None]:
        """Restore these rows, their state and counts if the method fails in a `with` block."""
        here, slots = self._piece(rows)
        tensors = (here, *slots.values())
        saved = [each.clone() for each in tensors]
        counts, versions = self.counts.copy(), [*self.versions]
        try:
            yield
        except AccessFailed:
            for each, before in zip(tensors, saved, strict=True):
                each.copy_(before)
            self.counts, self.versions = counts, versions
            raise

    def _run(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float | None) -> None:
        try:
            super()._run(rows, slots, update, step, lr)
        except Exception as error:
            raise self._failed("apply", error) from error

    def _prepared(self, index: int, part: KeyRange, values: Tensor) -> Prepared | None:
        try:
            prepared = super()._prepared(index, part, values)
        except Exception as error:
            raise self._failed("prepared", error) from error
        if prepared is None:
            return None

        def run(step: int, lr: float | None) -> None:
            try:
                prepared(step, lr)
            except Exception as error:
                raise self._failed("apply", error) from error

        return run

    def _failed(self, what: str, error: Exception) -> AccessFailed:
        name, kind = self.spec.access.name, type(error).__name__
        return AccessFailed(f"{what} of access method {name!r} raised {kind}: {error}")
