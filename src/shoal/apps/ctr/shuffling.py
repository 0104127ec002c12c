"""Rows in a random order, read as a stream through a buffer.

Rows of a click log often come sorted, by time or by label. An optimizer that sees each row once
learns little from a hundred thousand rows of one label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from shoal.apps.ctr.readers import Batch
from shoal.jit import U, kernel

RUNS = 0.1  # share of the label changes of a random order, below which labels come in long runs
CHANGES = 20  # label changes that a random order has to have for a warning


class Labels:
    """Counts rows, clicks, and changes of the label from one row to the next.

    In a random order of n rows, p n of them clicks, about 2 p (1 - p) n labels differ from the one
    before (Wald & Wolfowitz 1940).
    """

    def __init__(self) -> None:
        self.rows = self.clicks = self.changes = 0
        self._last: float | None = None

    def add(self, labels: np.ndarray) -> None:
        self.rows += len(labels)
        self.clicks += int((labels > 0).sum())
        self.changes += int((labels[1:] != labels[:-1]).sum())
        self.changes += self._last is not None and self._last != float(labels[0])
        self._last = float(labels[-1])

    @property
    def in_runs(self) -> bool:
        """Whether the labels come in long runs."""
        expected = 2 * self.clicks * (self.rows - self.clicks) / max(self.rows, 1)
        return expected >= CHANGES and self.changes < RUNS * expected


def counted(batches: Iterable[Batch], labels: Labels) -> Iterator[Batch]:
    """Yield the batches, and count their labels."""
    for batch in batches:
        labels.add(batch.labels)
        yield batch


def shuffled(
    batches: Iterable[Batch], buffer_rows: int, random: np.random.Generator, labels: Labels
) -> Iterator[Batch]:
    """Yield the rows of the batches in a random order, in batches of the size of the first.

    Whenever the buffer has `buffer_rows` rows or more, a random half of them, in whole batches,
    leaves it in a random order.

    Args:
        labels: the counts of the labels, in the order before the shuffle.
    """
    held: list[Batch] = []
    rows = size = 0
    for batch in counted(batches, labels):
        size = size or len(batch)
        held.append(batch)
        rows += len(batch)
        if rows >= buffer_rows:
            pool = joined(held)
            order = random.permutation(rows)
            leave = max(rows // 2 // size, 1) * size
            yield from cut(pool, order[:leave], size)
            held = [taken(pool, np.sort(order[leave:]))]
            rows -= leave
    if rows:
        yield from cut(joined(held), random.permutation(rows), size)


def cut(pool: Batch, order: np.ndarray, size: int) -> Iterator[Batch]:
    """Yield the rows of a pool in an order, in batches of `size` rows; the last may be smaller."""
    for first in range(0, len(order), size):
        yield taken(pool, order[first : first + size])


def joined(batches: Sequence[Batch]) -> Batch:
    """Return one batch of all rows."""
    if len(batches) == 1:
        return batches[0]
    begins = np.cumsum([0, *(len(each.keys) for each in batches[:-1])])
    return Batch(
        np.concatenate([each.labels for each in batches]),
        np.concatenate([each.offsets + at for each, at in zip(batches, begins, strict=True)]),
        np.concatenate([each.keys for each in batches]),
        np.concatenate([each.values for each in batches]),
        np.concatenate([each.fields for each in batches]),
    )


def taken(pool: Batch, rows: np.ndarray) -> Batch:
    """Return the batch of these rows of a pool, in this order."""
    last = len(pool.offsets) - 1
    ends = np.where(rows < last, pool.offsets[np.minimum(rows + 1, last)], len(pool.keys))
    counts = ends - pool.offsets[rows]
    offsets = np.cumsum(counts) - counts
    size = int(counts.sum())
    taken = Batch(
        pool.labels[rows],
        offsets,
        np.empty(size, np.uint64),
        np.empty(size, np.float32),
        np.empty(size, np.int64),
    )
    starts = pool.offsets[rows]
    for have, into in (
        (pool.keys, taken.keys),
        (pool.values, taken.values),
        (pool.fields, taken.fields),
    ):
        _copy(starts, counts, have, into)
    return taken


@kernel
def _copy(starts: Any, counts: Any, have: Any, into: Any) -> None:
    at = U(0)
    for row in range(U(starts.size)):
        start = U(starts[row])
        for i in range(U(counts[row])):
            into[at] = have[start + i]
            at += U(1)
