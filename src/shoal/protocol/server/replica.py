"""A server's replica of a shard: its version, its place in the chain, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.messages import Part
from shoal.protocol.server.shard_store import Staged
from shoal.protocol.views import FOREVER, Placement

NOT_BEGUN = -1


class Replica(msgspec.Struct, eq=False):
    """Invariant: `done <= version`, and `closed`, `reached` only grow within a view.

    number:          of its store
    group:           of workers, whose clocks its table goes by
    version:         how often it has been changed here; NOT_BEGUN where it is syncing and has been
                     sent nothing yet
    done:            the version that all in-sync servers after this one have
    synced_version:  the version that the syncing replica has, where that is next
    closed:          no push of this clock or a later one is in its rows
    reached:         the clock of the chain's head, as far as it has come here
    ended:           all workers of this view have ended, or there are none
    at:              of a syncing replica: the position of the chunk that is to come next
    rows, chain, tail:  of its placement, where they are looked up at every push
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
        """Any push to its rows is in this."""
        return Part(self.table, self.rows.start, self.rows.stop)

    @property
    def clock(self) -> int:
        """How far its head has come, as known here."""
        return FOREVER if self.ended else self.reached

    def part(self, staged: Staged) -> Part:
        """The part of a push that names its rows, as the next servers are told."""
        keys = -1 if staged.keys is None else len(staged.keys)
        return Part(self.table, staged.rows.start, staged.rows.stop, keys)

    def open_part(self, rows: KeyRange) -> AppliedPart:
        """A part of a push that waits for its round."""
        return AppliedPart(Part(self.table, rows.start, rows.stop), self, -1)

    def syncs_on(self, rank: int) -> bool:
        """Whether it is the syncing replica, on the server of that rank."""
        return self.placement.syncing_since > 0 and self.chain[-1] == rank

    # ------------------------------------------------------------------ writing

    def change(self) -> int:
        """Its rows have been changed; returns the version that this made."""
        self.version += 1
        return self.version

    def close(self, clock: int) -> None:
        """All pushes below `clock` that it will ever have are in its rows."""
        self.closed = max(self.closed, clock)

    def reach(self, clock: int) -> None:
        """Its head has come to `clock`."""
        if clock < FOREVER:
            self.reached = max(self.reached, clock)
        else:
            self.ended = True

    def acknowledge(self, done: int, synced: int) -> bool:
        """How far the servers after this one have come; whether that is news."""
        before = self.done, self.synced_version
        self.done, self.synced_version = max(self.done, done), max(self.synced_version, synced)
        return before != (self.done, self.synced_version)

    def move(self, placement: Placement, rank: int) -> None:
        """A view says where its shard is now, of which this server has these rows already."""
        before, self.placement, self.ended = self.placement, placement, False
        self.__post_init__()
        if placement.tail == rank or placement.chain[-1] == rank:
            self.done = max(self.version, 0)
        if placement.syncing_since != before.syncing_since:
            self.synced_version = 0

    def begin_syncing(self) -> None:
        """Its rows are to come from the tail."""
        self.version, self.done = NOT_BEGUN, 0

    def sync_from(self, version: int, closed: int) -> None:
        """The first chunk has come, of rows at that version."""
        self.version = self.done = version
        self.closed = closed

    def received_to(self, at: int) -> None:
        """Its rows before position `at` have come."""
        self.at = at


class AppliedPart(msgspec.Struct, eq=False):
    """A part of a push that is here, and the version that it made of a replica.

    version: -1 while its round is open
    """

    part: Part
    replica: Replica
    version: int

    @property
    def done(self) -> bool:
        """Whether all servers of the chain have it."""
        return 0 <= self.version <= self.replica.done

    def apply(self) -> None:
        """It was in a round, which is in the replica's rows now."""
        self.version = self.replica.version

    def cut(self, cut: Cut) -> list[AppliedPart]:
        """The same in the pieces of its replica."""
        return [
            AppliedPart(self.part, piece, self.version) for piece in cut[self.replica.number][1]
        ]


Cut = Mapping[int, tuple[Replica, Sequence[Replica]]]  # by number: a replica, and its pieces
