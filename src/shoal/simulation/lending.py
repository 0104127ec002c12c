"""Buffers in flight: they belong to their sender until they are sent, as those of real sockets do.

A message reads its buffers when it arrives, which is as late as a transport may. So a sender that
changes a buffer that it has lent changes what arrives. A receiver that borrows a payload reads the
buffers in each of its events, until its loan ends: then there are NaNs in their place.
"""

from __future__ import annotations

import msgspec

from shoal.protocol.machine import Buffers, CopyOnWriteGuard, Sink
from shoal.protocol.views import NodeId

SCRIBBLED = b"\xff"  # NaNs, over memory that is its owner's again


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


class _Borrowed:
    """A payload that its receiver uses in the sender's memory: a copy that changes with it."""

    def __init__(self, envelope: Envelope, sink: Sink) -> None:
        self.envelope = envelope
        self.used = True
        self._memory = bytearray(envelope.read(0, envelope.nbytes))
        whole, start = memoryview(self._memory).toreadonly(), 0
        for number, view in enumerate(list(sink.views)):
            sink.borrow(number, whole[start : start + view.nbytes], self._end)
            start += view.nbytes

    def look(self) -> None:
        """Read the sender's memory as it is now."""
        self._memory[:] = self.envelope.payload()

    def _end(self) -> None:
        self._memory[:] = SCRIBBLED * len(self._memory)
        self.used = False


class Lending:
    """The messages in flight whose buffers are lent, and those that are borrowed."""

    def __init__(self) -> None:
        self._lent: dict[NodeId, list[Envelope]] = {}  # by source
        self._borrowed: dict[NodeId, list[_Borrowed]] = {}  # by receiver

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

    def borrow(self, envelope: Envelope, sink: Sink) -> None:
        """Let the receiver of a payload use the sender's memory, as long as it holds the loan."""
        self._borrowed.setdefault(envelope.target, []).append(_Borrowed(envelope, sink))

    def look(self, node: NodeId) -> None:
        """Let a node see what it borrows as it is now."""
        if node in self._borrowed:
            self._borrowed[node] = [each for each in self._borrowed[node] if each.used]
            for each in self._borrowed[node]:
                each.look()

    def withdraw(self, source: NodeId, target: NodeId | None = None) -> None:
        """Leave to others, or one of them, what they borrow, as it is now.

        A transport does so when the sender gets its buffers back too early, or their connection
        ends. The memory of a process that has ended stays as it is.
        """
        for node in [target] if target is not None else list(self._borrowed):
            for each in self._borrowed.get(node, ()):
                if each.used and each.envelope.source == source:
                    each.envelope.detach()

    def detach(self, source: NodeId, target: NodeId) -> None:
        """Copy the buffers of the messages from one node to another."""
        self.withdraw(source, target)
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
        self.withdraw(source)
