"""Which requests of a worker a server has seen: a high-water mark and a few entries above it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.messages import Code, Part
from shoal.protocol.server.shard_store import Staged
from shoal.protocol.views import Placement

NOT_BEGUN = -1


class Replica(msgspec.Struct, eq=False):
    """A server's copy of an arc: its shard of that number.

    group:     of workers, whose clocks its table goes by
    version:   how often it has been changed here; NOT_BEGUN before its learner was sent anything
    closed:    no round from this one on is in its rows
    at:        of a learner: the position of the piece that it has to be sent next
    done:      ... and on all servers after this one that have all of it
    synced_version:    ... and on its learner, where that is next
    reached:   the clock of the chain's head, as far as it has come here
    ended:     all workers of this view have ended, or there are none: others may come with the next
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

    @property
    def rows(self) -> KeyRange:
        return self.placement.rows

    @property
    def chain(self) -> tuple[int, ...]:
        return self.placement.chain

    @property
    def whole(self) -> Part:
        """Any push to its rows is in this."""
        return Part(self.table, self.rows.start, self.rows.stop)

    def part(self, staged: Staged) -> Part:
        """What of a push that has come in is for its rows, as others are to be told."""
        keys = -1 if staged.keys is None else len(staged.keys)
        return Part(self.table, staged.rows.start, staged.rows.stop, keys)

    def taking(self, rows: KeyRange) -> AppliedPart:
        """Of a part of a push that waits for its round."""
        return AppliedPart(Part(self.table, rows.start, rows.stop), self, -1)

    def syncs_on(self, rank: int) -> bool:
        """Whether that server is still being sent it."""
        return self.placement.syncing_since > 0 and self.chain[-1] == rank


class AppliedPart(msgspec.Struct, eq=False):
    """A part of a push that is here, and the version that it made of an arc's copy.

    version: -1 while its round is open
    """

    part: Part
    replica: Replica
    version: int

    @property
    def done(self) -> bool:
        return 0 <= self.version <= self.replica.done

    def cut(self, cut: Cut) -> list[AppliedPart]:
        """The same in the pieces of its copy."""
        return [
            AppliedPart(self.part, piece, self.version) for piece in cut[self.replica.number][1]
        ]


Cut = Mapping[int, tuple[Replica, Sequence[Replica]]]  # by number: a copy, and its pieces


class Window:
    """The requests of one incarnation of a worker, with what became of each.

    landed: of those that are applied while they come in, what is: (table, first row) of fragments

    admitted:  where rows have replicas, the parts of pushes that are here, and what came of each
    older:  the requests that came in a view in which other servers had these rows

    `forget_below` only grows, and a request below it is forgotten, so there are never more than
    the WINDOW requests that may be in flight.
    """

    __slots__ = (
        "codes",
        "forget_below",
        "group",
        "incarnation",
        "landed",
        "older",
        "parts",
        "rank"
    )  # fmt: skip

    def __init__(self, incarnation: int, rank: int, group: str = "") -> None:
        self.incarnation = incarnation
        self.rank = rank
        self.group = group
        self.forget_below = 0
        self.codes: dict[int, Code] = {}
        self.landed: dict[int, set[tuple[int, int]]] = {}
        self.parts: dict[int, list[AppliedPart]] = {}
        self.older: set[int] = set()

    def forget(self, below: int) -> None:
        """Forget every request below: its worker has settled it, or given it up."""
        codes = self.codes
        if below - self.forget_below == 1:  # as in training, one request after the other
            codes.pop(self.forget_below, None)
        else:
            for seq in [seq for seq in codes if seq < below]:
                del codes[seq]
        if self.parts:
            self.parts = {seq: parts for seq, parts in self.parts.items() if seq >= below}
            self.older = {seq for seq in self.older if seq >= below}
        if self.landed:
            self.landed = {seq: done for seq, done in self.landed.items() if seq >= below}
        self.forget_below = below

    def covers(self, seq: int, part: Part) -> AppliedPart | None:
        """What came of a part of a push, where that part is here."""
        for taking in self.parts.get(seq, ()):
            here = taking.part
            if here.table == part.table and here.start <= part.start and part.stop <= here.stop:
                return taking
        return None

    def complete(self, seq: int) -> bool:
        """Whether all that is here of a push is on all servers of its chains."""
        return all(taking.done for taking in self.parts.get(seq, ()))
