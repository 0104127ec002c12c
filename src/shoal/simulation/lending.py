"""Buffers in flight: they belong to their sender until they are sent, as those of real sockets do.

A message reads its buffers when it arrives, which is as late as a transport may. So what changes a
buffer that it has lent changes what arrives.
"""

from __future__ import annotations

import msgspec

from shoal.protocol.machine import Buffers, CopyOnWriteGuard
from shoal.protocol.views import NodeId


class Envelope(msgspec.Struct, eq=False):
    """A message in flight.

    breaks:  how often the connection had broken when the message was sent
    sent:    the payload as it was sent
    changed: whether its receiver has read anything else of it
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
        """Copy the buffers, which belong to the sender again."""
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
        """A message has been read as a whole, or is lost."""
        lent = self._lent.get(envelope.source, [])
        if envelope in lent:
            lent.remove(envelope)

    def detach(self, source: NodeId, target: NodeId) -> None:
        """Copy the buffers of a node's messages to another one."""
        for envelope in [each for each in self._lent.get(source, ()) if each.target == target]:
            envelope.detach()
            self.arrived(envelope)

    def lends(self, source: NodeId, target: NodeId) -> bool:
        """Return whether a message of a node to another one is under way with its buffers."""
        return any(each.target == target for each in self._lent.get(source, ()))

    def gives_up(self, source: NodeId, target: NodeId) -> None:
        """The messages of a node to another one are lost."""
        self._lent[source] = [each for each in self._lent[source] if each.target != target]

    def died(self, source: NodeId) -> None:
        """A process has ended: its kernel sends what it has of messages that are not sent."""
        for envelope in self._lent.pop(source, ()):
            envelope.detach()
