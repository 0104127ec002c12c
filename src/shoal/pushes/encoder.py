"""Encoder: encodes a worker's pushes to one table, and keeps what its codecs leave out.

The residual is kept times the weight of the push that has left it: with merge "mean" a push counts
by its weight, and what it lacks has to count as much in a later push of another weight. In a push
of a smaller weight a part of it counts, and the rest stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import sqrt
from struct import pack
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from shoal.codecs import residual_of
from shoal.errors import InvalidValue, NotFinite
from shoal.keys import KeyRange, digest64
from shoal.protocol.requests import PushOp
from shoal.tables.consistency import Cover
from shoal.tables.dense.rows import DTYPES
from shoal.tables.encoding import Encoding, Fragment, FragmentValues, LayerFigures, Measured
from shoal.tables.spec import TableSpec


class Encoded(NamedTuple):
    """A fragment that was encoded, as `Encoder.undo` needs it.

    number: its number
    unit:   the weight in whose units its residual was
    kept:   the residual, if not all of it was added
    """

    number: int
    values: FragmentValues
    unit: float
    kept: np.ndarray | None


Undo = list[Encoded]  # the fragments of a push


class Encoder:
    """Encodes the pushes of one worker to one table.

    Attributes:
        residual: what encodings have left out, (rows * width,) float32; None before the first one,
            and if no codec of the table is biased.
        units: the weight in whose units the residual of each fragment is, (fragments,); 1 where
            weights do not count.
        begins_at: the clock from which pushes are encoded: that of the codec that begins last.
        raw_bytes: the bytes of the values that were encoded so far.
        encoded_bytes: the bytes that they became.
    """

    def __init__(self, spec: TableSpec, seed: int, rank: Callable[[], int]) -> None:
        self.spec = spec
        self.residual: np.ndarray | None = None
        self.units = np.ones(len(spec.fragments()))
        self.raw_bytes = self.encoded_bytes = 0
        self._encoding = Encoding(spec)
        self.begins_at = self._encoding.begins_at
        self._weighs = spec.merge == "mean" and spec.consistency.apply_at == "round_end"
        self._seed = seed
        self._rank = rank
        self._clock, self._count = -1, 0  # of the last push, and of the pushes at that clock
        self._returned: deque[tuple[PushOp, float, KeyRange]] = deque()
        self._measures = False  # whether to measure the next push
        self._measured: list[Measured] = []

    def encode(self, op: PushOp, weight: float, clock: int) -> tuple[PushOp, Undo]:
        """Return a push of whole rows, encoded, and what `undo` needs.

        The encoded push does not borrow its values any more; `undo` does.

        Raises:
            NotFinite: a value cannot be encoded; nothing has changed, up to rounding.
        """
        if self.residual is None and self._encoding.biased:
            self.residual = residual_of(self.spec.rows * self.spec.width)
        self.settle()
        weight = weight if self._weighs else 1.0
        fragments, key = self._encoding.cut(op.rows), self._key(clock)
        most = sum(fragment.nbytes for fragment in fragments)
        data, encoded = np.frombuffer(op.values, np.uint8), np.empty(most, np.uint8)
        item, at = data.nbytes // (len(op.rows) * self.spec.width), 0
        done: Undo = []
        for fragment in fragments:
            index, residual, gain = self._begin(op.rows, fragment, weight)
            unit = float(self.units[index])
            kept = residual.copy() if residual is not None and weight < unit else None
            values = data[item * fragment.first : item * (fragment.first + fragment.length)]
            into = encoded[at : at + fragment.nbytes]
            given = FragmentValues(fragment, values, into, residual, gain)
            try:
                given = self._encoding.encode(given, key)
            except NotFinite:
                self.undo(done)
                raise
            done.append(Encoded(index, given, unit, kept))
            if kept is None:
                self.units[index] = weight
            else:
                self._keep_the_rest(index, given, weight, kept)
            at += len(given.into)
        encoded, sizes = encoded[:at], tuple(len(each.values.into) for each in done)
        self._count += 1
        self.raw_bytes += data.nbytes
        self.encoded_bytes += encoded.nbytes
        if self._measures:
            self._measures = False
            self._measured = [m for each in done for m in self._encoding.measured(each.values)]
        return msgspec.structs.replace(op, values=encoded.data, sizes=sizes), done

    def figures(self) -> list[LayerFigures]:
        """Return the figures of the push that was measured, by layer, and measure the next one."""
        named = [span.name for span in self.spec.spans] or [""]
        by_layer: dict[int, list[Measured]] = {}
        for each in self._measured:
            by_layer.setdefault(each.layer, []).append(each)
        self._measures, self._measured = True, []
        return [
            LayerFigures(
                self.spec.name,
                named[layer].split(" ")[0],
                some[0].codec or "none",
                sum(each.raw_bytes for each in some),
                sum(each.encoded_bytes for each in some),
                sqrt(sum(each.error for each in some) / (sum(each.norm for each in some) or 1.0)),
            )
            for layer, some in sorted(by_layer.items())
        ]

    def decode(self, op: PushOp, into: memoryview) -> None:
        """Decode an encoded push, as servers do, into memory of the table's dtype."""
        values = torch.frombuffer(into, dtype=DTYPES[self.spec.dtype]).view(-1, self.spec.width)
        self._encoding.decode(op.rows, op.values, op.sizes, values)

    def undo(self, done: Undo) -> None:
        """Make the residual what it was before a push, up to rounding."""
        for index, values, unit, kept in done:
            if kept is None:
                self._encoding.take_back(values)
            elif values.residual is not None:
                values.residual[:] = kept
            self.units[index] = unit

    def _keep_the_rest(
        self, index: int, values: FragmentValues, weight: float, kept: np.ndarray
    ) -> None:
        """Keep what a push of a smaller weight leaves of the residual.

        A residual that a push of weight 32 has left would be 32 times as large beside a gradient of
        weight 1, as in the last batch of an epoch, where all pushes of the round are as small. So
        it goes out with the weight of its push at most, and the rest of it later.

        values:  what was encoded, with a gain of 1; the residual is what its codec has left out
        kept:    the residual before
        """
        residual, unit = values.residual, float(self.units[index])
        assert residual is not None
        whole = len(residual) == len(self._fragment(index))
        mixed = unit - weight + weight * weight / unit if whole else unit
        residual *= np.float32(weight / mixed)
        residual += np.float32((unit - weight) / mixed) * kept
        self.units[index] = mixed

    def _fragment(self, index: int) -> np.ndarray:
        """Return the residual of a whole fragment."""
        first, last = index * self.spec.fragment_rows, (index + 1) * self.spec.fragment_rows
        return self._rows(KeyRange(first, min(last, self.spec.rows)))

    def _begin(
        self, rows: KeyRange, fragment: Fragment, weight: float
    ) -> tuple[int, np.ndarray | None, float]:
        """Return the number of a fragment in its table, its residual, and the residual's gain."""
        index, residual = self._left(rows, fragment)
        gain = min(1.0, float(self.units[index]) / weight)
        if residual is not None and gain != 1:
            whole = self._fragment(index)
            if len(whole) != len(residual):  # the rest of the fragment keeps its residual
                whole *= np.float32(gain)
                self.units[index], gain = weight, 1.0
        return index, residual, gain

    def _left(self, rows: KeyRange, fragment: Fragment) -> tuple[int, np.ndarray | None]:
        """Return the number of a cut fragment in its table, and the residual of its rows."""
        start = rows.start + fragment.first // self.spec.width
        stop = start + fragment.length // self.spec.width
        left = None if self.residual is None else self._rows(KeyRange(start, stop))
        return start // self.spec.fragment_rows, left

    def _rows(self, rows: KeyRange) -> np.ndarray:
        assert self.residual is not None
        return self.residual[rows.start * self.spec.width : rows.stop * self.spec.width]

    def _key(self, clock: int) -> int:
        """Return the key of the random bits of the next push, which no other push has."""
        if clock != self._clock:
            self._clock, self._count = clock, 0
        name = self.spec.name.encode()
        told = pack("<4q", self._seed, self._rank(), clock, self._count) + name
        return digest64(told)

    # ------------------------------------------------------------------ what does not count

    def give_back(self, op: PushOp, weight: float, rows: KeyRange) -> None:
        """Add rows of an encoded push, which no server will count, to the residual.

        Any thread may call this; it is done before the next push is encoded.
        """
        self._returned.append((op, weight, rows))

    @property
    def covered(self) -> bool:
        """Whether a push that is late for its round counts all the same: a twin's was there."""
        return isinstance(self.spec.consistency.closes, Cover)

    def settle(self) -> None:
        """Do what `give_back` was asked for."""
        while self._returned:
            op, weight, rows = self._returned.popleft()
            encoded, at = np.frombuffer(op.values, np.uint8), 0
            for fragment, size in zip(self._encoding.cut(op.rows), op.sizes, strict=True):
                index, residual = self._left(op.rows, fragment)
                weight = weight if self._weighs else 1.0
                first = op.rows.start + fragment.first // self.spec.width
                if residual is not None and first in rows:
                    factor = weight / float(self.units[index])
                    some = encoded[at : at + size]
                    self._encoding.give_back(fragment, some, residual, factor)
                at += size

    def forget(self, rows: KeyRange, keys: memoryview | None = None) -> None:
        """Forget what was left out of rows, or of some keys among them, which are assigned now."""
        self.settle()
        if self.residual is None:
            return
        if keys is None:
            self._rows(rows)[:] = 0
        else:
            self.residual.reshape(-1, self.spec.width)[np.asarray(keys)] = 0

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of the residual, if there is any, with its units."""
        self.settle()
        if self.residual is None:
            return {}
        return {"residual": self.residual.copy(), "units": self.units.copy()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue with a residual of an earlier run of the same table.

        Raises:
            InvalidValue: it is of another table.
        """
        residual, units = (np.asarray(state.get(name, ())) for name in ("residual", "units"))
        shapes = (self.spec.rows * self.spec.width,), self.units.shape
        if (residual.shape, units.shape) != shapes:
            raise InvalidValue(
                f"the residual of table {self.spec.name!r} has {shapes[0][0]} values in "
                f"{len(self.units)} fragments, and was saved with {residual.size} in {units.size}"
            )
        self.residual = residual_of(len(residual))
        self.residual[:] = residual
        self.units[:] = units
