"""Links: what a server has to say to the next one in its chains, and hears from the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Literal

import msgspec

from shoal.protocol.machine import Buffers, Effects, Send
from shoal.protocol.messages import Part, ReplicaHistory, Replicate, ReplicateAck, StateChunk
from shoal.protocol.server.replica import Replica
from shoal.protocol.server.shard_store import Loads
from shoal.protocol.views import NodeId, ViewId

Origin = tuple[int, int, int]  # incarnation, seq, forget_below
What = Literal["push", "write", "round", "accept", "call", "check"]


class ReplicationOptions(msgspec.Struct, frozen=True):
    """
    credit_bytes:  payload that may be under way to a server (one operation may exceed it alone);
                   and by which a learner may be behind before pushes wait for it
    resend_s:      what is not acknowledged is sent again after this; doubles up to resend_max_s
    chunk_bytes:   of a piece of rows for a server that learns them: requests wait behind one
    state_bytes_per_s:  of such pieces, for each arc
    drain_s:       how long nobody is let in while this server drains
    compare_s:     between two checks of some rows of this head's, with the other replicas
    compare_bytes:  of these rows
    """

    credit_bytes: int = 256 << 20
    resend_s: float = 0.5
    resend_max_s: float = 4.0
    chunk_bytes: int = 1 << 20
    state_bytes_per_s: float = 256e6
    drain_s: float = 2.0
    compare_s: float = 5.0
    compare_bytes: int = 1 << 20


class Change(msgspec.Struct, eq=False):
    """One part of what was done, with the version that it made of its copy."""

    replica: Replica
    part: Part
    version: int
    lr: float | None
    buffers: Buffers

    @property
    def done(self) -> bool:
        """Whether all servers that are to acknowledge it have it, and a learner."""
        replica = self.replica
        return replica.done >= self.version and (
            not replica.placement.syncing_since or replica.synced_version >= self.version
        )


class Operation(msgspec.Struct, eq=False):
    """What was done here at once, and is kept until it is done on all servers of its chains.

    path:     the ranks of the servers that have done it, from its head to this one
    clock:    of its head: all rounds below it are in this or in what was done before, of the arcs
              whose chains begin with that path
    release:  called when it is done
    pushed:   the clock of the push in it
    group:    of workers, whose clocks these are
    """

    what: What
    path: tuple[int, ...]
    clock: int
    changes: list[Change]
    origins: tuple[Origin, ...]
    release: Callable[[], None]
    round: int = -1
    weight: float = 0.0
    digest: int = 0
    pushed: int = -1
    group: str = ""

    @property
    def done(self) -> bool:
        return all(each.done for each in self.changes)

    def keep(self, changes: list[Change]) -> None:
        """A new view: of these replicas are still here, and their head says their clock anew."""
        self.changes, self.clock = changes, 0

    def message(
        self, changes: list[Change], view: ViewId, number: int, clock: int
    ) -> Replicate | StateChunk:
        """What is said of some of its changes."""
        return Replicate(
            view,
            number,
            self.path,
            clock,
            self.what,
            tuple(each.part for each in changes),
            tuple(each.version for each in changes),
            tuple(each.lr for each in changes),
            self.origins,
            self.round,
            self.weight,
            self.digest,
            self.pushed,
            self.group,
        )


class Delivery(Change, eq=False):
    """What changes no rows, and is done when the next server has it: when it is `there`."""

    there: bool = False

    @property
    def done(self) -> bool:
        return self.there


class Check(Delivery, eq=False):
    """Some rows, as they are at this version."""


class Chunk(Delivery, eq=False):
    """A piece of an arc's rows for the server that learns it.

    since:   the view in which that began
    """

    since: int = 0
    at: int = 0
    after: int = 0
    last: bool = False
    past: ReplicaHistory | None = None


class StateTransferOperation(Operation, eq=False):
    """The sending of a chunk: in one log with what is done to the rows, and in its order."""

    def message(self, changes: list[Change], view: ViewId, number: int, clock: int) -> StateChunk:
        [chunk] = changes
        assert isinstance(chunk, Chunk)
        return StateChunk(
            view,
            number,
            chunk.part,
            chunk.version,
            chunk.since,
            chunk.at,
            chunk.after,
            chunk.last,
            chunk.past,
        )


class Entry(msgspec.Struct, eq=False):
    """What one server is sent of an operation; without changes it is told a clock."""

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
    """What the next server has been sent, or is to be, in one view.

    there: all below this number has been done by that server
    told:  the latest clock of each head, by the path that it has come and the group of workers
    """

    def __init__(self, to: NodeId, view: ViewId, options: ReplicationOptions) -> None:
        self.to = to
        self.there = 0
        self.told: dict[tuple[tuple[int, ...], str], int] = {}
        self.again_at = inf
        self._view = view
        self._options = options
        self._number = 0
        self._entries: dict[int, Entry] = {}  # by number: what is not done on all servers
        self._unsent: deque[Entry] = deque()  # ... and waits for credit
        self._under_way = 0
        self.backlog = 0  # bytes that are not there
        self._wait_s = options.resend_s

    def say(
        self, operation: Operation, changes: list[Change], clock: int, now: float, out: Effects
    ) -> None:
        """Have these changes done there; or only the head's clock told, which is told with them."""
        of = operation.path, operation.group
        if not isinstance(operation, StateTransferOperation):
            clock = self.told[of] = max(clock, self.told.get(of, 0))
        entry = Entry(operation.message(changes, self._view, self._number, clock), changes)
        self._entries[self._number] = entry
        self._number += 1
        self.backlog += entry.nbytes
        self._unsent.append(entry)
        self._pump(now, out)

    def _pump(self, now: float, out: Effects) -> None:
        """Send what the credit allows, in order."""
        while self._unsent:
            entry, before = self._unsent[0], self._under_way
            nbytes = entry.nbytes
            if before and nbytes and before + nbytes > self._options.credit_bytes:
                return
            self._unsent.popleft()
            self._under_way += nbytes
            self.again_at = min(self.again_at, now + self._wait_s)
            out.append(Send(self.to, entry.message, entry.buffers))

    def heard(self, number: int) -> bool:
        """That server has done all below a number; whether that is news."""
        if not self.there < number <= self._number - len(self._unsent):
            return False
        for each in range(self.there, number):
            entry = self._entries[each]
            self._under_way -= entry.nbytes
            self.backlog -= entry.nbytes
            for change in entry.changes:
                if isinstance(change, Delivery):
                    change.there = True
        self.there = number
        return True

    def go_on(self, now: float, out: Effects) -> None:
        """After news: forget what is done, send what there is credit for now."""
        done = [n for n, each in self._entries.items() if n < self.there and each.done]
        for number in done:
            del self._entries[number]
        self._wait_s = self._options.resend_s
        self.again_at = now + self._wait_s if self._entries else inf
        self._pump(now, out)

    def again(self, now: float, out: Effects) -> None:
        """Nothing was heard for too long: send again what has not come there."""
        sent = list(self._entries.values())[: len(self._entries) - len(self._unsent)]
        self._wait_s = min(2 * self._wait_s, self._options.resend_max_s)
        self.again_at = now + self._wait_s if sent else inf
        lost = [each for each in sent if each.message.number >= self.there]
        out += [Send(self.to, each.message, each.buffers) for each in lost]
        if sent and not lost:  # it has all that was sent: ask how far the others are
            out.append(Send(self.to, Replicate(self._view, sent[0].message.number, (), 0)))

    def broken(self, again_at: float) -> None:
        """The connection is; send again once it is back."""
        if len(self._entries) > len(self._unsent):
            self.again_at = min(self.again_at, again_at)


class Incoming:
    """What comes from the server before, in one view.

    expected:  the number of the next
    early:     what has come before its turn
    said:      what it was told last
    """

    def __init__(self) -> None:
        self.expected = 0
        self.early: dict[int, tuple[Replicate | StateChunk, Loads]] = {}
        self.said: ReplicateAck | None = None

    def take(
        self, message: Replicate | StateChunk, loads: Loads
    ) -> list[tuple[Replicate | StateChunk, Loads]]:
        """A message has come; returns what is to be done now, in order."""
        self.early[message.number] = message, loads
        due = []
        while self.expected in self.early:
            due.append(self.early.pop(self.expected))
            self.expected += 1
        return due

    def say(self, ack: ReplicateAck) -> None:
        """That is what it is told now."""
        self.said = ack


def nothing() -> None:
    """Where what is sent is a copy, nothing is to be released."""
