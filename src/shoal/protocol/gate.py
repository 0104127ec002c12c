"""The gate: which requests a server takes, asked on arrival and again when they are handled."""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.messages import NO_VIEW, SAME, NodeId, Part, Probe, Request, View, ViewId
from shoal.protocol.windows import WINDOW, Window
from shoal.tables.spec import TableSpec

Verdict = Literal[
    "fresh",
    "again",
    "seen",
    "settled",
    "frozen",
    "stale",
    "stranger",
    "too many",
    "early",
    "misfit",
]
TAKEN = ("fresh", "again")
FOOTPRINTS_KEPT = 256
KEYS_MAX = 1 << 22  # of a sparse table, in one part of a request

Parts = tuple[Part, ...]
Named = tuple[int, KeyRange, int]  # table, rows, number of keys or -1


class Footprint(msgspec.Struct, eq=False):
    """What a request's parts name on this server, all of which is here.

    streams: whether such a push may be applied while it comes in; None until that was looked at
    nbytes:  of the payload that its parts announce; -1 until that was looked at
    """

    pushes: tuple[Named, ...]
    pulls: tuple[Named, ...]
    streams: bool | None = None
    nbytes: int = -1


class Gate:
    """What a server knows of views, workers and rows, as far as that decides who may come in.

    view, promised:  the view that it is in, and the newest that it has promised to be in
    windows:         the view's workers, each with the requests of its that were seen
    held:            for each table, the rows that are here
    hashed:          for each table, whether those are hash slots, which any number of keys is in
    """

    def __init__(self) -> None:
        self.view: ViewId = NO_VIEW
        self.promised: ViewId = NO_VIEW
        self.windows: dict[NodeId, Window] = {}
        self.held: list[KeyRange] = []
        self.hashed: list[bool] = []
        self._footprints: dict[tuple[Parts, Parts], Footprint] = {}

    @property
    def frozen(self) -> bool:
        """Between the promise of a view and the view itself, nothing is applied or answered."""
        return self.promised > self.view

    def open(self, spec: TableSpec, held: KeyRange) -> None:
        """The next table is here, with these of its rows."""
        self.held.append(held)
        self.hashed.append(spec.hashed)

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
            if isinstance(request, Probe) or request.pushes or window.codes[seq] != "applied":
                return "seen"
            return "again" if self.footprint(request) else "misfit"  # its rows were lost
        if request.view != self.view:
            return "stale"
        if isinstance(request, Request):
            if seq - WINDOW >= window.settled_below and seq - WINDOW >= request.settled_below:
                return "too many"
            for earlier in request.follows:
                if earlier >= window.settled_below and earlier not in window.codes:
                    return "early"
            if not 0 < request.weight < inf or not self.footprint(request):
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

    def footprint(self, request: Request) -> Footprint | None:
        """What it names; None where some of that is not here. Training names the same for ever."""
        key = (request.pushes, request.pulls)
        found = self._footprints.get(key)
        if found is None:
            pushes, pulls = self._named(request.pushes), self._named(request.pulls, request.pushes)
            if pushes is None or pulls is None:
                return None
            if len(self._footprints) >= FOOTPRINTS_KEPT:
                self._footprints.clear()
            found = self._footprints[key] = Footprint(pushes, pulls)
        return found

    def _named(self, parts: Parts, pushed: Parts = ()) -> tuple[Named, ...] | None:
        for part in parts:
            if part.keys == SAME:
                there = [each for each in pushed if each.table == part.table]
                twins = [each for each in parts if each.table == part.table]
                if len(there) != 1 or len(twins) != 1 or there[0].keys < 0:
                    return None
                if (part.start, part.stop) != (there[0].start, there[0].stop):
                    return None
                part = there[0]
            if not 0 <= part.table < len(self.held):
                return None
            held, start, stop = self.held[part.table], part.start, part.stop
            if not held.start <= start <= stop <= held.stop:
                return None
            if self.hashed[part.table]:
                if not 0 <= part.keys <= KEYS_MAX:
                    return None
            elif part.keys > stop - start:
                return None
        return tuple((part.table, KeyRange(part.start, part.stop), part.keys) for part in parts)
