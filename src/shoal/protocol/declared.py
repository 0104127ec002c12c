"""The tables of a run, in the order in which they were declared."""

from __future__ import annotations

from shoal.errors import Refused
from shoal.tables.spec import TableSpec


class Declared:
    """specs: each cut into its fragments, which are fixed from then on"""

    def __init__(self, specs: tuple[TableSpec, ...]) -> None:
        self.specs = specs

    def declare(self, spec: TableSpec, servers: int) -> bool:
        """Take a table in; False where it is there.

        Raises:
            Refused: another of its name is there, or there are no servers
            InvalidValue: it cannot be cut
        """
        if not servers:
            raise Refused(
                "this run has no servers to keep tables; start it with --servers 1 or more"
            )
        known = next((table for table in self.specs if table.name == spec.name), None)
        if known is None:
            self.specs = (*self.specs, spec.cut(servers))
            return True
        if not known.is_cut_of(spec):
            raise Refused(f"table {spec.name!r} exists with another specification")
        return False
