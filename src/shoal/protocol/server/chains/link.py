"""Links: the ordered, acknowledged messages between two neighbours in a chain."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

import msgspec

from shoal.protocol.machine import Buffers, Effects, Send
from shoal.protocol.messages.replication import Replicate, ReplicateAck, StateChunk
from shoal.protocol.server.chains.operations import (
    Change,
    Delivery,
    Operation,
    StateTransferOperation,
)
from shoal.protocol.server.chains.round_trip import RoundTrip
from shoal.protocol.server.state.shard_store import Loads
from shoal.protocol.views import NodeId, ViewId


class ReplicationOptions(msgspec.Struct, frozen=True):
    """Options of chain replication.

    credit_bytes:       the most payload in flight to a server (a single operation may exceed it),
                        and the most that a syncing replica may lack before pushes wait for it
    resend_s:           the least time before an unacknowledged message is resent; see `RoundTrip`
    resend_max_s:       the longest such time
    chunk_bytes:        the size of a chunk for a syncing replica; requests wait behind one chunk
    state_bytes_per_s:  the rate of these chunks, for each shard
    compare_s:          the time between two comparisons of the scrubber
    compare_bytes:      the size of the rows in one comparison
    """

    credit_bytes: int = 256 << 20
    resend_s: float = 0.5
    resend_max_s: float = 4.0
    chunk_bytes: int = 1 << 20
    state_bytes_per_s: float = 256e6
    compare_s: float = 5.0
    compare_bytes: int = 1 << 20


class Entry(msgspec.Struct, eq=False):
    """The part of an operation that goes to one server; without changes it carries only a clock."""

    operation: Operation
    message: Replicate | StateChunk
    changes: list[Change]

    @property
    def done(self) -> bool:
        return all(each.done for each in self.changes)

    @property
    def buffers(self) -> Buffers:
        return tuple(buffer for each in self.changes for buffer in each.buffers)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)


class Link:
    """The sender's side of a link to the next server, in one view.

    there:      the number below which the next server has handled all messages
    announced:  the latest clock sent, by (path from the head, worker group)
    backlog:    the bytes that the next server has not acknowledged
    """

    def __init__(
        self, to: NodeId, view: ViewId, options: ReplicationOptions, round_trip: RoundTrip
    ) -> None:
        self.to = to
        self.there = 0
        self.announced: dict[tuple[tuple[int, ...], str], int] = {}
        self.again_at = inf
        self._view = view
        self._options = options
        self._number = 0
        self._entries: dict[int, Entry] = {}  # by number: not on all servers yet
        self._unsent: deque[Entry] = deque()  # entries that wait for credit
        self._under_way = 0
        self.backlog = 0
        self._round_trip = round_trip
        self._timed: tuple[int, float] | None = None  # a message's number, and when it was sent

    def say(
        self, operation: Operation, changes: list[Change], clock: int, now: float, out: Effects
    ) -> None:
        """Queue changes with the head's clock, or only the clock, and send what credit allows."""
        of = operation.path, operation.group
        if not isinstance(operation, StateTransferOperation):
            clock = self.announced[of] = max(clock, self.announced.get(of, 0))
        message = operation.message(changes, self._view, self._number, clock)
        entry = Entry(operation, message, changes)
        operation.sent()
        self._entries[self._number] = entry
        self._number += 1
        self.backlog += entry.nbytes
        self._unsent.append(entry)
        self._pump(now, out)

    def _pump(self, now: float, out: Effects) -> None:
        """Send what credit allows, in order."""
        while self._unsent:
            entry, before = self._unsent[0], self._under_way
            nbytes = entry.nbytes
            if before and nbytes and before + nbytes > self._options.credit_bytes:
                return
            self._unsent.popleft()
            self._under_way += nbytes
            self.again_at = min(self.again_at, now + self._round_trip.timeout_s)
            if self._timed is None:
                self._timed = entry.message.number, now
            out.append(Send(self.to, entry.message, entry.buffers))

    def heard(self, number: int, now: float) -> bool:
        """Record that all messages below a number are handled; return whether that is new."""
        if not self.there < number <= self._number - len(self._unsent):
            return False
        for each in range(self.there, number):
            entry = self._entries[each]
            entry.operation.read()
            self._under_way -= entry.nbytes
            self.backlog -= entry.nbytes
            for change in entry.changes:
                if isinstance(change, Delivery):
                    change.there = True
        self.there = number
        if self._timed is not None and number > self._timed[0]:
            self._round_trip.took(now - self._timed[1])
            self._timed = None
        return True

    def go_on(self, now: float, out: Effects) -> None:
        """Forget entries that all servers have, and send what credit now allows."""
        done = [n for n, each in self._entries.items() if n < self.there and each.done]
        for number in done:
            del self._entries[number]
        self.again_at = now + self._round_trip.timeout_s if self._entries else inf
        self._pump(now, out)

    def again(self, now: float, out: Effects) -> None:
        """Resend the messages that were not acknowledged in time."""
        sent = list(self._entries.values())[: len(self._entries) - len(self._unsent)]
        self._timed = None
        self._round_trip.timed_out()
        self.again_at = now + self._round_trip.timeout_s if sent else inf
        lost = [each for each in sent if each.message.number >= self.there]
        out += [Send(self.to, each.message, each.buffers) for each in lost]
        if sent and not lost:  # all have arrived: ask for the versions of the servers after it
            out.append(Send(self.to, Replicate(self._view, sent[0].message.number, (), 0)))

    def broken(self, again_at: float) -> None:
        """Resend at `again_at`, because the connection broke."""
        if len(self._entries) > len(self._unsent):
            self.again_at = min(self.again_at, again_at)


class Incoming:
    """The receiver's side of a link from the previous server, in one view.

    expected:  the number of the next message
    early:     the messages that came before their turn
    said:      the last acknowledgement
    """

    def __init__(self) -> None:
        self.expected = 0
        self.early: dict[int, tuple[Replicate | StateChunk, Loads]] = {}
        self.said: ReplicateAck | None = None

    def take(
        self, message: Replicate | StateChunk, loads: Loads
    ) -> Iterator[tuple[Replicate | StateChunk, Loads]]:
        """Take a message; yield the messages that are due now, in order."""
        self.early[message.number] = message, loads
        while self.expected in self.early:
            due = self.early.pop(self.expected)
            self.expected += 1
            yield due

    def say(self, ack: ReplicateAck) -> None:
        """Record the last acknowledgement."""
        self.said = ack
