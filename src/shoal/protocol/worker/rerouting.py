"""Rerouting: sends requests under way to the servers that have their rows in a new view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.layout import Layout
from shoal.protocol.messages.base import SAME, Part
from shoal.protocol.requests import Answer, Exchange, PullOp, PushOp
from shoal.protocol.views import Placement, View
from shoal.protocol.worker.in_flight import InFlight, SubRequest
from shoal.protocol.worker.routing import Router
from shoal.protocol.worker.server_part import ServerPart, SubRequestPlan


def chained(view: View) -> bool:
    """Return whether any rows have several replicas."""
    return any(
        len(placement.in_sync) > 1 for placements in view.placements for placement in placements
    )


def moved(before: View, view: View) -> bool:
    """Return whether known shards have other in-sync servers now, or any server is gone."""
    gone = {member.id for member in before.servers} - {member.id for member in view.servers}
    placements = zip(before.placements, view.placements, strict=False)
    return bool(gone) or any(_ends(old) != _ends(new) for old, new in placements)


def joined(before: View, view: View) -> bool:
    """Return whether a server is new, and knows no clocks."""
    return not {m.id for m in view.servers} <= {m.id for m in before.servers}


def _ends(placements: tuple[Placement, ...]) -> list[tuple[KeyRange, tuple[int, ...]]]:
    return [(placement.rows, placement.in_sync) for placement in placements]


def reroute(in_flight: InFlight, before: View, router: Router, clock: int) -> list[SubRequest]:
    """Send all open sub-requests to the servers that have their rows now; repeat the clocks.

    A push, advance and pull in one message may have to be split. Return the sub-requests that now
    follow their push.
    """
    parted: list[SubRequest] = []

    def cut(sub_request: SubRequest) -> list[ServerPart]:
        server_parts = [part.server_part for part in sub_request.open_parts()]
        if (
            sub_request.plan.pushed
            and (sub_request.plan.pulled or sub_request.advance >= 0)
            and not router.rides(sub_request.ask)
        ):
            push = replace(sub_request.plan, pulled=(), advances=False)
            advances = sub_request.advance >= 0
            pulls = _cut(server_parts, before, router, "pulls", advances)
            rest = SubRequestPlan((), sub_request.plan.pulled, False, advances, pulls)
            parted.append(sub_request.split_off(push, rest))
            return _cut(server_parts, before, router, "pushes", False)
        return _cut(server_parts, before, router, "all", sub_request.advance >= 0)

    in_flight.reroute(cut, router.view_id)
    following = [
        in_flight.add(each.request_id, each.ask, each.plan, each.clock, each.advance)
        for each in parted
        if each.request_id
    ]
    tell(in_flight, router, clock)
    return following


def tell(in_flight: InFlight, router: Router, clock: int) -> None:
    """Repeat the worker's clocks.

    A new head lacks some pushes that its predecessor had accepted, and holds this worker's clock
    back until the worker repeats it. Each clock follows the pushes below it: a push may have to
    wait at its server until the clock has reached its own.
    """
    advance = Exchange(advance=True)
    for each in sorted({*in_flight.unaccepted_clocks(), clock}):
        [plan] = router.sub_requests(advance)
        in_flight.add(0, advance, plan, each, each)


def _cut(
    server_parts: Iterable[ServerPart], before: View, router: Router, what: str, everybody: bool
) -> list[ServerPart]:
    """Cut parts of an earlier view for the servers of the router's view."""
    pushes: list[PushOp] = []
    pulls: list[PullOp] = []
    for server_part in server_parts:
        pushed, pulled = _asked(server_part, before)
        if what != "pulls":
            pushes += pushed
        if what != "pushes":
            pulls += pulled
    return router.cut(pushes, pulls, everybody)[1]


def _asked(server_part: ServerPart, view: View) -> tuple[list[PushOp], list[PullOp]]:
    """Return a server's part as push and pull operations."""
    sent = iter(server_part.buffers)
    answers, outs = iter(server_part.answers), iter(server_part.outs)
    pushes: list[PushOp] = []
    pulls = []

    def keys_of(part: Part) -> memoryview | None:
        if part.keys < 0:
            return None
        return next(sent).cast("Q" if view.tables[part.table].hashed else "q")

    rates = server_part.rates or (None,) * len(server_part.pushes)
    sizes = server_part.sizes or ((),) * len(server_part.pushes)
    for part, lr, encoded in zip(server_part.pushes, rates, sizes, strict=True):
        keys = keys_of(part)
        name, rows = view.tables[part.table].name, KeyRange(part.start, part.stop)
        values, *slots = (next(sent) for _ in range(1 + part.slots))
        ordered = len(view.placements[part.table]) > 1
        pushes.append(PushOp(name, rows, values, keys, ordered, tuple(slots), lr, encoded))
    pulled = server_part.pulled or ((),) * len(server_part.pulls)
    for part, encoded in zip(server_part.pulls, pulled, strict=True):
        spec, rows = view.tables[part.table], KeyRange(part.start, part.stop)
        if part.keys == SAME:
            keys = next(op.keys for op in pushes if (op.table, op.rows) == (spec.name, rows))
        else:
            keys = keys_of(part)
        out: memoryview | list[memoryview] | Answer | None = next(answers, None)
        if out is None:
            count = len(rows) if keys is None else len(keys)
            nbytes = sum(encoded) * (1 if keys is None else count)
            out = _views_of(outs, nbytes or Layout(spec).nbytes(count))
        slots = [slot for _ in range(part.slots) if (slot := next(outs, None)) is not None]
        if out:  # the caller still waits for it
            ordered = len(view.placements[part.table]) > 1
            pulls.append(PullOp(spec.name, rows, out, keys, ordered, tuple(slots), sizes=encoded))
    return pushes, pulls


def _views_of(outs: Iterator[memoryview], nbytes: int) -> memoryview | list[memoryview]:
    """Take the views for `nbytes` bytes: one, or one for each row."""
    views: list[memoryview] = []
    while nbytes > 0 and (view := next(outs, None)) is not None:
        views.append(view)
        nbytes -= view.nbytes
    return views[0] if len(views) == 1 else views
