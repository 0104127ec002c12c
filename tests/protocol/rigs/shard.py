"""A shard that a person can follow."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from shoal.errors import BadEncoding
from shoal.keys import KeyRange
from shoal.tables.spec import TableSpec
from tests.protocol.rigs.views import as_bytes


class FakeEncoded(NamedTuple):
    data: memoryview
    sizes: tuple[int, ...]


class FakeStaged:
    """A push's keys and values, or the keys of a pull."""

    encoded: FakeEncoded | None = None

    def __init__(self, rows: KeyRange, keys: int, values: int) -> None:
        self.rows = rows
        self.keys = array("q", [0] * keys) if keys >= 0 else None
        self.values = array("q", [0] * values)
        buffers = [self.values] if self.keys is None else [self.keys, self.values]
        self.views = [memoryview(each).cast("B") for each in buffers]

    def problem(self) -> str:
        return "" if self.keys is None or all(k in self.rows for k in self.keys) else "bad keys"

    def updates(self) -> list[tuple[int, int]]:
        """(key, value) of each row."""
        keys: Iterable[int] = range(self.rows.start, self.rows.stop)
        return list(zip(keys if self.keys is None else self.keys, self.values, strict=True))


class FakeShard:
    """Rows of one int64 each, to which pushes are added.

    merged:  the weights of each merge, in the order given
    kept:    the workers' incarnations that it was last told to keep
    lent:    whether long work on it is under way
    """

    new_row_bytes = 0
    lent = False
    slots: ClassVar[dict[str, Any]] = {}

    @property
    def nbytes(self) -> int:
        return 8 * len(self.held)

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        self.spec, self.held = spec, held
        self.rows = array("q", [0] * len(held))
        self.merged: list[list[float]] = []
        self.kept: list[int] = []

    def stage(self, rows: KeyRange, keys: int) -> FakeStaged:
        return FakeStaged(rows, keys, len(rows) if keys < 0 else keys)

    copy_bytes = nbytes

    def lend(self, on: bool) -> None:
        self.lent = on

    def stage_encoded(self, rows: KeyRange, sizes: Sequence[int]) -> FakeStaged:
        """Each value is a byte, of which 255 is none; and the fragments may have more bytes."""
        staged = self.stage(rows, -1)
        data = memoryview(bytearray(sum(sizes)))
        staged.encoded, staged.views = FakeEncoded(data, tuple(sizes)), [data]
        return staged

    def decode(self, staged: FakeStaged) -> None:
        assert staged.encoded is not None
        if 255 in staged.encoded.data:
            raise BadEncoding("255 is no value")
        staged.values[:] = array("q", staged.encoded.data[: len(staged.values)])
        staged.views = [memoryview(staged.values).cast("B")]

    def is_encoded(self, rows: KeyRange) -> bool:
        return True

    def encode(self, rows: KeyRange) -> None: ...

    def read_encoded(self, rows: KeyRange, sizes: Sequence[int]) -> list[memoryview]:
        first = self.held.start
        parts = self.spec.fragments_in(rows)
        return [memoryview(bytes([*self.rows[p.start - first : p.stop - first]])) for p in parts]

    def stage_keys(self, rows: KeyRange, keys: int) -> FakeStaged:
        return FakeStaged(rows, keys, 0)

    def state(self, copied: bool = False) -> dict[str, Any]:
        return {"rows": array("q", self.rows)}

    def retain(self, staged: FakeStaged) -> None: ...
    def let_go(self, staged: FakeStaged) -> None: ...
    def keep(self, clients: Collection[int]) -> None:
        self.kept = sorted(clients)

    def apply(self, staged: FakeStaged, lr: float | None) -> None:
        for key, value in staged.updates():
            self.rows[key - self.held.start] += value

    def write(self, staged: FakeStaged) -> None:
        for key, value in staged.updates():
            self.rows[key - self.held.start] = value

    def merge(self, contributions: Sequence[tuple[float, float | None, FakeStaged]]) -> list[Any]:
        self.merged.append([weight for weight, _, _ in contributions])
        for _, lr, staged in contributions:
            self.apply(staged, lr)
        return []

    def read(self, rows: KeyRange) -> memoryview:
        start = rows.start - self.held.start
        return memoryview(self.rows)[start : start + len(rows)].cast("B")

    def read_keys(self, staged: FakeStaged) -> memoryview:
        assert staged.keys is not None
        return as_bytes(*(self.rows[key - self.held.start] for key in staged.keys))
