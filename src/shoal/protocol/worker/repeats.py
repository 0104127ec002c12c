"""How often an exchange may name the rows of a table: servers take memory each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from shoal.errors import InvalidValue
from shoal.protocol.limits import KEYS_MAX, REPEATS_MAX
from shoal.protocol.requests import PullOp, PushOp
from shoal.tables.spec import TableSpec


def check_repeats(ops: Sequence[PushOp | PullOp], spec_of: Callable[[str], TableSpec]) -> None:
    """Check that operations do not name the rows of a table more often than servers accept.

    Args:
        ops: the pushes of an exchange, or its pulls.
        spec_of: the function that returns the specification of a table.

    Raises:
        InvalidValue: they name the rows of a table more often.
    """
    if len(ops) <= REPEATS_MAX:
        return
    named = Counter[str]()
    for op in ops:
        named[op.table] += len(op.rows) if op.keys is None else len(op.keys)
    for table, count in named.items():
        spec = spec_of(table)
        if count > REPEATS_MAX * (KEYS_MAX if spec.hashed else spec.rows):
            raise InvalidValue(
                f"table {table!r}: one exchange names {count} of its rows, more than {REPEATS_MAX} "
                "times what it has; make several exchanges of it"
            )
