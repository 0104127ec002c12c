"""The request log: which requests of a worker a server has seen, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.messages import Code, Part
from shoal.protocol.server.replica import AppliedPart, Cut, Replica

FragmentId = tuple[int, int]  # table, first row


class RequestLog:
    """The requests of one incarnation of a worker: a high-water mark, and entries above it.

    `forget_below` only grows, and requests below it are forgotten. So the log never has more than
    the WINDOW requests that may be in flight.

    outcomes:  the outcome of each request
    parts:     if shards have replicas: the parts of each push that are here
    streamed:  the applied fragments of each streamed push that is still coming in
    recheck:   requests that were seen before the chains changed; admitted again in part
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
        """Record the outcome of a request, as its worker is told."""
        self.outcomes[seq] = code

    def admit_again(self, seq: int) -> None:
        """Record that a request of an earlier view has come again in this one."""
        self.recheck.discard(seq)

    def add_parts(self, seq: int, parts: Sequence[AppliedPart]) -> None:
        """Record parts of a push that are applied here or wait in an open round."""
        if parts:
            self.parts.setdefault(seq, []).extend(parts)

    def close_round(self, seq: int, replica: Replica) -> None:
        """Record that the parts of a push that waited for a replica's round are applied."""
        for part in self.parts.get(seq, ()):
            if part.replica is replica and part.version < 0:
                part.apply()

    def stream(self, seq: int, fragment: FragmentId) -> bool:
        """Record a fragment that has come in; return whether it still has to be applied."""
        done = self.streamed.setdefault(seq, set())
        if fragment in done:
            return False
        done.add(fragment)
        return True

    def end_stream(self, seq: int) -> int:
        """End a streamed push; return how many of its fragments were applied."""
        return len(self.streamed.pop(seq))

    def forget(self, below: int) -> None:
        """Forget every request below `below`: its worker has resolved it or given it up."""
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
        """Recheck every known request that comes again, because chains have changed."""
        self.recheck = {*self.outcomes, *self.parts}

    def recut(self, cut: Cut) -> None:
        """Assign the parts of pushes to the pieces of replicas that were cut."""
        for seq, parts in self.parts.items():
            self.parts[seq] = [
                piece
                for each in parts
                for piece in (each.cut(cut) if each.replica.number in cut else [each])
            ]

    # ------------------------------------------------------------------ reading

    def covers(self, seq: int, part: Part) -> AppliedPart | None:
        """Return the applied part that covers a part of a push, or None."""
        for applied in self.parts.get(seq, ()):
            here = applied.part
            if here.table == part.table and here.start <= part.start and part.stop <= here.stop:
                return applied
        return None

    def complete(self, seq: int) -> bool:
        """Return whether all parts of a push that are here are on all servers of their chains."""
        return all(part.done for part in self.parts.get(seq, ()))

    def is_open(self, seq: int) -> bool:
        """Return whether a part of a push waits for its round."""
        return any(part.version < 0 for part in self.parts.get(seq, ()))
