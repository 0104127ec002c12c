"""A server's replica of a shard: its rows, its version, its place in the chain, and its clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.layout import Layout, cut_evenly
from shoal.protocol.limits import KEYS_MAX, KEYS_TOLD_MAX
from shoal.protocol.messages.base import Part
from shoal.protocol.server.state.shard_store import RowStore, Staged
from shoal.protocol.views import FOREVER, Placement

NOT_BEGUN = -1
NONE = -1  # no server: a replica is the first or the last of its chain


class Replica(msgspec.Struct, eq=False):
    """One replica: its rows, and how far it has come.

    Invariant: `done <= version`; `closed` and `reached` only grow within a view.

    number:          the number of the replica on this server
    shard:           the rows
    rank:            the rank of this server
    group:           the worker group whose clocks its table goes by
    version:         the number of its changes; NOT_BEGUN while it is syncing and has received
                     nothing yet
    done:            the version that all in-sync replicas after this one have
    synced_version:  the version of the syncing replica, if that is next in the chain
    closed:          a clock: no push of it or of a later clock is in the rows
    reached:         the clock of the chain's head, as known here
    ended:           whether all workers of this view have ended, or there are none
    at:              the position of the next chunk, if it is syncing
    rows, chain, tail:  the same as in its placement; copies, because every push reads them
    previous, following:  the ranks of the servers before and after this one, or NONE
    """

    number: int
    table: int
    placement: Placement
    shard: RowStore  # typed as the kind of shard with the most methods
    rank: int = 0
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
    previous: int = NONE
    following: int = NONE

    def __post_init__(self) -> None:
        self.rows, self.chain = self.placement.rows, self.placement.chain
        self.tail = self.placement.tail
        beside = (NONE, *self.chain, NONE)
        at = beside.index(self.rank, 1)
        self.previous, self.following = beside[at - 1], beside[at + 1]

    # ------------------------------------------------------------------ reading

    @property
    def applied(self) -> AppliedPart:
        """The part that covers all rows, with the version that they have now."""
        return AppliedPart(self.part(self.rows, -1), self, self.version)

    @property
    def clock(self) -> int:
        """The clock of the chain's head, as known here; FOREVER if all workers have ended."""
        return FOREVER if self.ended else self.reached

    @property
    def alone(self) -> bool:
        """Whether no other server has the shard. Only staging and routing may ask this."""
        return len(self.chain) == 1

    def part(self, rows: KeyRange, keys: int, slots: int = 0) -> Part:
        """Return the part that names these rows, or `keys` keys among them."""
        return Part(self.table, rows.start, rows.stop, keys, slots)

    def part_of(self, staged: Staged, slots: int = 0) -> Part:
        """Return the part that names the rows of a staged push."""
        return self.part(staged.rows, -1 if staged.keys is None else len(staged.keys), slots)

    def open_part(self, rows: KeyRange) -> AppliedPart:
        """Return the part of a push that waits for its round."""
        return AppliedPart(self.part(rows, -1), self, -1)

    def pieces(self, staged: Staged, missing: list[KeyRange]) -> list[Staged]:
        """Return the parts of a staged push for the rows that do not have it."""
        if missing == [staged.rows]:
            return [staged]
        pieces = [self.shard.part_of(staged, rows) for rows in missing]
        self.shard.release(staged)
        return pieces

    def problem_of(
        self, part: Part, call: bool, told: bool, least: int = 0, write: bool = False
    ) -> str:
        """Return why a message cannot carry a part, before memory is taken; empty if it can.

        call: whether it is a call of a custom table's handler
        told: whether another replica sends it: the rows of a round, or its state
        least: the least number of keys; -1 if there may be no list of keys, as in a round without
            pushes to a sparse table
        write: whether it assigns rows, and may assign their slots as well
        """
        spec, rows = self.shard.spec, self.rows
        if not rows.start <= part.start <= part.stop <= rows.stop:
            return f"rows [{part.start}:{part.stop}) of table {spec.name!r}, where {rows} are here"
        if (spec.kind == "custom") != call:
            return f"table {spec.name!r} is {spec.kind}"
        if part.slots:
            dense = write and spec.kind == "dense" and part.keys == -1
            right = dense and part.slots == len(self.shard.slots)
            return "" if right else f"{part.slots} slots of table {spec.name!r}"
        if spec.kind == "dense":
            least, most = -1, part.stop - part.start
        else:
            most = KEYS_TOLD_MAX if told else KEYS_MAX
        if least <= part.keys <= most:
            return ""
        return f"{part.keys} keys of table {spec.name!r} in [{part.start}:{part.stop})"

    def encoded_problem(self, part: Part, sizes: Sequence[int], pushes: int) -> str:
        """Return why a message cannot carry encoded pushes of a part's rows; empty if it can."""
        if part.keys >= 0 or part.slots or not sizes or len(sizes) % pushes:
            return f"{pushes} pushes of {len(sizes)} encoded fragments, or of keys or slots"
        rows, each = KeyRange(part.start, part.stop), len(sizes) // pushes
        layout = Layout(self.shard.spec)
        problems = (layout.encoded_problem(rows, some) for some in cut_evenly(sizes, each))
        return next(filter(None, problems), "")

    @property
    def syncs(self) -> bool:
        """Whether it is the syncing replica of its chain."""
        return self.placement.syncing_since > 0 and self.following == NONE

    # ------------------------------------------------------------------ writing

    def count(self) -> int:
        """Count a change; return the new version."""
        self.version += 1
        if self.following == NONE:  # all servers of the chain have it
            self.done = self.synced_version = self.version
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

    def move(self, placement: Placement) -> None:
        """Adopt a new placement of the same rows."""
        before, self.placement, self.ended = self.placement, placement, False
        self.__post_init__()
        if placement.tail == self.rank or self.following == NONE:
            self.done = max(self.version, 0)
        if placement.syncing_since != before.syncing_since:
            self.synced_version = 0

    def begin_syncing(self) -> None:
        """Become a syncing replica, which receives its rows from the tail."""
        self.shard.sync(True)
        self.version, self.done = NOT_BEGUN, 0

    def sync_from(self, version: int, closed: int) -> None:
        """Record the version and the closed rounds of the rows in the first chunk."""
        self.version = self.done = version
        self.closed = closed

    def received_to(self, at: int) -> None:
        """Record that its rows before position `at` have come in."""
        self.at = at


class AppliedPart(msgspec.Struct, frozen=True, eq=False):
    """A part of a push that is here, and the version of the replica that contains it.

    version:  the version; -1 while its round is open
    """

    part: Part
    replica: Replica
    version: int

    def cut(self, cut: Cut) -> list[AppliedPart]:
        """Return the same part for each piece of its replica."""
        return [
            AppliedPart(self.part, piece, self.version) for piece in cut[self.replica.number][1]
        ]


Cut = Mapping[int, tuple[Replica, Sequence[Replica]]]  # by number: a replica and its pieces
