"""Who is in the next view: a pure decision that returns its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from shoal.errors import RangeLost
from shoal.protocol.messages import Frozen, NotJoined
from shoal.protocol.moving import Moves, next_arcs
from shoal.protocol.placement import Arcs, place
from shoal.protocol.record import SchedulerOptions
from shoal.protocol.views import FOREVER, Member, NodeId, Role, View
from shoal.tables.spec import TableSpec


def missing(members: Iterable[Member], expected: SchedulerOptions) -> str:
    """Who has not joined of those who make a cluster complete; empty when nobody is missing."""
    present = list(members)
    words = []
    for role, wanted in (("server", expected.servers), ("worker", expected.workers)):
        ranks = {m.rank for m in present if m.role == role}
        absent = wanted - len(ranks)
        if absent > 0:
            free = [f"{role}-{rank}" for rank in range(wanted) if rank not in ranks]
            words.append(f"{absent} of {wanted} {role}s ({', '.join(free[:absent])})")
    return " and ".join(words)


def join_refusal(
    role: Role, members: Iterable[Member], view: View | None, options: SchedulerOptions
) -> NotJoined | None:
    """Why somebody cannot join; None where they can. Servers may join a running job."""
    if role == "scheduler":
        return NotJoined("there is a scheduler already")
    limit = options.servers if role == "server" else options.workers
    elastic = options.elastic or (role == "server" and view is not None)
    if view is not None and not elastic:
        return NotJoined(f"too late: the run has started with all its {limit} {role}s")
    if sum(m.role == role for m in members) >= limit and not elastic:
        reason = f"too many: this run has {limit} {role}s and all of them have joined"
        return NotJoined(reason, full=True)
    return None


def range_lost(dead: Member, rows: Sequence[str], how: str) -> RangeLost:
    """The end of a run: a server has died, and nobody else has these rows."""
    where = f" on {dead.host}" if dead.host else ""
    all_of = ", ".join(rows) or "everything"
    return RangeLost(f"{dead.name}{where} died ({how}) with the last replica of {all_of}")


def closed_up(members: Iterable[Member]) -> dict[NodeId, Member]:
    """The members with ranks from 0 on, in their order.

    For the first view, before which nobody has used a rank: who died until then, and was replaced
    before that was noticed, has left a hole.
    """
    given: Counter[str] = Counter()
    closed = {}
    for member in sorted(members, key=lambda m: m.rank):
        closed[member.id] = msgspec.structs.replace(member, rank=given[member.role])
        given[member.role] += 1
    return closed


def decide_view(
    members: Mapping[NodeId, Member],
    previous: View | None,
    expected: SchedulerOptions,
    finished: Collection[NodeId] = (),
) -> tuple[bool, str]:
    """Whether a new view is due, and why (or why not). Who has finished is out of the next one."""
    absent = missing(members.values(), expected)
    if previous is None:
        return (False, f"waiting for {absent}") if absent else (True, "all have joined")
    before = {m.id: m.name for m in (*previous.servers, *previous.workers)}
    joined = sorted(m.name for m in members.values() if m.id not in before and m.id not in finished)
    left = sorted(name for node, name in before.items() if node not in members)
    if not joined and not left:
        return False, "nobody came or went"
    words = [f"{', '.join(joined)} joined"] if joined else []
    words += [f"{', '.join(left)} left"] if left else []
    return True, " and ".join(words)


IN_FLIGHT = 2  # clocks whose pushes a worker has not heard of, at most, before it goes on


def next_view(
    number: tuple[int, int],
    members: Iterable[Member],
    previous: View | None,
    tables: tuple[TableSpec, ...],
    promises: Sequence[Frozen],
    reason: str,
    moves: Moves = Moves(),  # noqa: B008 - frozen
    finished: Collection[NodeId] = (),
) -> View:
    """The view itself, from what every server promised.

    Servers are frozen between their promise and the view, so these clocks do not move:
    a worker that is gone counts in every round that *any* server saw it finish (it had been
    accepted by all of them before it told one, rule 5), and in every round that any server has
    closed, which may be gone as well, or have forgotten how far the worker was when it took over
    from one that is. Where nothing settles at the close its clock travels with its pushes, and what
    it did last may be on some servers only. A new worker's first round is the one after those. A
    worker that has finished counts in all rounds, and nobody waits for it any more.

    moves:     what may be done to chains
    finished:  of the members, those whose work is done
    """
    reached: dict[int, list[int]] = {}
    for promise in promises:
        for incarnation, clock in promise.clocks:
            reached.setdefault(incarnation, []).append(clock)
    closes = any(spec.consistency.settles == "close" for spec in tables)
    opened = [p.open_round for p in promises if p.open_round < FOREVER]
    replayed = max((p.replayed for p in promises), default=0)
    first_clock = max([*opened, replayed])
    behind = min(opened, default=0)
    known = {m.id: m for m in previous.workers} if previous else {}
    present = sorted(members, key=lambda m: (m.role, m.rank))
    alive = {m.id for m in present if m.id not in finished}
    workers = tuple(
        known.get(m.id) or msgspec.structs.replace(m, first_clock=first_clock)
        for m in present
        if m.role == "worker" and m.id in alive
    )
    gone = []
    for member in previous.workers if previous else ():
        if member.id in finished:
            gone.append(msgspec.structs.replace(member, last_clock=FOREVER))
        elif member.id not in alive:
            clocks = reached.get(member.incarnation, [member.first_clock])
            last = max(*clocks, first_clock)
            done = last if closes else max(min(clocks), last - IN_FLIGHT)
            gone.append(msgspec.structs.replace(member, last_clock=last, done_clock=done))
    servers = tuple(m for m in present if m.role == "server")
    arcs: tuple[Arcs, ...] = ()
    if previous is not None:
        arcs = next_arcs(previous, servers, moves, number[1])
    staying = [m for m in servers if m.id not in moves.leaving] or servers
    arcs += tuple(
        place(tables[at], staying, moves.replicas, at) for at in range(len(arcs), len(tables))
    )
    at_work = {rank for parts in arcs for arc in parts for rank in arc.chain}
    servers = tuple(m for m in servers if m.id not in moves.leaving or m.rank in at_work)
    earlier = [m for m in (previous.departed if previous else ()) if m.last_clock > behind]
    return View(
        term=number[0],
        number=number[1],
        servers=servers,
        workers=workers,
        tables=tables,
        arcs=arcs,
        departed=(*earlier, *gone),
        reason=reason,
        markers=previous.markers if previous is not None else (),
    )
