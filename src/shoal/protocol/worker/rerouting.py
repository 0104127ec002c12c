"""Rerouting: other servers have some of the rows now, and what is under way goes to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy

from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.messages import SAME, Part
from shoal.protocol.requests import Answer, Exchange, PullOp, PushOp
from shoal.protocol.views import Arc, View
from shoal.protocol.worker.in_flight import Flight, Leg
from shoal.protocol.worker.routing import LegPlan, Router, Share


def chained(view: View) -> bool:
    """Whether any rows have replicas."""
    return any(len(arc.full) > 1 for arcs in view.arcs for arc in arcs)


def moved(before: View, view: View) -> bool:
    """Whether rows that were known before have other servers now, or one is gone that had none."""
    gone = {member.id for member in before.servers} - {member.id for member in view.servers}
    arcs = zip(before.arcs, view.arcs, strict=False)
    return bool(gone) or any(_ends(old) != _ends(new) for old, new in arcs)


def joined(before: View, view: View) -> bool:
    """Whether there is a server that has not been told of any clock."""
    return not {m.id for m in view.servers} <= {m.id for m in before.servers}


def _ends(arcs: tuple[Arc, ...]) -> list[tuple[KeyRange, tuple[int, ...]]]:
    return [(arc.rows, arc.full) for arc in arcs]


def reroute(flight: Flight, before: View, router: Router, clock: int) -> list[Leg]:
    """Send what is not done to the servers that have its rows now, and the clock once more.

    Push, advance and pull that travelled together may not any more. Returns the legs of those that
    come after their push now.
    """
    parted: list[Leg] = []

    def cut(leg: Leg) -> list[Share]:
        shares = [part.share for part in leg.open_parts()]
        if leg.plan.pushed and (leg.plan.pulled or leg.advance >= 0) and not router.rides(leg.ask):
            parted.append(copy(leg))
            parted[-1].plan = _rest(leg, _cut(shares, before, router, "pulls", leg.advance >= 0))
            leg.plan = replace(leg.plan, pulled=(), advances=False)
            leg.advance = -1
            return _cut(shares, before, router, "pushes", False)
        return _cut(shares, before, router, "all", leg.advance >= 0)

    flight.reroute(cut, router.view_id)
    following = [
        flight.add(leg.request_id, leg.ask, leg.plan, leg.clock, leg.advance)
        for leg in parted
        if leg.request_id
    ]
    tell(flight, router, clock)
    return following


def _rest(leg: Leg, shares: list[Share]) -> LegPlan:
    return LegPlan((), leg.plan.pulled, False, leg.advance >= 0, shares)


def tell(flight: Flight, router: Router, clock: int) -> None:
    """Say the clock once more.

    A server that has come to take pushes lacks some that were accepted by the one before it: it
    takes this worker to be no further than it knows, until it is told again. Each clock as soon as
    the pushes below it are there: one may have to wait, at its server, until all have come to its
    own.
    """
    told = Exchange(advance=True)
    for each in sorted({*flight.unaccepted_clocks(), clock}):
        [plan] = router.legs(told)
        flight.add(0, told, plan, each, each)


def _cut(
    shares: Iterable[Share], before: View, router: Router, what: str, everybody: bool
) -> list[Share]:
    """What was cut for another view, by the servers of this one."""
    pushes: list[PushOp] = []
    pulls: list[PullOp] = []
    for share in shares:
        pushed, pulled = _asked(share, before)
        if what != "pulls":
            pushes += pushed
        if what != "pushes":
            pulls += pulled
    return router.cut(pushes, pulls, everybody)[1]


def _asked(share: Share, view: View) -> tuple[list[PushOp], list[PullOp]]:
    """A share as what a caller would ask."""
    sent = iter(share.buffers)
    outs: Iterator[memoryview | Answer] = iter(share.answers or share.outs)
    pushes: list[PushOp] = []
    pulls = []

    def keys_of(part: Part) -> memoryview | None:
        if part.keys < 0:
            return None
        return next(sent).cast("Q" if view.tables[part.table].hashed else "q")

    for part in share.pushes:
        keys = keys_of(part)
        name, rows = view.tables[part.table].name, KeyRange(part.start, part.stop)
        pushes.append(PushOp(name, rows, next(sent), keys))
    for part in share.pulls:
        name, rows = view.tables[part.table].name, KeyRange(part.start, part.stop)
        if part.keys == SAME:
            keys = next(op.keys for op in pushes if (op.table, op.rows) == (name, rows))
        else:
            keys = keys_of(part)
        out = next(outs, None)
        if out is not None:  # somebody waits for it
            pulls.append(PullOp(name, rows, out, keys))
    return pushes, pulls
