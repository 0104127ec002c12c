"""Losses with a member: the rows of which no other server has a replica, or the run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.errors import RangeLost, RunAborted, ShoalError
from shoal.protocol.messages.membership import TOO_SLOW
from shoal.protocol.messages.reasons import some_of
from shoal.protocol.scheduler.rows.placement import lost
from shoal.protocol.views import Member, NodeId, View


def end_of(
    dead: Member, rows: Sequence[str] | None, how: str, on_worker_loss: str
) -> ShoalError | None:
    """Return why the run ends with the loss of a member; None if it goes on.

    What becomes of the member's process is decided in `protocol.supervision`.

    rows:            the rows that are lost with it; None if none are
    on_worker_loss:  the reaction of the run to the loss of a worker of the first group
    """
    if rows is not None:
        where = f" on {dead.host}" if dead.host else ""
        all_of = some_of(rows) or "everything"
        return RangeLost(f"{dead.name}{where} died ({how}) with the last replica of {all_of}")
    first = dead.role == "worker" and not dead.group
    if first and on_worker_loss == "stop" and how != TOO_SLOW:
        return RunAborted(
            f"{dead.name} is lost ({how}), and the run stops: --on-worker-loss says when it goes on"
        )
    return None


def lost_with(
    dead: Member, views: Sequence[View], servers: Collection[NodeId]
) -> list[list[str] | None]:
    """Return the rows that are lost with a server in each of these views, the current one first.

    An entry is None if no row is lost; it is empty if none is and the server was the last one.
    """
    if dead.role != "server" or not views:
        return [None]
    others = [node for node in servers if node != dead.id]
    found: list[list[str] | None] = []
    for view in views:
        rows = _lacking(view, others)
        elsewhere = others and (not rows or view.member(dead.id) is None)
        found.append(None if elsewhere else rows)
    return found


def bereft(view: View, servers: Collection[NodeId]) -> str:
    """Return why a run cannot go on with these servers (they lack rows, or none is left) or ""."""
    gone = some_of([m.name for m in view.servers if m.id not in servers])
    if rows := _lacking(view, servers):
        return f"{gone} died with the last replica of {some_of(rows)}"
    return "" if servers else f"{gone or 'the last server'} died or left, and there is no other"


def _lacking(view: View, servers: Collection[NodeId]) -> list[str]:
    """Return the rows that none of these servers has in a view, as text."""
    living = {m.rank for m in view.servers if m.id in servers}
    return lost(view.tables, view.placements, living)
