"""Which requests of a worker a server has seen, and what became of each.

`RequestLog` is the only writer of that: others say what happened.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.messages import Code, Part
from shoal.protocol.server.replica import AppliedPart, Cut, Replica

FragmentId = tuple[int, int]  # table, first row


class RequestLog:
    """The requests of one incarnation of a worker: a high-water mark, and entries above it.

    outcomes:  what became of a request
    parts:     where rows have replicas, the parts of pushes that are here
    streamed:  of pushes that are applied while they come in, the fragments that are
    recheck:   requests of a view in which other servers had these rows

    `forget_below` only grows, and a request below it is forgotten, so there are never more than
    the WINDOW requests that may be in flight.
    """

    __slots__ = (
        "forget_below",
        "group",
        "incarnation",
        "outcomes",
        "parts",
        "rank",
        "recheck",
        "streamed",
    )

    def __init__(self, incarnation: int, rank: int, group: str = "") -> None:
        self.incarnation = incarnation
        self.rank = rank
        self.group = group
        self.forget_below = 0
        self.outcomes: dict[int, Code] = {}
        self.parts: dict[int, list[AppliedPart]] = {}
        self.streamed: dict[int, set[FragmentId]] = {}
        self.recheck: set[int] = set()

    # ------------------------------------------------------------------ what happened

    def record(self, seq: int, code: Code) -> None:
        """What has become of a request, as its worker is told."""
        self.outcomes[seq] = code

    def admit_again(self, seq: int) -> None:
        """A request of an earlier view has come again in this one."""
        self.recheck.discard(seq)

    def add_parts(self, seq: int, parts: Sequence[AppliedPart]) -> None:
        """Parts of a push are here: in rows, or in an open round."""
        if parts:
            self.parts.setdefault(seq, []).extend(parts)

    def close_round(self, seq: int, replica: Replica) -> None:
        """What waited of a push for its round is in a replica's rows."""
        for part in self.parts.get(seq, ()):
            if part.replica is replica and part.version < 0:
                part.apply()

    def stream(self, seq: int, fragment: FragmentId) -> bool:
        """A fragment of a push has come in; whether it is to be applied, and was not before."""
        done = self.streamed.setdefault(seq, set())
        if fragment in done:
            return False
        done.add(fragment)
        return True

    def end_stream(self, seq: int) -> int:
        """All of a push has come in; returns how many fragments were applied."""
        return len(self.streamed.pop(seq))

    def forget(self, below: int) -> None:
        """Forget every request below: its worker has resolved it, or given it up."""
        outcomes = self.outcomes
        if below - self.forget_below == 1:  # as in training, one request after the other
            outcomes.pop(self.forget_below, None)
        else:
            for seq in [seq for seq in outcomes if seq < below]:
                del outcomes[seq]
        if self.parts:
            self.parts = {seq: parts for seq, parts in self.parts.items() if seq >= below}
            self.recheck = {seq for seq in self.recheck if seq >= below}
        if self.streamed:
            self.streamed = {seq: done for seq, done in self.streamed.items() if seq >= below}
        self.forget_below = below

    # ------------------------------------------------------------------ views

    def placements_changed(self) -> None:
        """Others have some of the rows: whatever comes again is looked at whole."""
        self.recheck = {*self.outcomes, *self.parts}

    def recut(self, cut: Cut) -> None:
        """Replicas are in pieces: the parts of pushes are in those that are still here."""
        for seq, parts in self.parts.items():
            self.parts[seq] = [
                piece
                for each in parts
                for piece in (each.cut(cut) if each.replica.number in cut else [each])
            ]

    # ------------------------------------------------------------------ reading

    def covers(self, seq: int, part: Part) -> AppliedPart | None:
        """What came of a part of a push, where that part is here."""
        for applied in self.parts.get(seq, ()):
            here = applied.part
            if here.table == part.table and here.start <= part.start and part.stop <= here.stop:
                return applied
        return None

    def complete(self, seq: int) -> bool:
        """Whether all that is here of a push is on all servers of its chains."""
        return all(part.done for part in self.parts.get(seq, ()))

    def is_open(self, seq: int) -> bool:
        """Whether some of a push waits for its round."""
        return any(part.version < 0 for part in self.parts.get(seq, ()))
