"""The interface of a server's tables; `tables.opening.open_shard` opens an implementation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from shoal.keys import KeyRange
from shoal.tables.spec import TableSpec


class Staged(Protocol):
    """A push that has come in whole and is not applied yet, or the keys of a pull.

    rows:      the range that it names
    keys:      the keys in that range, or None for all rows
    views:     the destinations of its payload; of an encoded push the rows, once it is decoded
    encoded:   the encoded rows, if they came so, which other replicas get
    kept:      whether its keys are read after it is applied, by a pull of the same request
    retained:  whether its memory is kept after it is applied, until all replicas have it
    """

    rows: KeyRange
    keys: Any
    views: list[memoryview]

    @property
    def encoded(self) -> Encoded | None: ...

    kept: bool
    retained: bool

    def problem(self) -> str: ...


class Encoded(Protocol):
    """The encoded rows of a push: a fragment behind the other, of these sizes."""

    data: memoryview
    sizes: tuple[int, ...]


class Update(Protocol):
    """The merged update of a round, for all rows of a range or for some keys of it."""

    rows: KeyRange
    lr: float | None

    @property
    def views(self) -> tuple[memoryview, ...]: ...


class Piece(Protocol):
    """A part of a snapshot: some of a shard's rows, and the position of the next part."""

    rows: KeyRange
    keys: int
    views: tuple[memoryview, ...]
    after: int
    last: bool


class Sampled(Protocol):
    """A sample of a shard's rows, for a checksum.

    keys:   the keys in `rows`, or None for all rows
    after:  the position of the next sample
    """

    rows: KeyRange
    keys: Any
    after: int


Loads = list[Staged]  # one per push part, then one per keyed pull part


class ShardStore(Protocol):
    """The rows of a shard on one server, and the staging memory of its pushes.

    nbytes:         the most bytes that it takes, with staging memory; 0 if that is unknown
    copy_bytes:     the most bytes that a copy of the state moves; 0 if only the loop may copy
    new_row_bytes:  the most bytes that a new row takes; 0 if pushes create none, or with a bound
    lent:           whether another thread works on the rows
    """

    spec: TableSpec
    held: KeyRange
    lent: bool
    new_row_bytes: int

    @property
    def nbytes(self) -> int: ...
    @property
    def copy_bytes(self) -> int: ...
    @property
    def evicted(self) -> int: ...

    def new_keys(self, pushes: Sequence[Any]) -> int: ...
    def only_read(self, staged: Any) -> None: ...
    def __len__(self) -> int: ...
    def stage(self, rows: KeyRange, keys: int) -> Any: ...
    def stage_keys(self, rows: KeyRange, keys: int) -> Any: ...
    def apply(self, staged: Any, lr: float | None) -> None: ...
    def write(self, staged: Any) -> None: ...
    def merge(
        self, contributions: Sequence[tuple[float, float | None, Any]]
    ) -> Sequence[Update]: ...
    def apply_round(self, updates: Sequence[tuple[float | None, Any]]) -> None: ...
    def lend(self, on: bool) -> None: ...
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
    """A shard that can be replicated and moved to other servers.

    syncing:  whether it still receives its rows

    `stage_told` stages an operation that another replica has applied.
    """

    syncing: bool

    def sync(self, on: bool) -> None: ...
    def stage_told(self, rows: KeyRange, keys: int) -> Any: ...
    def split(self, ranges: Sequence[KeyRange]) -> Sequence[ShardStore]: ...
    def part_of(self, staged: Any, rows: KeyRange) -> Any: ...
    def snapshot(self, at: int, nbytes: int) -> Piece: ...
    def stage_snapshot(self, rows: KeyRange, keys: int) -> Any: ...
    def install(self, staged: Any) -> None: ...
    def sample(self, at: int, nbytes: int) -> Sampled: ...
    def digest(self, rows: KeyRange, keys: Any) -> int: ...


class ScannedStore(MovableStore, Protocol):
    """A shard of a sparse table, whose rows can be read without their keys."""

    def scan(self, rows: KeyRange) -> memoryview: ...
    def stage_encoded_keys(self, rows: KeyRange, keys: int, row_bytes: int) -> Any: ...
    def encode_keys(self, rows: memoryview, row_bytes: int) -> memoryview: ...


class RowStore(ScannedStore, Protocol):
    """A shard of a dense table, which also takes ranges of rows and streamed pushes.

    slots:       the state of its access method, by name
    streams:     whether a push may be applied fragment by fragment, while it comes in
    reads_lent:  whether updates may be in memory that cannot be written to

    The state of rows is their values, and each slot's values for them.
    """

    slots: Mapping[str, Any]
    streams: bool
    reads_lent: bool

    def stage_encoded(self, rows: KeyRange, sizes: Sequence[int]) -> Any: ...
    def decode(self, staged: Any) -> None: ...
    def stream(self, rows: KeyRange) -> Any: ...
    def rows_of(self, streamed: Any, number: int) -> KeyRange: ...
    def apply_piece(
        self, streamed: Any, number: int, landed: memoryview, lr: float | None
    ) -> None: ...
    def end_stream(self, streamed: Any) -> None: ...
    def read(self, rows: KeyRange) -> memoryview: ...
    def is_encoded(self, rows: KeyRange) -> bool: ...
    def encode(self, rows: KeyRange) -> None: ...
    def read_encoded(self, rows: KeyRange, sizes: Sequence[int]) -> Sequence[memoryview]: ...
    def most_updates(self, rows: KeyRange) -> int: ...
    def read_state(self, rows: KeyRange) -> Sequence[memoryview]: ...
    def stage_state(self, rows: KeyRange) -> Any: ...
    def write_state(self, staged: Any, updates: int) -> None: ...


BytesNeeded = Callable[[TableSpec, KeyRange], int]
OpenStore = Callable[[TableSpec, KeyRange], ShardStore]
