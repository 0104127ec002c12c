"""Which requests of a worker a server has seen: a high-water mark and a few entries above it."""

from __future__ import annotations

from shoal.protocol.messages import Code

WINDOW = 256  # requests that one worker may have in flight


class Window:
    """The requests of one incarnation of a worker, with what became of each.

    landed: of those that are applied while they come in, what is: (table, first row) of fragments

    `settled_below` only grows, and a request below it is forgotten, so there are never more than
    the WINDOW requests that may be in flight.
    """

    __slots__ = ("codes", "incarnation", "landed", "rank", "settled_below")

    def __init__(self, incarnation: int, rank: int) -> None:
        self.incarnation = incarnation
        self.rank = rank
        self.settled_below = 0
        self.codes: dict[int, Code] = {}
        self.landed: dict[int, set[tuple[int, int]]] = {}

    def settle(self, below: int) -> None:
        """Forget every request below: its worker has settled it, or given it up."""
        codes = self.codes
        if below - self.settled_below == 1:  # as in training, one request after the other
            codes.pop(self.settled_below, None)
        else:
            for seq in [seq for seq in codes if seq < below]:
                del codes[seq]
        if self.landed:
            self.landed = {seq: done for seq, done in self.landed.items() if seq >= below}
        self.settled_below = below
