"""A server's replica of a shard: its version, its place in the chain, and its clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.messages import Part
from shoal.protocol.server.shard_store import Staged
from shoal.protocol.views import FOREVER, Placement

NOT_BEGUN = -1


class Replica(msgspec.Struct, eq=False):
    """The state of one replica, without its rows.

    Invariant: `done <= version`; `closed` and `reached` only grow within a view.

    number:          the number of its shard store
    group:           the worker group whose clocks its table goes by
    version:         how often it has been changed here; NOT_BEGUN while it is syncing and has
                     received nothing yet
    done:            the version that all in-sync replicas after this one have
    synced_version:  the version of the syncing replica, if that is next in the chain
    closed:          no push of this clock or a later one is in its rows
    reached:         the clock of the chain's head, as known here
    ended:           all workers of this view have ended, or there are none
    at:              the position of the next chunk, if it is syncing
    rows, chain, tail:  copied from its placement, because every push reads them
    """

    number: int
    table: int
    placement: Placement
    group: str = ""
    version: int = 0
    done: int = 0
    synced_version: int = 0
    reached: int = 0
    closed: int = 0
    ended: bool = False
    at: int = 0
    rows: KeyRange = KeyRange(0, 0)
    chain: tuple[int, ...] = ()
    tail: int = -1

    def __post_init__(self) -> None:
        self.rows, self.chain = self.placement.rows, self.placement.chain
        self.tail = self.placement.tail

    # ------------------------------------------------------------------ reading

    @property
    def whole(self) -> Part:
        """The part that covers all of its rows."""
        return Part(self.table, self.rows.start, self.rows.stop)

    @property
    def clock(self) -> int:
        """The clock of the chain's head, as known here; FOREVER if all workers have ended."""
        return FOREVER if self.ended else self.reached

    def part(self, staged: Staged) -> Part:
        """Return the part that names a staged push's rows, for the next server."""
        keys = -1 if staged.keys is None else len(staged.keys)
        return Part(self.table, staged.rows.start, staged.rows.stop, keys)

    def open_part(self, rows: KeyRange) -> AppliedPart:
        """Return the part of a push that waits for its round."""
        return AppliedPart(Part(self.table, rows.start, rows.stop), self, -1)

    def syncs_on(self, rank: int) -> bool:
        """Return whether it is the syncing replica, on the server of that rank."""
        return self.placement.syncing_since > 0 and self.chain[-1] == rank

    # ------------------------------------------------------------------ writing

    def change(self) -> int:
        """Count a change of its rows; return the new version."""
        self.version += 1
        return self.version

    def close(self, clock: int) -> None:
        """Record that its rows will get no further push of a clock below `clock`."""
        self.closed = max(self.closed, clock)

    def reach(self, clock: int) -> None:
        """Record that the head has reached `clock`."""
        if clock < FOREVER:
            self.reached = max(self.reached, clock)
        else:
            self.ended = True

    def acknowledge(self, done: int, synced: int) -> bool:
        """Record the versions of the servers after this one; return whether they have grown."""
        before = self.done, self.synced_version
        self.done, self.synced_version = max(self.done, done), max(self.synced_version, synced)
        return before != (self.done, self.synced_version)

    def move(self, placement: Placement, rank: int) -> None:
        """Adopt a new placement of the same rows."""
        before, self.placement, self.ended = self.placement, placement, False
        self.__post_init__()
        if placement.tail == rank or placement.chain[-1] == rank:
            self.done = max(self.version, 0)
        if placement.syncing_since != before.syncing_since:
            self.synced_version = 0

    def begin_syncing(self) -> None:
        """Become a syncing replica, which receives its rows from the tail."""
        self.version, self.done = NOT_BEGUN, 0

    def sync_from(self, version: int, closed: int) -> None:
        """Record the version of the rows in the first chunk."""
        self.version = self.done = version
        self.closed = closed

    def received_to(self, at: int) -> None:
        """Record that its rows before position `at` have come in."""
        self.at = at


class AppliedPart(msgspec.Struct, eq=False):
    """A part of a push that is here, and the version of the replica that contains it.

    version:  -1 while its round is open
    """

    part: Part
    replica: Replica
    version: int

    @property
    def done(self) -> bool:
        """Whether all servers of the chain have it."""
        return 0 <= self.version <= self.replica.done

    def apply(self) -> None:
        """Record that its round has been applied to the replica."""
        self.version = self.replica.version

    def cut(self, cut: Cut) -> list[AppliedPart]:
        """Return the same part for each piece of its replica."""
        return [
            AppliedPart(self.part, piece, self.version) for piece in cut[self.replica.number][1]
        ]


Cut = Mapping[int, tuple[Replica, Sequence[Replica]]]  # by number: a replica and its pieces
