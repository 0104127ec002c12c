"""Decoding: pushes that came encoded become rows in staging memory, before anything is applied.

And the other way round: rows that are pulled are encoded, once for all workers that pull them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from shoal.errors import AccessFailed, BadEncoding
from shoal.keys import KeyRange
from shoal.protocol.layout import Layout
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.server.state.shard_store import Staged


class Decoder:
    """Decodes staged pushes and encodes rows, outside of the loop if these are many bytes."""

    def __init__(self, long_work: LongWork) -> None:
        self._long_work = long_work

    def problem(self, loads: Iterable[tuple[Replica, Staged]]) -> str:
        """Decode those that are encoded; return why one of them cannot be, empty if all can.

        Args:
            loads: the staged pushes, with the replicas that they are for.
        """
        encoded = [each for each in loads if each[1].encoded is not None]
        nbytes = 0
        for replica, staged in encoded:
            count = len(staged.rows if staged.keys is None else staged.keys)
            nbytes += Layout(replica.shard.spec).nbytes(count)

        def decode() -> None:
            for replica, staged in encoded:
                replica.shard.decode(staged)

        try:
            self._long_work.do([replica for replica, _ in encoded], nbytes, decode)
        except BadEncoding as error:
            return error.message
        return ""

    def encode(self, wanted: Iterable[tuple[Replica, KeyRange]]) -> None:
        """Encode rows, so that `encoded` finds them; values that cannot be encoded fail there."""
        lacking = [each for each in wanted if not each[0].shard.is_encoded(each[1])]
        nbytes = sum(Layout(replica.shard.spec).nbytes(len(rows)) for replica, rows in lacking)

        def encode() -> None:
            for replica, rows in lacking:
                with suppress(AccessFailed):
                    replica.shard.encode(rows)

        if lacking:
            self._long_work.do([replica for replica, _ in lacking], nbytes, encode)

    def encoded(
        self, replica: Replica, rows: KeyRange, sizes: Sequence[int]
    ) -> Sequence[memoryview]:
        """Return rows as encoded fragments of these sizes.

        Raises:
            AccessFailed: the table's codec makes others of them, or a value cannot be encoded.
        """
        found = replica.shard.read_encoded(rows, sizes)
        if [view.nbytes for view in found] != [*sizes]:
            raise AccessFailed(
                f"table {replica.shard.spec.name!r}: rows {rows} do not have encoded fragments of "
                f"{sum(sizes)} bytes"
            )
        return found
