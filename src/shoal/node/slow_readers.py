"""SlowReaders: peers that have to read what they were sent before they are sent more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from shoal.protocol.views import NodeId
from shoal.transport import Connection

ROOM_BYTES = 32 << 20  # of unsent bytes at which there is room again
STUCK_S = 10.0  # without a byte read, after which a connection is closed: the peer may come again


class _Reader(msgspec.Struct, eq=False):
    """A peer's unsent bytes at the last look, and since when there were no fewer."""

    backlog: int
    since: float


class SlowReaders:
    """The peers whose room is awaited.

    Attributes:
        awaited: the peers.
        look_now: whether there is one that was not looked at yet.
    """

    def __init__(self) -> None:
        self.look_now = False
        self.awaited: dict[NodeId, _Reader] = {}

    def await_room(self, to: NodeId, now: float) -> None:
        self.awaited[to] = _Reader(0, now)
        self.look_now = True

    def look(
        self, peers: Mapping[NodeId, Connection], now: float
    ) -> Iterator[tuple[NodeId, Connection | None]]:
        """(peer, None) of each that has room or is gone; (peer, connection) of each that reads
        nothing."""
        self.look_now = False
        for to, reader in list(self.awaited.items()):
            connection = peers.get(to)
            backlog = connection.backlog if connection is not None else 0
            if backlog <= ROOM_BYTES:
                del self.awaited[to]
                yield to, None
            elif backlog < reader.backlog or not reader.backlog:
                reader.since = now
            elif now >= reader.since + STUCK_S:
                if connection is not None:
                    connection.time_out()
                yield to, connection
            reader.backlog = backlog
