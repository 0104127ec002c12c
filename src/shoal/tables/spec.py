"""Table specifications: keys, row shape, dtype, initial values, access method, consistency.

A specification is plain data. Views carry it, so that every member that joins knows every table,
and this module is importable without torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise, zip_longest
from math import ceil, prod
from typing import Annotated, Literal, get_args, get_origin

import msgspec

from shoal.errors import InvalidValue
from shoal.keys import SLOTS, KeyRange
from shoal.tables.consistency import Consistency
from shoal.tables.init import Init, require_one_of

ITEM_SIZES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
}
FRAGMENT_BYTES = 1 << 20  # target size of a fragment, which fits a core's cache
SLOTS_PER_FRAGMENT = 16  # at most, of a sparse table: a fragment is the unit of migration
ROWS_MOST = 1 << 40
ROW_BYTES_MOST, BYTES_MOST = 1 << 30, 1 << 44  # of a row, of a dense table
FRAGMENTS_MOST = 1 << 16  # of a table: servers keep a list of them
CODEC_CHARACTERS = 4096
NO_CODECS = ("", "none", "exact")  # of a span
_DELTA = "delta:"  # as `shoal.codecs.named` reads it, which needs numba
HEAD_BYTES = 16  # of an encoded difference: the names of what it leads from and to
SPANS_MOST = 1 << 16  # of a table: every view has them
SMALLEST_FRAGMENT_BYTES = 4 << 10  # smaller tables are spread over fewer servers

Options = dict[str, float | int | bool | str]


class Access(msgspec.Struct, frozen=True, array_like=True):
    """Access method of a table: the server-side optimizer (update rule) that applies pushes.

    Args:
        name: an access method that `shoal list tables` lists, or one of your own
            (`shoal.access_method`, `shoal.handler`).
        options: the method's options; missing ones take their defaults. A method with `lr` also
            takes `schedule` and the schedule's parameters.

    Example:
        >>> Access("adam", {"lr": 0.001, "schedule": "cosine", "schedule_total": 1000}).name
        'adam'
    """

    name: str = "sum"
    options: Options = {}

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name!r} ({options})" if options else repr(self.name)


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of a dense table that belong together, such as a parameter of a model.

    Args:
        start: the first row; the span ends where the next one begins.
        name: the name of the part, for people: at most 200 characters.
        codec: the codec of pushes to these rows in place of that of the table; "none" for none,
            "exact" for none, and none of the table's `server_codec` either.

    Example:
        >>> weights = Span(0, "0.weight (3, 5)"), Span(16, "0.bias (3,)")
        >>> TableSpec("params", 32, spans=weights).spans[1].start
        16
    """

    start: Annotated[int, msgspec.Meta(ge=0, lt=ROWS_MOST)]
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    codec: Annotated[str, msgspec.Meta(max_length=CODEC_CHARACTERS)] = ""


class TableSpec(msgspec.Struct, frozen=True, array_like=True):
    """Specification of a table: a named collection of rows of `row_shape` values.

    A dense table has `rows` rows; key k is row k. A sparse table has a row for any 64-bit key,
    created when the key is first used; its keys are spread over servers by hash slot. A custom
    table has a handler on each server, which defines what pushes and pulls mean.

    Args:
        name: the name, of 1 to 200 characters, unique in the run.
        rows: the number of rows of a dense table; 0 for other kinds.
        row_shape: the shape of a row; () for a vector of `rows` elements.
        dtype: one of "float16", "bfloat16", "float32", "float64", "int32", "int64" or "uint8".
        init: the initial values of rows.
        access: the access method (server-side optimizer) with its options.
        consistency: the consistency: `bsp()`, `ssp(s)` or `asp()`.
        merge: the rule that merges the pushes u_i of a round: "mean" for sum(w_i u_i) / sum(w_i),
            "sum" for sum(u_i), or element by element and without weights "median" or
            "trimmed_mean", on which one worker with wrong values has little influence. These two
            are for dense tables that apply pushes at the end of rounds.
        fragment_rows: the number of rows per fragment (of slots, if sparse), fixed for the table's
            life, in resumed runs as well; 0 for about 1 MiB.
        kind: the kind: "dense", "sparse" or "custom".
        nonfinite: the treatment of a push with a NaN or an infinity: "reject" refuses it, "zero"
            replaces the value by 0, "allow" does not check.
        max_rows: the bound on the rows of a sparse table over all servers; 0 for no bound. When the
            table is full a new key evicts another, whose row starts anew with its next push.
        evict: the row to evict: "lru", pushed least recently, or "lfu", pushed least frequently.
        saves: whether a custom table's handler saves and loads, so that the table can be
            replicated and migrated; set by `Client.create_table`.
        group: the worker group by whose clocks the table goes; set by the scheduler.
        trim: the share of n pushes, 0 < trim < 0.5, that "trimmed_mean" leaves out at either end:
            floor(trim n) of the least and as many of the greatest values.
        codec: the codec of pushes of whole rows to a dense table of floats, such as "int:8"
            (`shoal list codecs`), which makes them smaller; "" for none. A span may have another.
            For a sparse table the codec of pushed rows, one by one, which has no residual.
        server_codec: the codec of rows that workers pull while they train, such as "int:8"; ""
            for none. "delta:CODEC" encodes the difference to the rows that workers have, of a table
            under `bsp()`.
        spans: the parts of a dense table's rows that are updated apart, the first from row 0 on.
            The optimizer's step is the number of updates that a row's span has had: a push that
            leaves out a span leaves its rows, their state and their step as they are.
        key_lists: "cached" if servers keep lists of keys that workers have sent for a sparse table,
            so that a worker names a list by its digest when it pushes to it or pulls from it again.

    Raises:
        UnknownName: a name that is not among those listed above.
        InvalidValue: a value of the wrong type, out of its range, or that contradicts another.

    Example:
        >>> TableSpec("w", 1000, (16,), access=Access("adam", {"lr": 0.001})).nbytes
        64000
        >>> TableSpec("embedding", row_shape=(16,), kind="sparse").width
        16
    """

    name: str
    rows: int = 0
    row_shape: tuple[int, ...] = ()
    dtype: str = "float32"
    init: Init = Init()
    access: Access = Access()
    consistency: Consistency = Consistency()
    merge: Literal["mean", "sum", "median", "trimmed_mean"] = "mean"
    fragment_rows: int = 0
    kind: Literal["dense", "sparse", "custom"] = "dense"
    nonfinite: Literal["reject", "zero", "allow"] = "reject"
    max_rows: int = 0
    evict: Literal["lru", "lfu"] = "lru"
    saves: bool = False
    group: str = ""
    trim: float = 0.0
    spans: tuple[Span, ...] = ()
    codec: str = ""
    server_codec: str = ""
    key_lists: Literal["sent", "cached"] = "sent"

    def __post_init__(self) -> None:
        for field, kind in _TYPES.items():
            value = getattr(self, field)
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise InvalidValue(
                    f"a table's {field} has type {kind.__name__}, not {type(value).__name__} "
                    f"({value!r})"
                )
        if not self.name or len(self.name) > 200:
            raise InvalidValue(f"a table's name has 1 to 200 characters, not {len(self.name)}")
        for field, known in _CHOICES.items():
            require_one_of(field, getattr(self, field), known)
        if not 0 <= self.max_rows <= ROWS_MOST or (self.max_rows and not self.sparse):
            raise InvalidValue(
                f"table {self.name!r}: max_rows is for sparse tables, from 0 (no bound) to "
                f"{ROWS_MOST}; got {self.max_rows} for a {self.kind} table"
            )
        if self.hashed and self.rows:
            raise InvalidValue(
                f"table {self.name!r} is {self.kind}: it has a row for any 64-bit key; leave out "
                f"rows={self.rows}"
            )
        if self.kind == "custom" and (self.row_shape or self.consistency != Consistency()):
            raise InvalidValue(
                f"table {self.name!r} is custom: leave out row_shape and consistency (asp)"
            )
        if self.kind == "dense" and self.rows < 1:
            raise InvalidValue(f"table {self.name!r} needs at least one row, not {self.rows}")
        if not all(isinstance(side, int) for side in self.row_shape):
            raise InvalidValue(
                f"table {self.name!r}: row_shape is a tuple of integers, not {self.row_shape}"
            )
        if any(side < 1 for side in self.row_shape):
            raise InvalidValue(
                f"table {self.name!r}: the sides of row_shape are at least 1, not {self.row_shape}"
            )
        if self.merge != "sum" and "int" in self.dtype and self.kind != "custom":
            raise InvalidValue(f"table {self.name!r}: {self.dtype} has no mean; use merge='sum'")
        if self.robust and (self.kind != "dense" or self.consistency.apply_at != "round_end"):
            raise InvalidValue(
                f"table {self.name!r}: merge={self.merge!r} is for dense tables that apply pushes "
                f"at the end of rounds (bsp()), not for a {self.kind} table with {self.consistency}"
            )
        if not (0 < self.trim < 0.5 if self.merge == "trimmed_mean" else self.trim == 0):
            raise InvalidValue(
                f"table {self.name!r}: trim is a share between 0 and 0.5 with "
                f"merge='trimmed_mean', and 0 otherwise; got {self.trim} with {self.merge!r}"
            )
        if self.fragment_rows < 0:
            raise InvalidValue(
                f"table {self.name!r}: fragment_rows is at least 0, not {self.fragment_rows}"
            )
        self._check_size()
        if self.spans:
            self._check_spans()
        if self.encodes or self.server_codec:
            self._check_codecs()
        if self.key_lists == "cached" and not self.sparse:
            raise InvalidValue(
                f"table {self.name!r} is {self.kind}: key_lists='cached' is for sparse tables, "
                "whose requests name keys"
            )

    def _check_codecs(self) -> None:
        for codec in (self.codec, self.server_codec):
            if len(codec) > CODEC_CHARACTERS:
                raise InvalidValue(
                    f"table {self.name!r}: a codec has at most {CODEC_CHARACTERS} characters, not "
                    f"{len(codec)}"
                )
        if self.kind == "custom" or "int" in self.dtype:
            raise InvalidValue(
                f"table {self.name!r}: codecs are for dense and sparse tables of floats, not for a "
                f"{self.kind} table of {self.dtype}; leave out codec and server_codec"
            )
        if self.delta and self.kind != "dense":
            raise InvalidValue(
                f"table {self.name!r}: server_codec {self.server_codec!r} is for dense tables; "
                f"choose {self.server_codec.removeprefix(_DELTA)!r}"
            )
        if self.encodes and self.nonfinite == "allow":
            raise InvalidValue(
                f"table {self.name!r}: codec {self.codec!r} encodes finite values, so nonfinite is "
                "'reject' or 'zero', not 'allow'"
            )
        if self.delta and self.consistency.name != "bsp":
            raise InvalidValue(
                f"table {self.name!r}: server_codec {self.server_codec!r} encodes what a round has "
                f"changed, so it is for tables under bsp(), not {self.consistency.name}(); choose "
                f"{self.server_codec.removeprefix(_DELTA)!r} or a strategy such as sync"
            )

    def _check_spans(self) -> None:
        starts = [span.start for span in self.spans]
        ordered = all(one < other for one, other in pairwise(starts))
        if self.kind != "dense" or starts[0] or not ordered or starts[-1] >= self.rows:
            raise InvalidValue(
                f"table {self.name!r}: spans are for dense tables; the first begins at row 0, each "
                f"other one behind the one before, and the last before row {self.rows}"
            )
        if len(starts) > SPANS_MOST:
            raise InvalidValue(f"table {self.name!r} has {len(starts)} spans; at most {SPANS_MOST}")

    def _check_size(self) -> None:
        fragments = self.keys.stop / self.fragment_rows if self.fragment_rows else 0
        for what, size, most in (
            ("rows", self.rows, ROWS_MOST),
            ("bytes in a row", self.row_bytes, ROW_BYTES_MOST),
            ("bytes", self.nbytes, BYTES_MOST),
            ("fragments", ceil(fragments), FRAGMENTS_MOST),
        ):
            if size > most:
                raise InvalidValue(f"table {self.name!r} has {size} {what}; at most {most}")

    @property
    def width(self) -> int:
        """The number of elements per row."""
        return prod(self.row_shape)

    @property
    def row_bytes(self) -> int:
        """The number of bytes per row."""
        return self.width * ITEM_SIZES[self.dtype]

    @property
    def encodes(self) -> bool:
        """Whether any of its rows has a codec."""
        return bool(self.codec) or any(span.codec not in NO_CODECS for span in self.spans)

    @property
    def delta(self) -> bool:
        """Whether workers pull differences to the rows that they have."""
        return self.server_codec.startswith(_DELTA)

    @property
    def sparse(self) -> bool:
        """Whether the table is sparse."""
        return self.kind == "sparse"

    @property
    def hashed(self) -> bool:
        """Whether keys are 64-bit integers and ranges are ranges of hash slots."""
        return self.kind != "dense"

    @property
    def nbytes(self) -> int:
        """The number of bytes of a dense table's rows."""
        return self.rows * self.row_bytes

    @property
    def keys(self) -> KeyRange:
        """The range that is cut into shards: rows of a dense table, hash slots of other tables."""
        return KeyRange(0, SLOTS if self.hashed else self.rows)

    @property
    def robust(self) -> bool:
        """Whether one worker's wrong values have little influence on a merged round."""
        return self.merge in ("median", "trimmed_mean")

    def outliers(self, pushes: int) -> int:
        """Return the number of values that are left out at either end, of one value per push."""
        if self.merge == "median":
            return (pushes - 1) // 2
        return int(self.trim * pushes + 1e-9)

    def factors(self, weights: Sequence[float]) -> list[float]:
        """Return the factors of the pushes of a round in its merged update, which is their sum."""
        if self.merge == "sum":
            return [1] * len(weights)
        total = sum(weights)
        return [weight / total for weight in weights]

    def is_cut_of(self, spec: TableSpec) -> bool:
        """Return whether both specify the same table, apart from fragment size and group."""
        return not self.difference(spec)

    def difference(self, spec: TableSpec) -> str:
        """Return a text on the first field that differs from an earlier declaration, or "".

        Fragment size and group do not count. Spans come first, because they name the parameter.
        """
        if self.spans != spec.spans:
            number, one, other = next(
                (number, *pair)
                for number, pair in enumerate(zip_longest(self.spans, spec.spans))
                if pair[0] != pair[1]
            )
            return f"span {number} is {_told(one)}, and was declared as {_told(other)}"
        for name in self.__struct_fields__:
            one, other = getattr(self, name), getattr(spec, name)
            if one == other or name in ("fragment_rows", "group"):
                continue
            if name == "access" and one.name == other.name:
                mine, theirs = one.options, other.options
                name = next(n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n))
                one, other = mine.get(name), theirs.get(name)
            return f"{name} is {one}, and was declared as {other}"
        return ""

    def cut(self, servers: int) -> TableSpec:
        """Return this table with its fragment size fixed.

        A fragment has about 1 MiB: less in small tables, more above 64 GiB. No server gets more
        than twice its even share of the rows. A table smaller than SMALLEST_FRAGMENT_BYTES times
        the servers is spread over fewer servers.
        """
        if self.fragment_rows:
            return self
        if self.hashed:
            size = max(1, min(SLOTS_PER_FRAGMENT, SLOTS // servers))
            return msgspec.structs.replace(self, fragment_rows=size)
        spread = min(servers, max(1, self.nbytes // SMALLEST_FRAGMENT_BYTES))
        pieces = min(self.rows, max(ceil(self.nbytes / FRAGMENT_BYTES), spread))
        pieces = min(pieces, FRAGMENTS_MOST - servers)
        pieces = ceil(pieces / spread) * spread if pieces < self.rows else pieces
        return msgspec.structs.replace(self, fragment_rows=ceil(self.rows / min(pieces, self.rows)))

    def fragments_in(self, rows: KeyRange) -> list[KeyRange]:
        """Return the fragments that have some of these rows, cut to them.

        >>> spec = TableSpec("w", 8, (3,), fragment_rows=2)
        >>> [str(fragment) for fragment in spec.fragments_in(KeyRange(1, 5))]
        ['[1:2)', '[2:4)', '[4:5)']
        """
        size = self.fragment_rows
        edges = range((rows.start // size + 1) * size, rows.stop, size)
        return [KeyRange(*edge) for edge in pairwise([rows.start, *edges, rows.stop])]

    def fragments(self) -> list[KeyRange]:
        """Return the fragments in key order.

        Raises:
            InvalidValue: the fragment size is not fixed yet (`cut`).
        """
        if not self.fragment_rows:
            raise InvalidValue(f"table {self.name!r} has not been cut into fragments yet")
        stop = self.keys.stop
        edges = range(0, stop, self.fragment_rows)
        return [KeyRange(start, min(start + self.fragment_rows, stop)) for start in edges]


def _told(span: Span | None) -> str:
    if span is None:
        return "missing"
    return f"{span.name!r} from row {span.start}" + f" with codec {span.codec}" * bool(span.codec)


_ANNOTATIONS = {field.name: field.type for field in msgspec.structs.fields(TableSpec)}
_LITERALS = {name: get_args(a) for name, a in _ANNOTATIONS.items() if get_origin(a) is Literal}
_CHOICES: dict[str, Collection[str]] = {"dtype": ITEM_SIZES, **_LITERALS}
_TYPES = {
    name: str if name in _LITERALS else get_origin(annotation) or annotation
    for name, annotation in _ANNOTATIONS.items()
}
