"""What the server's machine asks of tables; `tables.opening.open_shard` makes what answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from shoal.keys import KeyRange
from shoal.tables.spec import TableSpec


class Staged(Protocol):
    """A push that has come in whole and is not applied yet, or the keys of a pull.

    rows:     what it names
    keys:     ... of them, or None for all
    kept:     its keys are read once it is applied
    retained: its memory is not released when it is applied: other servers are to have it as well
    """

    rows: KeyRange
    keys: Any
    views: list[memoryview]
    kept: bool
    retained: bool

    def problem(self) -> str: ...


class Update(Protocol):
    """What a round came to, for some rows: all of them, or those of some keys."""

    rows: KeyRange
    lr: float | None

    @property
    def views(self) -> tuple[memoryview, ...]: ...


class Piece(Protocol):
    """A copy of some of a shard's rows, with the position of the next."""

    rows: KeyRange
    keys: int
    views: tuple[memoryview, ...]
    after: int
    last: bool


class Sampled(Protocol):
    """Some of a shard's rows: all of these, or those of some keys; `after`: where others begin."""

    rows: KeyRange
    keys: Any
    after: int


Loads = list[Staged]  # one per push part, then one per keyed pull part


class ShardStore(Protocol):
    """One server's part of a table; it stages what it applies."""

    spec: TableSpec
    held: KeyRange

    @property
    def evicted(self) -> int: ...

    def __len__(self) -> int: ...
    def stage(self, rows: KeyRange, keys: int) -> Any: ...
    def stage_keys(self, rows: KeyRange, keys: int) -> Any: ...
    def apply(self, staged: Any, lr: float | None) -> None: ...
    def write(self, staged: Any) -> None: ...
    def merge(
        self, contributions: Sequence[tuple[float, float | None, Any]]
    ) -> Sequence[Update]: ...
    def apply_round(self, updates: Sequence[tuple[float | None, Any]]) -> None: ...
    def release(self, staged: Any) -> None: ...
    def retain(self, staged: Any) -> None: ...
    def let_go(self, staged: Any) -> None: ...
    def keep_keys(self, staged: Any) -> None: ...
    def read_keys(self, staged: Any) -> memoryview: ...
    def keep(self, clients: Collection[int]) -> None: ...
    def state(self, copied: bool = False) -> dict[str, Any]: ...
    def changes(self) -> dict[str, Any] | None: ...
    def restore(self, held: KeyRange, state: dict[str, Any], same: bool) -> None: ...


class MovableStore(ShardStore, Protocol):
    """One that can be in several copies, or go to other servers.

    syncing: it is still being sent its rows; `stage_told` is for what another copy has applied
    """

    syncing: bool

    def sync(self, on: bool) -> None: ...
    def stage_told(self, rows: KeyRange, keys: int) -> Any: ...
    def split(self, ranges: Sequence[KeyRange]) -> Sequence[ShardStore]: ...
    def part_of(self, staged: Any) -> Any: ...
    def snapshot(self, at: int, nbytes: int) -> Piece: ...
    def stage_snapshot(self, rows: KeyRange, keys: int) -> Any: ...
    def install(self, staged: Any) -> None: ...
    def sample(self, at: int, nbytes: int) -> Sampled: ...
    def digest(self, rows: KeyRange, keys: Any) -> int: ...


class RowStore(MovableStore, Protocol):
    """A dense table's, which has ranges of rows as well as keys."""

    def stream(self, rows: KeyRange) -> Any: ...
    def first_row(self, streamed: Any, number: int) -> int: ...
    def apply_piece(self, streamed: Any, number: int, lr: float | None) -> None: ...
    def end_stream(self, streamed: Any) -> None: ...
    def read(self, rows: KeyRange) -> memoryview: ...


OpenStore = Callable[[TableSpec, KeyRange], ShardStore]
