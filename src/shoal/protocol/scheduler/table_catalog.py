"""TableCatalog: the tables of a run, in the order of declaration."""

from __future__ import annotations

import msgspec

from shoal.errors import Refused
from shoal.protocol.namespaces import owner
from shoal.tables.spec import TableSpec, asp


class TableCatalog:
    """Attributes:
    specs: the tables; each has its fragment size, which never changes.
    """

    def __init__(self, specs: tuple[TableSpec, ...]) -> None:
        self.specs = specs

    def adopt(self, tables: tuple[TableSpec, ...]) -> None:
        """Put the tables of a view first, which an earlier scheduler may have made."""
        names = {spec.name for spec in tables}
        self.specs = (*tables, *(spec for spec in self.specs if spec.name not in names))

    def declare(self, spec: TableSpec, servers: int, group: str = "") -> bool:
        """Add a table that a worker of a group has declared; False if it is there already.

        Raises:
            Refused: another table has its name, the run has no servers, or the table would go by
                another group's clocks.
            InvalidValue: it cannot be cut.
        """
        if not servers:
            raise Refused(
                "this run has no servers to keep tables; start it with --servers 1 or more"
            )
        known = next((table for table in self.specs if table.name == spec.name), None)
        if known is None:
            self.specs = (*self.specs, _owned(spec, group).cut(servers))
            return True
        if not known.is_cut_of(spec):
            raise Refused(f"table {spec.name!r} exists with another specification")
        return False


def _owned(spec: TableSpec, group: str) -> TableSpec:
    """The table with the group by whose clocks it goes."""
    if not all(spec.name.split("/")):
        raise Refused(f"table {spec.name!r}: the parts between slashes must not be empty")
    of = owner(spec.name, group)
    if of != group and spec.consistency != asp():
        raise Refused(
            f"table {spec.name!r} is outside of the namespace {group!r}: it would go by the clocks "
            "of the first group, whose workers alone could push to it; declare it in that "
            "namespace, or as asp()"
        )
    return msgspec.structs.replace(spec, group=of)
