"""Layout: where the keys and rows of a table are in the payload of a message.

A payload has the parts of the message in order. A part has its keys, if it names keys, then its
rows, then the rows of each optimizer slot. Worker and server ask a `Layout` how many bytes that is
and where it may be cut. Nothing is encoded: tensors are sent as they are, and a server has them
received into staging memory (`tables.staging`), which a shard makes as large as its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from shoal.keys import KeyRange
from shoal.tables.spec import HEAD_BYTES, TableSpec

KEY_BYTES = 8
SIZE_BYTES = 8  # length prefix of each answer of a request that calls several handlers


class Layout:
    """The bytes of a table's keys and rows.

    >>> layout = Layout(TableSpec("w", 8, (3,), fragment_rows=2))
    >>> layout.nbytes(2), layout.span(1, 3), layout.rows(12, 36)
    (24, (12, 36), (1, 3))
    >>> layout.part_bytes(KeyRange(0, 4)), layout.part_bytes(KeyRange(0, 4), keys=1)
    (48, 20)
    """

    __slots__ = ("_row_bytes", "_spec")

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._row_bytes = spec.row_bytes

    def nbytes(self, count: int, slots: int = 0) -> int:
        """Return the bytes of a number of rows, with as many rows of each slot."""
        return count * self._row_bytes * (1 + slots)

    def part_bytes(self, rows: KeyRange, keys: int = -1, slots: int = 0) -> int:
        """Return the bytes of a part: of all rows of a range, or of keys and their rows.

        keys:  the number of keys; -1 for the whole range
        """
        if keys < 0:
            return self.nbytes(len(rows), slots)
        return keys * KEY_BYTES + self.nbytes(keys, slots)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets in bytes of the rows from `first` on and before `last`."""
        return first * self._row_bytes, last * self._row_bytes

    def rows(self, first: int, last: int) -> tuple[int, int]:
        """Return the rows between two offsets in bytes."""
        return first // self._row_bytes, last // self._row_bytes

    def view(self, values: memoryview, first: int, last: int) -> memoryview:
        """Return a view of the rows from `first` on and before `last`."""
        return values[first * self._row_bytes : last * self._row_bytes]

    def problem(self, count: int, buffer: memoryview) -> str:
        """Return why a buffer cannot hold a number of rows; empty if it can."""
        size = self._row_bytes
        if buffer.nbytes == count * size:
            return ""
        return f"{count} rows of {size} bytes need {count * size} bytes, not {buffer.nbytes}"

    # ------------------------------------------------------------------ encoded rows

    def encoded_problem(self, rows: KeyRange, sizes: Sequence[int], pulled: bool = False) -> str:
        """Return why encoded fragments of these sizes cannot be the rows; empty if they can.

        An encoded fragment is at most as large as its rows. Where workers pull differences, the
        whole reference has its names before it.

        >>> layout = Layout(TableSpec("w", 8, (3,), fragment_rows=2, codec="int:8"))
        >>> layout.encoded_problem(KeyRange(0, 4), (10, 24))
        ''
        >>> layout.encoded_problem(KeyRange(0, 4), (10, 25))
        'an encoded fragment of 25 bytes, whose rows have 24'
        """
        if self._spec.hashed:
            return f"table {self._spec.name!r} is {self._spec.kind}"
        head = HEAD_BYTES if pulled and self._spec.delta else 0
        fragments = self._spec.fragments_in(rows)
        if len(sizes) != len(fragments):
            return f"{len(sizes)} encoded fragments of {rows}, which has {len(fragments)}"
        for fragment, size in zip(fragments, sizes, strict=True):
            if not 0 < size <= head + self.nbytes(len(fragment)):
                return (
                    f"an encoded fragment of {size} bytes, whose rows have "
                    f"{self.nbytes(len(fragment))}"
                )
        return ""

    def encoded_row_problem(self, sizes: Sequence[int]) -> str:
        """Return why encoded rows that keys name cannot have these bytes; empty if they can.

        >>> layout = Layout(TableSpec("e", 0, (8,), kind="sparse", codec="fp16"))
        >>> layout.encoded_row_problem((16,)), layout.encoded_row_problem((16, 16))
        ('', 'encoded rows of (16, 16) bytes, of 32')
        """
        if self._spec.sparse and len(sizes) == 1 and 0 < sizes[0] < self._row_bytes:
            return ""
        return f"encoded rows of {tuple(sizes)} bytes, of {self._row_bytes}"

    def encoded_span(
        self, rows: KeyRange, sizes: Sequence[int], first: int, last: int
    ) -> tuple[int, int, tuple[int, ...]]:
        """Return where some rows are among encoded ones, and the sizes of their fragments.

        The cut has to be at edges of fragments.

        Args:
            rows: the rows that are encoded.
            sizes: the sizes of their fragments.
            first: the offset of the first byte of the wanted rows, if nothing were encoded.
            last: the offset behind their last byte.

        >>> layout = Layout(TableSpec("w", 8, (3,), fragment_rows=2))
        >>> layout.encoded_span(KeyRange(0, 8), (7, 8, 9, 10), 24, 72)
        (7, 24, (8, 9))
        """
        start, stop = self.rows(first, last)
        size, skipped = self._spec.fragment_rows, rows.start // self._spec.fragment_rows
        one = (rows.start + start) // size - skipped
        other = -(-(rows.start + stop) // size) - skipped
        before = sum(sizes[:one])
        wanted = tuple(sizes[one:other])
        return before, before + sum(wanted), wanted

    # ------------------------------------------------------------------ pieces

    def pieces(self, rows: KeyRange, most: int, slots: int = 0) -> Iterator[KeyRange]:
        """Cut rows at edges of fragments, into pieces of about `most` bytes.

        >>> layout = Layout(TableSpec("w", 8, (3,), fragment_rows=2))
        >>> [str(piece) for piece in layout.pieces(KeyRange(1, 8), most=50)]
        ['[1:4)', '[4:8)']
        """
        fragment = self._spec.fragment_rows
        size = max(1, most // self.nbytes(1, slots) // fragment) * fragment
        edges = range((rows.start // size + 1) * size, rows.stop, size)
        for start, stop in pairwise([rows.start, *edges, rows.stop]):
            yield KeyRange(start, stop)


def cut_evenly(sizes: Sequence[int], each: int) -> list[Sequence[int]]:
    """Cut the sizes of several pushes' fragments, of which each push has as many.

    >>> cut_evenly([1, 2, 3, 4, 5, 6], 2)
    [[1, 2], [3, 4], [5, 6]]
    """
    return [sizes[at : at + each] for at in range(0, len(sizes), max(each, 1))]


def count_of(keys: memoryview) -> int:
    """Return the number of keys in a buffer."""
    return keys.nbytes // KEY_BYTES
