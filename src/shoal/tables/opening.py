"""What kind of table a specification is of: its shard, and its access method.

Sparse tables are compiled (numba takes half a second to import): only whoever has one pays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.tables.dense.shard import DenseShard
from shoal.tables.methods import method_of
from shoal.tables.spec import TableSpec

if TYPE_CHECKING:
    from shoal.tables.custom.shard import CustomShard
    from shoal.tables.sparse.shard import SparseShard


def open_shard(spec: TableSpec, held: KeyRange) -> DenseShard | SparseShard | CustomShard:
    """A server's part of a table.

    Raises:
        UnknownName, InvalidValue: as `check`
    """
    try:
        if spec.kind == "dense":
            return DenseShard(spec, held)
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


def checked(spec: TableSpec) -> TableSpec:
    """What servers are to open; what none could is refused.

    Raises:
        UnknownName: no such access method or handler, or it has no such option.
        InvalidValue: an option out of its range, or rows that the method cannot work on.
    """
    if spec.kind == "dense":
        method_of(spec)
        return spec
    if spec.kind == "custom":
        from shoal.tables.custom.shard import described

        return described(spec)
    from shoal.tables.sparse.optimizers import row_method_of

    row_method_of(spec)
    return spec
