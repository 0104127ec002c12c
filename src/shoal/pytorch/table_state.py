"""TableState: tables as `torch.distributed.checkpoint` sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from shoal.client.context import current
from shoal.errors import InvalidValue

if TYPE_CHECKING:
    from shoal.client.client import Client


class TableState:
    """The rows of dense tables, `Stateful`: for checkpoints that are made with torch's tools.

    What servers have besides rows (optimizer state, numbers of updates) and sparse tables are in
    Shoal's own checkpoints, not in these.

    tables:  names of dense tables
    client:  the one of `shoal.init()` by default

    Raises:
        InvalidValue: no such table, or one whose rows only servers can list

    >>> import torch.distributed.checkpoint as dcp                              # doctest: +SKIP
    >>> dcp.save({"tables": shoal.TableState("w")}, checkpoint_id="saved")      # doctest: +SKIP
    >>> dcp.load({"tables": shoal.TableState("w")}, checkpoint_id="saved")      # doctest: +SKIP
    """

    def __init__(self, *tables: str, client: Client | None = None) -> None:
        self._client = client if client is not None else current().client
        for name in tables:
            spec = self._client.table(name)
            if spec.kind != "dense":
                raise InvalidValue(
                    f"only servers know the rows of {spec.kind} table {name!r}: they write them "
                    "down with --checkpoint-every"
                )
        self._tables = tables

    def state_dict(self) -> dict[str, Tensor]:
        """Each table's rows, (rows, *row_shape), as they are read now."""
        return {name: self._client.blocking.pull(name) for name in self._tables}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Set the rows; all workers call it, the one of lowest rank writes, and all go on then.

        Raises:
            InvalidValue: rows of another shape or dtype
        """
        if self._client.rank == self._client.first_rank:
            written = [
                self._client.push(name, state_dict[name].contiguous(), assign=True)
                for name in self._tables
            ]
            for each in written:
                each.wait()
        self._client.barrier(f"loaded {', '.join(self._tables)}")
