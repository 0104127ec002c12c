"""The gate: which requests a server takes, asked on arrival and again when they are handled."""

from __future__ import annotations

from math import inf
from typing import Literal

from shoal.keys import KeyRange
from shoal.protocol.messages import NO_VIEW, NodeId, Probe, Request, View, ViewId
from shoal.protocol.windows import WINDOW, Window

Verdict = Literal[
    "fresh", "again", "seen", "settled", "frozen", "stale", "stranger", "too many", "misfit"
]
TAKEN = ("fresh", "again")


class Gate:
    """What a server knows of views, workers and rows, as far as that decides who may come in.

    view, promised:  the view that it is in, and the newest that it has promised to be in
    windows:         the view's workers, each with the requests of its that were seen
    held:            for each table, the rows that are here
    """

    def __init__(self) -> None:
        self.view: ViewId = NO_VIEW
        self.promised: ViewId = NO_VIEW
        self.windows: dict[NodeId, Window] = {}
        self.held: list[KeyRange] = []

    @property
    def frozen(self) -> bool:
        """Between the promise of a view and the view itself, nothing is applied or answered."""
        return self.promised > self.view

    def promise(self, view: ViewId) -> None:
        """From now on nothing is done in an earlier view."""
        self.promised = max(self.promised, view)

    def adopt(self, view: View) -> None:
        """The view is here. Who is still in it keeps the window of its incarnation."""
        self.promise(view.id)
        self.view = view.id
        known = {window.incarnation: window for window in self.windows.values()}
        self.windows = {
            m.id: known.get(m.incarnation) or Window(m.incarnation, m.rank) for m in view.workers
        }

    def verdict(self, sender: NodeId, request: Request | Probe) -> Verdict:
        """Changes nothing: the payload may never come, or a copy of it may come first."""
        if self.promised > self.view:
            return "frozen"
        window = self.windows.get(sender)
        if window is None or window.incarnation != request.incarnation:
            return "stranger"
        seq = request.seq
        if seq < window.settled_below:
            return "settled"
        if seq in window.codes:
            lost = isinstance(request, Request) and request.pulls and not request.pushes
            return "again" if lost and window.codes[seq] == "applied" else "seen"
        if request.view != self.view:
            return "stale"
        if isinstance(request, Request):
            if seq - WINDOW >= window.settled_below and seq - WINDOW >= request.settled_below:
                return "too many"
            if not 0 < request.weight < inf or not self._fits(request):
                return "misfit"
        return "fresh"

    def still_fresh(self, request: Request, window: Window, view: ViewId) -> bool:
        """Whether what was fresh in `view` is so now: no new view, and no copy overtook it."""
        return (
            view == self.view
            and self.promised <= view
            and request.seq not in window.codes
            and request.seq >= window.settled_below
        )

    def _fits(self, request: Request) -> bool:
        """Whether it names rows that are here."""
        for parts in (request.pushes, request.pulls):
            for part in parts:
                if not 0 <= part.table < len(self.held):
                    return False
                held, start, stop = self.held[part.table], part.start, part.stop
                if not held.start <= start <= stop <= held.stop or part.keys > stop - start:
                    return False
        return True
