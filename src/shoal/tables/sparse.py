"""SparseShard: one server's rows of a sparse table, by 64-bit keys.

A row is created when its key is first named, by a pull or a push, from the seed and the key alone.
Which server a key lives on is said by its hash slot (`keys.slot_of`); a shard holds a range of
slots. A push is staged whole, its keys are checked, and one kernel applies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.keys import SLOTS, KeyRange
from shoal.tables.distinct import distinct, outside
from shoal.tables.index import KeyIndex, pages
from shoal.tables.kernels import U, kernel
from shoal.tables.records import scatter
from shoal.tables.row_methods import row_method_of
from shoal.tables.spec import TableSpec
from shoal.tables.staging import ALIGN, Staging

LEAST_PLACES = 1 << 10
_KINDS = {"zeros": 0, "constant": 1, "uniform": 2, "normal": 3}


class StagedKeys:
    """Keys and values of a push (or the keys of a pull) as they come in.

    held:    the slots that the keys are to be in
    keys:    (n,) uint64, in any order
    values:  (n, width) of the table's dtype; (0, width) for a pull
    kept:    its keys are read once it is applied
    places:  where their records are, once that was looked up
    """

    __slots__ = ("held", "kept", "keys", "memory", "places", "values", "views")

    def __init__(self, held: KeyRange, memory: np.ndarray, keys: int, values: np.ndarray) -> None:
        self.held = held
        self.memory = memory
        self.kept = False
        self.places: np.ndarray | None = None
        self.keys = memory[: 8 * keys].view(np.uint64)
        self.values = values
        self.views: list[memoryview] = [memory[: 8 * keys].data]
        if values.size:
            self.views.append(values.reshape(-1).view(np.uint8).data)

    def problem(self) -> str:
        if len(self.held) == SLOTS:
            return ""
        first = outside(self.keys, self.held.start, self.held.stop)
        return "" if first < 0 else f"key {self.keys[first]} is not in the hash slots {self.held}"


class SparseShard:
    """The rows of the hash slots `held`, each with its state, in the order of their creation.

    records:  flat; a row and its state are `stride` elements
    keys:     of the records
    updates:  pushes applied so far: the step of a schedule
    """

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        self.spec = spec
        self.held = held
        self.method = row_method_of(spec)
        self.dtype = np.dtype(spec.dtype)
        self.updates = 0
        self._state = self.method.state(spec.width).astype(self.dtype)
        self.stride = spec.width + len(self._state)
        self._index = KeyIndex()
        self._records = _Growing(self.dtype, self.stride)
        self._keys = _Growing(np.dtype(np.uint64), 1)
        self._staging = Staging()

    def __len__(self) -> int:
        """The rows that there are."""
        return len(self._index)

    @property
    def records(self) -> np.ndarray:
        return self._records.array

    @property
    def keys(self) -> np.ndarray:
        return self._keys.array[: len(self)]

    # ------------------------------------------------------------------ arrival

    def stage(self, rows: KeyRange, keys: int) -> StagedKeys:
        """Room for a push of `keys` keys in the slots `rows`."""
        start = -(-8 * keys // ALIGN) * ALIGN
        size = keys * self.spec.row_bytes
        memory = self._staging.take(start + size)
        values = memory[start : start + size].view(self.dtype).reshape(keys, self.spec.width)
        return StagedKeys(rows, memory, keys, values)

    def stage_keys(self, rows: KeyRange, keys: int) -> StagedKeys:
        """Room for the key list of a pull."""
        none = np.empty((0, self.spec.width), self.dtype)
        return StagedKeys(rows, self._staging.take(8 * keys), keys, none)

    def release(self, staged: StagedKeys) -> None:
        """Take staging memory back. Nobody may hold its views any more."""
        if not staged.kept:
            self._staging.give(staged.memory)

    # ------------------------------------------------------------------ updates

    def apply(self, staged: StagedKeys, lr: float | None) -> None:
        """Hand a push to the row method at once."""
        staged.places = self._places(staged.keys)
        self._update(staged.places, staged.values, lr)
        self.release(staged)

    def write(self, staged: StagedKeys) -> None:
        """Set rows to the pushed values; their state stays."""
        places = self._places(staged.keys)
        scatter(self.records, places, staged.values, U(self.stride))
        self.release(staged)

    def merge(self, contributions: Sequence[tuple[float, float | None, StagedKeys]]) -> None:
        """Apply a round's pushes as one update, merged in the order given (by rank).

        `mean`: u = sum_i w_i u_i / sum_i w_i, where what a push does not carry counts as zero;
        `sum`: the plain sum. Rows that nobody carries are not touched.
        """
        if not contributions:
            return
        keys, numbers = distinct(np.concatenate([each.keys for _, _, each in contributions]))
        merged = np.zeros((len(keys), self.spec.width), self.dtype)
        factors = self.spec.factors([weight for weight, _, _ in contributions])
        at = 0
        for factor, (_, _, staged) in zip(factors, contributions, strict=True):
            mine = numbers[at : at + len(staged.keys)]
            self.method.merge(merged, mine, staged.values, factor)
            at += len(mine)
            self.release(staged)
        self._update(self._places(keys), merged, contributions[0][1])

    def _update(self, places: np.ndarray, values: np.ndarray, lr: float | None) -> None:
        self.method.apply(self.records, places, values, self.stride, self.updates, lr)
        self.updates += 1

    # ------------------------------------------------------------------ reads

    def read_keys(self, staged: StagedKeys) -> memoryview:
        """A copy of the rows of `staged.keys`; those that are not there yet are created."""
        out = np.empty((len(staged.keys), self.spec.width), self.dtype)
        places = self._places(staged.keys) if staged.places is None else staged.places
        staged.kept = False
        self.release(staged)
        self.method.read(self.records, places, out, self.stride)
        view: memoryview = out.reshape(-1).view(np.uint8).data
        return view

    # ------------------------------------------------------------------ places

    def _places(self, keys: np.ndarray) -> np.ndarray:
        """Where the keys' records are; new ones are made."""
        created = np.empty(len(keys), np.uint64)
        before = len(self._index)
        places, added = self._index.find_or_add(keys, created)
        if added:
            new = keys[created[:added]]
            self._keys.reserve(before + added)
            self._keys.array[before : before + added] = new
            self._records.reserve(before + added)
            init = self.spec.init
            _create(
                self._records.array[before * self.stride : (before + added) * self.stride],
                new,
                self._state,
                U(self.spec.width),
                _KINDS[init.kind],
                np.float64(init.a),
                np.float64(init.b),
                stream_of(init.seed, 0),
                stream_of(init.seed, 1),
            )
        return places


class _Growing:
    """An array of records that grows without being copied: its pages are moved."""

    def __init__(self, dtype: np.dtype[Any], stride: int) -> None:
        self._size = dtype.itemsize * stride
        self._dtype = dtype
        self._memory = pages(LEAST_PLACES * self._size)
        self.array = np.frombuffer(self._memory, dtype)

    def reserve(self, places: int) -> None:
        needed = places * self._size
        if needed > len(self._memory):
            self.array = np.empty(0, self._dtype)  # or its memory could not be moved
            self._memory.resize(max(needed, 2 * len(self._memory)))
            self.array = np.frombuffer(self._memory, self._dtype)


def stream_of(seed: int, number: int) -> np.uint64:
    """What the counters of a seed's random stream begin at, as `dense.fill` has it."""
    return np.uint64((seed * 2 + number) * 0x632BE59BD9B4E019 % (1 << 64))


@kernel
def _uniform(counter: Any, stream: Any) -> Any:
    z = (counter + stream) * U(0x9E3779B97F4A7C15) + U(0x9E3779B97F4A7C15)
    z = (z ^ (z >> U(30))) * U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U(27))) * U(0x94D049BB133111EB)
    z = z ^ (z >> U(31))
    return np.float64(z >> U(11)) * 2.0**-53


@kernel
def _create(
    records: Any,
    keys: Any,
    state: Any,
    width: Any,
    kind: Any,
    a: Any,
    b: Any,
    first: Any,
    second: Any,
) -> None:
    """Write new records: rows as `dense.fill` writes those of these keys, and their state."""
    stride = width + U(state.size)
    for i in range(U(keys.size)):
        row = i * stride
        for j in range(width):
            value = 0.0
            if kind == 1:
                value = a
            elif kind >= 2:
                uniform = _uniform(keys[i] * width + j, first)
                if kind == 2:
                    value = a + (b - a) * uniform
                else:
                    angle = 2.0 * np.pi * _uniform(keys[i] * width + j, second)
                    value = a + b * np.sqrt(-2.0 * np.log1p(-uniform)) * np.cos(angle)
            records[row + j] = value
        for j in range(U(state.size)):
            records[row + width + j] = state[j]
