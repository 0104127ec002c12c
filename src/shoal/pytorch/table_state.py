"""TableState: dense tables as state for `torch.distributed.checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from shoal.client.context import current
from shoal.errors import InvalidValue

if TYPE_CHECKING:
    from shoal.client.client import Client


class TableState:
    """Rows of dense tables as `Stateful`, for checkpoints made with torch's tools.

    These checkpoints have the rows only. Optimizer state, update counts and sparse tables are in
    Shoal's own checkpoints (`--checkpoint-every`).

    Args:
        tables: the names of dense tables.
        client: the client of `shoal.init()` by default.

    Raises:
        InvalidValue: no such table, or a table that is not dense.
        UsageError: no client, and `shoal.init()` was not called.

    Example:
        >>> import shoal
        >>> client = shoal.init().client
        >>> spec = client.create_table(shoal.TableSpec("docs/state", 2))
        >>> shoal.pytorch.TableState("docs/state").state_dict()
        {'docs/state': tensor([0., 0.])}

        With torch's tools:

        >>> import torch.distributed.checkpoint as dcp  # doctest: +SKIP
        >>> state = shoal.pytorch.TableState("w")  # doctest: +SKIP
        >>> dcp.save({"tables": state}, checkpoint_id="saved")  # doctest: +SKIP
    """

    def __init__(self, *tables: str, client: Client | None = None) -> None:
        self._client = client if client is not None else current().client
        for name in tables:
            spec = self._client.table(name)
            if spec.kind != "dense":
                raise InvalidValue(
                    f"table {name!r} is {spec.kind}: only its servers know its rows; checkpoint it "
                    "with --checkpoint-every"
                )
        self._tables = tables

    def state_dict(self) -> dict[str, Tensor]:
        """Pull every table.

        Returns:
            The rows of each table, (rows, *row_shape), by its name.
        """
        return {name: self._client.blocking.pull(name, exact=True) for name in self._tables}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Set the rows of every table.

        All workers call it; the worker of the lowest rank writes, and all wait until it has.

        Args:
            state_dict: the rows of each table, (rows, *row_shape), by its name.

        Raises:
            InvalidValue: rows of another shape or dtype.
        """
        if self._client.rank == self._client.first_rank:
            written = [
                self._client.push(name, state_dict[name].contiguous(), assign=True)
                for name in self._tables
            ]
            for each in written:
                each.wait()
        self._client.barrier(f"loaded {', '.join(self._tables)}")
