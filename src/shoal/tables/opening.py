"""Opens shards, computes the memory that they need, and checks specifications.

Sparse tables are compiled by numba, whose import takes half a second: only they import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.tables.dense.methods import BUILT_IN, method_of
from shoal.tables.dense.shard import DenseShard
from shoal.tables.dense.user_shard import UserShard
from shoal.tables.encoding import Encoding
from shoal.tables.row_encoding import RowEncoding
from shoal.tables.sizes import BOUNDED_KEY_BYTES, INDEX_BYTES, dense_bytes, rows_held
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from shoal.tables.custom.shard import CustomShard
    from shoal.tables.sparse.shard import SparseShard


def open_shard(spec: TableSpec, held: KeyRange) -> DenseShard | SparseShard | CustomShard:
    """Create a server's shard of a table.

    Raises:
        UnknownName: as `checked`.
        InvalidValue: as `checked`, or the shard does not fit the server's memory.
    """
    try:
        if spec.kind == "dense":
            return (DenseShard if spec.access.name in BUILT_IN else UserShard)(spec, held)
        if spec.kind == "custom":
            from shoal.tables.custom.shard import CustomShard

            return CustomShard(spec, held)
        if spec.max_rows:
            from shoal.tables.sparse.bounded_shard import BoundedShard

            return BoundedShard(spec, held)
        from shoal.tables.sparse.shard import SparseShard

        return SparseShard(spec, held)
    except (MemoryError, OSError, OverflowError, RuntimeError, ValueError) as error:
        raise InvalidValue(f"table {spec.name!r} does not fit a server's memory: {error}") from None


def bytes_needed(spec: TableSpec, held: KeyRange) -> int:
    """Return the bytes that a shard takes, as far as they are known before it is opened.

    For a bounded table the optimizer state is not counted, which only the compiled method knows:
    its memory is not touched before rows come. A sparse table without a bound counts as one without
    rows, and a custom table, of which nothing is known, as 0.

    Raises:
        UnknownName, InvalidValue: as `open_shard`.
    """
    if spec.kind == "dense":
        return dense_bytes(spec, held, len(method_of(spec).slots()))
    if spec.max_rows:
        return rows_held(spec, held) * (spec.row_bytes + BOUNDED_KEY_BYTES)
    return INDEX_BYTES if spec.sparse else 0


def registered(spec: TableSpec) -> object:
    """Return the handler or `apply` function that this process registered for a table, or None."""
    name = spec.access.name
    if spec.kind == "custom":
        from shoal.tables.custom.shard import handlers

        return handlers.registered(name)
    if spec.sparse:
        from shoal.tables.sparse.optimizers import row_methods

        return getattr(row_methods.registered(name), "functions", {}).get("apply")
    return None


def checked(spec: TableSpec) -> TableSpec:
    """Check a specification as servers do, and return it; a custom one with `saves` set.

    Raises:
        UnknownName: no such access method or handler, or it has no such option.
        InvalidValue: an option out of its range, or a dtype that the method does not support.
    """
    if spec.kind == "dense":
        method_of(spec)
        if spec.encodes:
            Encoding(spec)
        if spec.server_codec:
            Encoding(spec, pulled=True)
        return spec
    if spec.kind == "custom":
        from shoal.tables.custom.shard import described

        return described(spec)
    from shoal.tables.sparse.optimizers import row_method_of

    row_method_of(spec)
    for pulled in [False] * bool(spec.codec) + [True] * bool(spec.server_codec):
        RowEncoding(spec, pulled)
    return spec
