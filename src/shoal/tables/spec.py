"""What a table is: its keys, rows, dtype, initial values, access method and consistency.

A specification is plain data. It travels in views, so that every member that ever joins knows
every table, and it is importable without torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, prod
from typing import Literal

import msgspec

from shoal.errors import InvalidValue
from shoal.keys import SLOTS, KeyRange
from shoal.registry import unknown

ITEM_SIZES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
}
FRAGMENT_BYTES = 1 << 20  # fragments are cut to about this size, which stays in a core's cache
SLOTS_PER_FRAGMENT = 16  # of a sparse table, at most: fragments are what is handed over
ROWS_MOST = 1 << 40  # what `max_rows` may say
SMALLEST_FRAGMENT_BYTES = 4 << 10  # tables are spread over servers in pieces no smaller than this

Options = dict[str, float | int | bool | str]


def _require_one_of(kind: str, name: str, known: Collection[str]) -> None:
    """msgspec checks a Literal when it decodes, and not when a caller constructs."""
    if name not in known:
        raise unknown(kind, name, known)


class Init(msgspec.Struct, frozen=True, array_like=True):
    """Where rows come from: `zeros`, `constant(a)`, `uniform(a, b)` or `normal(mean a, std b)`.

    Random kinds are counter-based: a row is a pure function of (seed, key, column), so that
    replicas and re-created rows agree (DESIGN section 4, rule 7).
    """

    kind: Literal["zeros", "constant", "uniform", "normal"] = "zeros"
    a: float = 0.0
    b: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require_one_of("init", self.kind, ("zeros", "constant", "uniform", "normal"))
        for value in (self.a, self.b):
            if not isinstance(value, int | float):
                raise InvalidValue(f"init: a and b are numbers, not {value!r}")
        if not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 63:
            raise InvalidValue(f"init: the seed is a whole number of 64 bits, not {self.seed!r}")


class Access(msgspec.Struct, frozen=True, array_like=True):
    """A table's access method by name (`shoal list tables`) with its options."""

    name: str = "sum"
    options: Options = {}


class Consistency(msgspec.Struct, frozen=True, array_like=True):
    """When a read is admitted and a push is applied; `protocol.consistency` has the rules."""

    name: Literal["bsp", "ssp", "asp"] = "asp"
    staleness: int = 0
    apply_at: Literal["arrival", "round_end"] = "arrival"

    def __post_init__(self) -> None:
        _require_one_of("consistency", self.name, ("bsp", "ssp", "asp"))
        _require_one_of("apply_at", self.apply_at, ("arrival", "round_end"))
        if self.staleness < 0:
            raise InvalidValue(f"staleness is a number of clocks >= 0, not {self.staleness}")
        if self.name != "ssp" and self.staleness:
            raise InvalidValue(f"staleness belongs to ssp, not to {self.name}")
        if self.name == "bsp" and self.apply_at != "round_end":
            raise InvalidValue("bsp applies pushes at the end of their round: apply_at='round_end'")
        if self.name == "asp" and self.apply_at != "arrival":
            raise InvalidValue("asp has no rounds: it applies pushes on arrival")


def bsp() -> Consistency:
    """Bulk synchronous: every worker reads the same rows at the same clock."""
    return Consistency("bsp", 0, "round_end")


def ssp(staleness: int, apply_at: Literal["arrival", "round_end"] = "arrival") -> Consistency:
    """Stale synchronous (Ho et al. 2013): a reader is at most `staleness` clocks ahead."""
    return Consistency("ssp", staleness, apply_at)


def asp() -> Consistency:
    """Asynchronous (eventual): reads never wait."""
    return Consistency("asp", 0, "arrival")


_KINDS = {
    "name": str,
    "rows": int,
    "row_shape": tuple,
    "dtype": str,
    "init": Init,
    "access": Access,
    "consistency": Consistency,
    "fragment_rows": int,
    "kind": str,
    "nonfinite": str,
    "max_rows": int,
    "evict": str,
}


class TableSpec(msgspec.Struct, frozen=True, array_like=True):
    """A named collection of rows of `row_shape` values.

    A dense table has `rows` rows, and key k is row k. A sparse one has a row for every 64-bit key,
    made when the key is first named; its keys are spread over servers by their hash slots, and
    where a range of rows is meant elsewhere, it is a range of slots.

    rows:           number of keys; 0 for a sparse table
    row_shape:      () for a plain vector of elements
    dtype:          one of ITEM_SIZES
    merge:          how the pushes of one round are joined: `mean` is sum(w_i u_i) / sum(w_i)
    fragment_rows:  rows in a fragment, fixed for the table's life; 0 lets `cut` choose
    kind:           `dense`, `sparse`, or `custom`: a handler that `access` names, on each server,
                    says what its pushes and pulls mean (tables.handled); keys are placed as those
                    of a sparse table
    nonfinite:      what becomes of a push with a NaN or an infinity: `reject` refuses it with the
                    key, `zero` takes it as 0, `allow` looks at nothing
    max_rows:       of a sparse table, on all servers together; 0 for no bound. A key that is pushed
                    for the first time then takes the place of one that was pushed long ago
                    (evict='lru') or seldom ('lfu'), whose row begins anew with its next push
    saves:          of a custom table: whether its handler saves and loads, so that it can be on
                    several servers and go to others; `Client.create_table` finds out
    group:          of workers, whose clocks it goes by; the scheduler says it
    """

    name: str
    rows: int = 0
    row_shape: tuple[int, ...] = ()
    dtype: str = "float32"
    init: Init = Init()
    access: Access = Access()
    consistency: Consistency = Consistency()
    merge: Literal["mean", "sum"] = "mean"
    fragment_rows: int = 0
    kind: Literal["dense", "sparse", "custom"] = "dense"
    nonfinite: Literal["reject", "zero", "allow"] = "reject"
    max_rows: int = 0
    evict: Literal["lru", "lfu"] = "lru"
    saves: bool = False
    group: str = ""

    def __post_init__(self) -> None:
        for field, kind in _KINDS.items():
            value = getattr(self, field)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise InvalidValue(
                    f"a table's {field} is of type {kind.__name__}, not {type(value).__name__} "
                    f"({value!r})"
                )
        if not self.name or len(self.name) > 200:
            raise InvalidValue(f"a table's name has 1 to 200 characters, not {len(self.name)}")
        _require_one_of("kind", self.kind, ("dense", "sparse", "custom"))
        _require_one_of("nonfinite", self.nonfinite, ("reject", "zero", "allow"))
        _require_one_of("evict", self.evict, ("lru", "lfu"))
        if not 0 <= self.max_rows <= ROWS_MOST or (self.max_rows and not self.sparse):
            raise InvalidValue(
                f"table {self.name!r}: max_rows bounds a sparse table, and is 0 (no bound) to "
                f"{ROWS_MOST}, not {self.max_rows}"
            )
        if self.hashed and self.rows:
            raise InvalidValue(
                f"table {self.name!r} is {self.kind}: it has a row for any 64-bit key, not "
                f"{self.rows}"
            )
        if self.kind == "custom" and (self.row_shape or self.consistency != Consistency()):
            raise InvalidValue(
                f"table {self.name!r} is custom: it has no row_shape, and asp() consistency"
            )
        if self.kind == "dense" and self.rows < 1:
            raise InvalidValue(f"table {self.name!r} needs at least one row, not {self.rows}")
        if not all(isinstance(side, int) for side in self.row_shape):
            raise InvalidValue(
                f"table {self.name!r}: row_shape is of whole numbers, not {self.row_shape}"
            )
        if any(side < 1 for side in self.row_shape):
            raise InvalidValue(f"table {self.name!r}: row_shape {self.row_shape} has an empty side")
        _require_one_of("dtype", self.dtype, ITEM_SIZES)
        _require_one_of("merge", self.merge, ("mean", "sum"))
        if self.merge == "mean" and "int" in self.dtype and self.kind != "custom":
            raise InvalidValue(f"table {self.name!r}: {self.dtype} has no mean; use merge='sum'")
        if self.fragment_rows < 0:
            raise InvalidValue(f"table {self.name!r}: fragment_rows {self.fragment_rows} < 0")

    @property
    def width(self) -> int:
        """Elements in a row."""
        return prod(self.row_shape)

    @property
    def row_bytes(self) -> int:
        return self.width * ITEM_SIZES[self.dtype]

    @property
    def sparse(self) -> bool:
        return self.kind == "sparse"

    @property
    def hashed(self) -> bool:
        """Whether its keys are any 64 bits, and its ranges those of hash slots."""
        return self.kind != "dense"

    @property
    def nbytes(self) -> int:
        """Of a dense table's rows."""
        return self.rows * self.row_bytes

    @property
    def keys(self) -> KeyRange:
        """The rows of a dense table, the hash slots of a sparse one: what is cut and placed."""
        return KeyRange(0, SLOTS if self.hashed else self.rows)

    def factors(self, weights: Sequence[float]) -> list[float]:
        """What the pushes of one round are multiplied with before they are added up."""
        if self.merge == "sum":
            return [1] * len(weights)
        total = sum(weights)
        return [weight / total for weight in weights]

    def is_cut_of(self, spec: TableSpec) -> bool:
        """Whether it is that table, whatever its fragments' size and whoever has declared it."""
        same = msgspec.structs.replace(self, fragment_rows=spec.fragment_rows, group=spec.group)
        return same == spec

    def cut(self, servers: int) -> TableSpec:
        """This table with its fragment size fixed: about 1 MiB, less where servers share a table.

        No server gets more than twice its even share of the rows. Tables smaller than
        SMALLEST_FRAGMENT_BYTES times the servers are shared by fewer of them.
        """
        if self.fragment_rows:
            return self
        if self.hashed:
            size = max(1, min(SLOTS_PER_FRAGMENT, SLOTS // servers))
            return msgspec.structs.replace(self, fragment_rows=size)
        spread = min(servers, max(1, self.nbytes // SMALLEST_FRAGMENT_BYTES))
        pieces = min(self.rows, max(ceil(self.nbytes / FRAGMENT_BYTES), spread))
        pieces = ceil(pieces / spread) * spread if pieces < self.rows else pieces
        return msgspec.structs.replace(self, fragment_rows=ceil(self.rows / min(pieces, self.rows)))

    def fragments(self) -> list[KeyRange]:
        """The fragments, in key order. Only a table that was `cut` has them."""
        if not self.fragment_rows:
            raise InvalidValue(f"table {self.name!r} has not been cut into fragments yet")
        stop = self.keys.stop
        edges = range(0, stop, self.fragment_rows)
        return [KeyRange(start, min(start + self.fragment_rows, stop)) for start in edges]
