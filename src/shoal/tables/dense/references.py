"""References: what all workers have of a shard's rows, and the differences that led there.

After each round the difference of the rows to the reference is encoded once, and the reference
moves by what workers will decode. What a codec leaves out of it is in the next difference, because
that is one to the reference. All replicas do the same and have the same, bit for bit.
"""

from __future__ import annotations

from struct import pack

import numpy as np
from torch import Tensor

from shoal.errors import AccessFailed
from shoal.keys import KeyRange, digest64
from shoal.tables.differences import Differences, Names, name_of, nothing, whole
from shoal.tables.spec import TableSpec
from shoal.tables.staging import data_of


class References:
    """The reference of each fragment of a shard.

    Attributes:
        values: the references, shaped as the rows.
        names: the name of each.

    Args:
        spec: the table.
        fragments: the fragments of the shard.
        values: the references; the rows for a new shard.
        names: their names; None for those of the values.
    """

    def __init__(
        self,
        spec: TableSpec,
        fragments: list[KeyRange],
        values: Tensor,
        names: list[int] | None = None,
    ) -> None:
        self._spec = spec
        self._fragments = fragments
        self._start = fragments[0].start if fragments else 0
        self._differences = Differences(spec)
        self._cut = [self._differences.cut(part)[0] for part in fragments]
        self._encoded: list[np.ndarray | None] = [None] * len(fragments)
        self.values = values
        self.names = names or [name_of(self._of(index)) for index in range(len(fragments))]

    def part(self, first: int, last: int) -> References:
        """Return those of the fragments `first` to `last - 1`, in the same memory."""
        fragments = self._fragments[first:last]
        start, stop = fragments[0].start - self._start, fragments[-1].stop - self._start
        found = References(self._spec, fragments, self.values[start:stop], self.names[first:last])
        found._encoded = self._encoded[first:last]
        return found

    def _of(self, index: int) -> Tensor:
        part = self._fragments[index]
        return self.values[part.start - self._start : part.stop - self._start]

    # ------------------------------------------------------------------ changes

    def advance(self, index: int, rows: Tensor, updates: int) -> None:
        """Move the reference of a fragment to its rows, as far as its codec gets in one step.

        Args:
            index: the number of the fragment.
            rows: its rows, after a round.
            updates: the number of its updates, from which random bits follow.
        """
        fragment, reference = self._cut[index], self._of(index)
        if not fragment.pieces:
            return
        part = self._fragments[index]
        key = digest64(pack("<2q", part.start, updates) + self._spec.name.encode())
        encoded = self._differences.encode(fragment, rows, reference, self.names[index], key)
        if encoded is None:
            self.assign(index, rows)
            return
        self._encoded[index] = encoded
        self.names[index] = Names.of(encoded.data).after

    def assign(self, index: int, rows: Tensor) -> None:
        """Make the reference of a fragment its rows, which workers pull whole."""
        reference = self._of(index)
        reference.copy_(rows)
        self.names[index] = name_of(reference)
        self._encoded[index] = None

    def set(self, first: int, values: Tensor, names: list[int]) -> None:
        """Set the references of some fragments, from number `first` on, to those of a replica."""
        start = self._fragments[first].start - self._start
        self.values[start : start + len(values)] = values
        self.names[first : first + len(names)] = names
        self._encoded[first : first + len(names)] = [None] * len(names)

    # ------------------------------------------------------------------ reads

    def read(self, index: int, part: KeyRange, rows: Tensor, nbytes: int) -> memoryview:
        """Return the bytes of a fragment for a worker that takes as many.

        Args:
            index: the number of the fragment.
            part: the rows that it pulls.
            rows: these rows.
            nbytes: the bytes of its difference, or those of its reference.

        Raises:
            AccessFailed: they are neither, or the rows are not the whole fragment.
        """
        fragment = self._cut[index]
        if part != self._fragments[index] or nbytes not in (
            fragment.nbytes,
            self._differences.whole_bytes(fragment),
        ):
            raise AccessFailed(
                f"table {self._spec.name!r}, rows {part}: differences are of whole fragments, and "
                f"{nbytes} bytes are not what they have"
            )
        if not fragment.pieces:
            return memoryview(bytes(data_of(rows)))
        name, encoded = self.names[index], self._encoded[index]
        if nbytes != fragment.nbytes:
            return whole(self._of(index), name)
        return nothing(nbytes, name) if encoded is None else encoded.data
