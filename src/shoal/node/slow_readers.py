"""SlowReaders: peers that have to read what they were sent before they are sent more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from shoal.protocol.views import NodeId
from shoal.transport import Connection

ROOM_BYTES = 32 << 20  # unsent bytes at which there is room again
STUCK_S = 10.0  # without a byte read, then the connection is closed: the peer may connect again


class _Reader(msgspec.Struct, eq=False):
    """A peer's unsent bytes at the last look, and the time since which they are not fewer."""

    backlog: int
    since: float


class SlowReaders:
    """The peers that have to read before they are sent more.

    Attributes:
        awaited: the peers.
        look_now: whether one of them was not looked at yet.
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
        """Yield (peer, None) for a peer with room, (peer, connection) for one that reads nothing.

        A peer without a connection has room.
        """
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
