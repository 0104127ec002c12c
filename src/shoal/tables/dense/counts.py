"""UpdateCounts: how often the rows of a dense shard were updated, which is their optimizer's step.

Rows are counted by *cell*: the rows of one fragment in one span of the table (`TableSpec.spans`). A
table without spans has one cell for each fragment. The cells of a fragment mostly have one count.
They come apart when a push leaves out a span, as one without that parameter's gradient does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from copy import copy

from shoal.keys import KeyRange
from shoal.tables.spec import TableSpec


class UpdateCounts:
    """The counts of some adjacent fragments of a table.

    Attributes:
        together: the count of all cells of a fragment, by fragment; unused if it is in `apart`.
        apart: the counts of the cells of a fragment whose cells differ, by the fragment's number.
    """

    def __init__(
        self, spec: TableSpec, fragments: Sequence[KeyRange], counts: Sequence[int] | None = None
    ) -> None:
        self._fragments = fragments
        self._spans = [span.start for span in spec.spans]
        self._edges: dict[int, list[int]] = {}
        self.together = [0] * len(fragments)
        self.apart: dict[int, list[int]] = {}
        if counts is not None:
            self.set(0, counts)

    # ------------------------------------------------------------------ reading

    def copy(self) -> UpdateCounts:
        """Return a copy of the counts."""
        made = copy(self)
        made.together = [*self.together]
        made.apart = {index: [*counts] for index, counts in self.apart.items()}
        return made

    def steps(self, index: int, part: KeyRange) -> Iterator[tuple[KeyRange, int]]:
        """Yield these rows of a fragment in pieces, each with its number of updates."""
        counts = self.apart.get(index)
        if counts is None:
            yield part, self.together[index]
            return
        edges, start = self.edges(index), part.start
        first, last = self._cells(index, part)
        for number in range(first, last):
            if number + 1 == last or counts[number + 1] != counts[number]:
                stop = part.stop if number + 1 == last else edges[number + 1]
                yield KeyRange(start, stop), counts[number]
                start = stop

    def most(self, index: int, part: KeyRange) -> int:
        """Return the largest number of updates that any of these rows has had."""
        return max((count for _, count in self.steps(index, part)), default=0)

    def of(self, index: int) -> list[int]:
        """Return the counts of a fragment's cells, in order."""
        counts = self.apart.get(index)
        return [self.together[index]] * len(self.edges(index)) if counts is None else [*counts]

    def between(self, first: int, last: int) -> list[int]:
        """Return the counts of the cells of the fragments `first` to `last - 1`, in order."""
        return [count for index in range(first, last) for count in self.of(index)]

    def covers_all(self, index: int, part: KeyRange) -> bool:
        """Return whether an update of these rows of a fragment counts for each of its cells."""
        return part == self._fragments[index] or (len(part) > 0 and len(self.edges(index)) == 1)

    def edges(self, index: int) -> list[int]:
        """Return the first row of each cell of a fragment."""
        edges = self._edges.get(index)
        if edges is None:
            edges = self._edges[index] = cell_edges(self._spans, self._fragments[index])
        return edges

    # ------------------------------------------------------------------ counting

    def count(self, index: int, parts: Sequence[KeyRange]) -> None:
        """Count one update of each cell of a fragment that has rows in `parts`."""
        if index not in self.apart and self.covers_all(index, parts[0]):
            self.together[index] += 1
            return
        counts = self.of(index)
        for number in {n for part in parts for n in range(*self._cells(index, part))}:
            counts[number] += 1
        self._put(index, counts)

    def assign(self, index: int, part: KeyRange, count: int) -> None:
        """Set the count of each cell of a fragment that has rows in `part`."""
        counts = self.of(index)
        for number in range(*self._cells(index, part)):
            counts[number] = count
        self._put(index, counts)

    def set(self, first: int, counts: Sequence[int]) -> None:
        """Set the counts of all cells of some fragments, from number `first` on."""
        at, index = 0, first
        while at < len(counts):
            size = len(self.edges(index))
            self._put(index, [*counts[at : at + size]])
            at, index = at + size, index + 1

    def _put(self, index: int, counts: list[int]) -> None:
        if min(counts) == max(counts):
            self.together[index] = counts[0]
            self.apart.pop(index, None)
        else:
            self.apart[index] = counts

    def _cells(self, index: int, part: KeyRange) -> tuple[int, int]:
        """Return the range (first, stop) of the numbers of the cells with rows in `part`."""
        if not len(part):
            return 0, 0
        edges = self.edges(index)
        return bisect_right(edges, part.start) - 1, bisect_left(edges, part.stop)


def cell_edges(spans: Sequence[int], fragment: KeyRange) -> list[int]:
    """Return the first row of each cell of a fragment, from the first row of each span.

    >>> cell_edges([0, 16, 48], KeyRange(10, 60))
    [10, 16, 48]
    """
    first, last = bisect_right(spans, fragment.start), bisect_left(spans, fragment.stop)
    return [fragment.start, *spans[first:last]]
