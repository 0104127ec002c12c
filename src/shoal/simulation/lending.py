"""Buffers in flight: they belong to their sender until they are sent, as those of real sockets do.

A message reads its buffers when it arrives, which is as late as a transport may. So a sender that
changes a buffer that it has lent changes what arrives.
"""

from __future__ import annotations

import msgspec

from shoal.protocol.machine import Buffers, CopyOnWriteGuard
from shoal.protocol.views import NodeId


class Envelope(msgspec.Struct, eq=False):
    """A message in flight.

    breaks:  the number of breaks of the connection when the message was sent
    sent:    the payload as it was sent
    changed: whether the receiver has read other bytes than those that were sent
    """

    source: NodeId
    target: NodeId
    frame: bytes
    buffers: Buffers
    nbytes: int
    breaks: int
    sent: bytes = b""
    changed: bool = False

    def __post_init__(self) -> None:
        self.sent = self.payload()

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes of the payload as they are now."""
        found = self.payload()[start:stop]
        self.changed = self.changed or found != self.sent[start:stop]
        return found

    def detach(self) -> None:
        """Copy the buffers, so that they belong to the sender again."""
        self.buffers = (memoryview(self.payload()),)

    def payload(self) -> bytes:
        return b"".join(self.buffers)


class Lending:
    """The messages in flight whose buffers are lent."""

    def __init__(self) -> None:
        self._lent: dict[NodeId, list[Envelope]] = {}  # by source

    def lend(self, envelope: Envelope, guard: CopyOnWriteGuard | None) -> None:
        """Lend the buffers of a message until it has arrived, or their guard recalls them."""
        if not envelope.nbytes:
            return
        if guard is not None:
            guard.keep(envelope.detach)
        else:
            self._lent.setdefault(envelope.source, []).append(envelope)

    def arrived(self, envelope: Envelope) -> None:
        """Give back the buffers of a message that was read as a whole, or is lost."""
        lent = self._lent.get(envelope.source, [])
        if envelope in lent:
            lent.remove(envelope)

    def detach(self, source: NodeId, target: NodeId) -> None:
        """Copy the buffers of the messages from one node to another."""
        for envelope in [each for each in self._lent.get(source, ()) if each.target == target]:
            envelope.detach()
            self.arrived(envelope)

    def lends(self, source: NodeId, target: NodeId) -> bool:
        """Return whether a message from one node to another is under way with lent buffers."""
        return any(each.target == target for each in self._lent.get(source, ()))

    def gives_up(self, source: NodeId, target: NodeId) -> None:
        """Drop the messages from one node to another, which are lost."""
        self._lent[source] = [each for each in self._lent[source] if each.target != target]

    def died(self, source: NodeId) -> None:
        """Copy the buffers of a process that has ended: its kernel still sends the messages."""
        for envelope in self._lent.pop(source, ()):
            envelope.detach()
