"""The request log: which requests of a worker a server has seen, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.keys import KeyRange
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.requests import Code
from shoal.protocol.server.state.replica import AppliedPart, Cut

REFUSED = ("refused", "round_closed")


class RequestLog:
    """The requests of one incarnation of a worker: a high-water mark, and entries above it.

    `forget_below` only grows, and requests below it are forgotten. So the log never has more than
    the WINDOW requests that may be in flight.

    outcomes:  the outcome of each request
    parts:     the parts of each push that are here
    recheck:   the requests that were seen before the chains changed; admitted again in part
    """

    __slots__ = (
        "forget_below",
        "group",
        "incarnation",
        "outcomes",
        "parts",
        "rank",
        "recheck",
    )

    def __init__(self, incarnation: int, rank: int, group: str = "") -> None:
        self.incarnation = incarnation
        self.rank = rank
        self.group = group
        self.forget_below = 0
        self.outcomes: dict[int, Code] = {}
        self.parts: dict[int, list[AppliedPart]] = {}
        self.recheck: set[int] = set()

    # ------------------------------------------------------------------ what happened

    def record(self, seq: int, code: Code) -> None:
        """Record the outcome of a request, as its worker is told."""
        self.outcomes[seq] = code

    def admit_again(self, seq: int) -> None:
        """Forget the outcome of a request that was seen before the chains changed."""
        if seq in self.recheck:
            self.recheck.remove(seq)
            self.outcomes.pop(seq, None)

    def wait(self, seq: int, parts: Sequence[AppliedPart]) -> None:
        """Record parts of a push that wait in an open round."""
        self.parts.setdefault(seq, []).extend(parts)

    def apply(self, seq: int, parts: Sequence[AppliedPart]) -> None:
        """Record parts of a push that are applied, and that no longer wait for a round."""
        if seq in self.parts:
            for part in parts:
                self.refuse(seq, part.replica.number)
            self.parts[seq] += parts
        elif parts:
            self.parts[seq] = [*parts]

    def finish(self, seq: int, parts: Sequence[AppliedPart]) -> None:
        """Record a request that is carried out, with the parts of its push; it is new here."""
        if parts:
            self.parts[seq] = [*parts]
        self.outcomes[seq] = "applied"

    def refuse(self, seq: int, number: int) -> None:
        """Record that the parts of a push to a replica wait for no round any more."""
        self.parts[seq] = [
            part
            for part in self.parts.get(seq, ())
            if part.version >= 0 or part.replica.number != number
        ]

    def land(self, seq: int, landed: AppliedPart) -> None:
        """Record a fragment of a streamed push that is applied."""
        parts, rows = self.parts.setdefault(seq, []), landed.part
        last = parts[-1] if parts else None
        if last and last.replica is landed.replica and last.part.stop == rows.start:
            joined = Part(rows.table, last.part.start, rows.stop)
            parts[-1] = AppliedPart(joined, landed.replica, landed.version)
        else:
            parts.append(landed)

    def forget(self, below: int) -> None:
        """Forget every request below `below`: its worker has resolved or abandoned it."""
        kept: dict[int, Any]
        for kept in (self.outcomes, self.parts):
            if below - self.forget_below == 1:  # as in training, one request after the other
                kept.pop(self.forget_below, None)
            else:
                for seq in [seq for seq in kept if seq < below]:
                    del kept[seq]
        if self.recheck:
            self.recheck = {seq for seq in self.recheck if seq >= below}
        self.forget_below = below

    # ------------------------------------------------------------------ views

    def placements_changed(self) -> None:
        """Mark all known requests to be rechecked if they come again: chains have changed.

        A refused request is not rechecked: its worker has its buffers back, and a copy of the
        request that is still in flight may have other values.
        """
        refused = {seq for seq, code in self.outcomes.items() if code in REFUSED}
        self.recheck = {*self.outcomes, *self.parts} - refused

    def recut(self, cut: Cut) -> None:
        """Assign the parts of pushes to the pieces of replicas that were cut."""
        for seq, parts in self.parts.items():
            self.parts[seq] = [
                piece
                for each in parts
                for piece in (each.cut(cut) if each.replica.number in cut else [each])
            ]

    # ------------------------------------------------------------------ reading

    def missing(self, seq: int, part: Part) -> list[KeyRange]:
        """Return the rows of a part of a push that are neither applied nor wait in a round."""
        missing = [KeyRange(part.start, part.stop)] if part.start < part.stop else []
        for applied in self.parts.get(seq, ()):
            here = applied.part
            if here.table == part.table:
                missing = [
                    rest
                    for rows in missing
                    for rest in rows.without(KeyRange(here.start, here.stop))
                ]
        return missing

    def complete(self, seq: int) -> bool:
        """Return whether all parts of a push that are here are on all servers of their chains."""
        return not self.unreplicated(seq)

    def unreplicated(self, seq: int) -> list[AppliedPart]:
        """Return the parts of a push that wait, or are not on all servers of their chains."""
        parts = self.parts.get(seq, ())
        return [part for part in parts if not 0 <= part.version <= part.replica.done]

    def is_open(self, seq: int) -> bool:
        """Return whether a part of a push waits for its round."""
        return any(part.version < 0 for part in self.parts.get(seq, ()))
