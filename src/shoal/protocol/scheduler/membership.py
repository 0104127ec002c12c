"""Membership: which members the next view has, as pure functions that return their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from shoal.protocol.messages.membership import Frozen, Join, NotJoined
from shoal.protocol.messages.reasons import some_of
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.scheduler.rows.placement import Placements, place
from shoal.protocol.scheduler.rows.rebalance import Moves, next_placements
from shoal.protocol.session import START_AGAIN
from shoal.protocol.views import FOREVER, Member, NodeId, View, valid_group
from shoal.tables.spec import TableSpec


def missing(members: Iterable[Member], expected: SchedulerOptions) -> str:
    """Return the members that an incomplete cluster lacks, as text; empty if it is complete."""
    present = [member for member in members if not member.group]
    words = []
    for role, wanted in (("server", expected.servers), ("worker", expected.workers)):
        ranks = {m.rank for m in present if m.role == role}
        absent = wanted - len(ranks)
        if absent > 0:
            free = [f"{role}-{rank}" for rank in range(wanted) if rank not in ranks]
            words.append(f"{absent} of {wanted} {role}s ({some_of(free[:absent])})")
    return " and ".join(words)


def join_refusal(
    sender: NodeId,
    asked: Join,
    group: Sequence[Member],
    view: View | None,
    options: SchedulerOptions,
) -> NotJoined | None:
    """Return why a node cannot join; None if it can.

    Servers may join a running job.

    Args:
        sender: the node.
        asked: the request of the node.
        group: the members of its role and worker group.
        view: the current view.
        options: the options of the scheduler.
    """
    role = asked.role
    if asked.node != sender:
        return NotJoined("the message names a member other than its sender")
    if role == "scheduler":
        return NotJoined("there is a scheduler already")
    newest = max(m.incarnation for m in (*view.servers, *view.workers)) if view else 0
    if 0 < asked.incarnation <= newest:
        # a view with its former incarnation may be under way to it, and it would adopt that view
        return NotJoined(START_AGAIN)
    if asked.group:
        return _not_in_group(asked, group, view, options)
    taken = any(member.rank == asked.rank for member in group)
    if role == "worker" and taken and options.on_worker_loss == "replace":
        # with another rank it would be another worker, whom nobody would replace
        reason = f"worker-{asked.rank} does not count as dead yet: its successor has to wait"
        return NotJoined(reason, full=True)
    limit = options.servers if role == "server" else options.workers
    elastic = options.elastic or (role == "server" and view is not None)
    if view is not None and not elastic:
        return NotJoined(f"too late: the run has started with all its {limit} {role}s")
    if len(group) >= limit and not elastic:
        reason = f"too many: this run has {limit} {role}s and all of them have joined"
        return NotJoined(reason, full=True)
    return None


def _not_in_group(
    asked: Join, group: Sequence[Member], view: View | None, options: SchedulerOptions
) -> NotJoined | None:
    """Return why a worker cannot join an attached group; None if it can."""
    name, size = asked.group, asked.group_size
    if asked.role != "worker" or not valid_group(name) or size < 1:
        return NotJoined(f"{asked.role}s of a group {name!r} of {size}: there can be none")
    others = {member.group_size for member in group} - {size}
    if others:
        return NotJoined(f"group {name!r} is of {others.pop()} workers, and not of {size}")
    begun = view is not None and any(view.member(member.id) for member in group)
    if len(group) >= size and not options.elastic:
        reason = f"too many: group {name!r} has {size} workers and all of them have joined"
        return NotJoined(reason, full=True)
    if begun and not options.elastic:
        return NotJoined(f"too late: group {name!r} has started with all its {size} workers")
    return None


def closed_up(members: Iterable[Member]) -> dict[NodeId, Member]:
    """Return the members with consecutive ranks from 0, in the order of their ranks.

    For the first view, before which no rank is in use: a member that died and was replaced before
    its death was detected has left a gap.
    """
    given: Counter[tuple[str, str]] = Counter()
    closed = {}
    for member in sorted(members, key=lambda m: m.rank):
        of = member.role, member.group
        closed[member.id] = msgspec.structs.replace(member, rank=given[of])
        given[of] += 1
    return closed


def gathering(
    members: Mapping[NodeId, Member], previous: View | None, finished: Collection[NodeId] = ()
) -> set[NodeId]:
    """Return the workers of attached groups that are not complete yet."""
    workers = previous.workers if previous else ()
    begun = {m.group for m in workers if m.id in members and m.id not in finished}
    here: dict[str, list[Member]] = {}
    for member in members.values():
        if member.group and member.group not in begun and member.id not in finished:
            here.setdefault(member.group, []).append(member)
    return {m.id for group in here.values() if len(group) < group[0].group_size for m in group}


def decide_view(
    members: Mapping[NodeId, Member],
    previous: View | None,
    expected: SchedulerOptions,
    finished: Collection[NodeId] = (),
) -> tuple[bool, str]:
    """Return whether a new view is due, and why or why not.

    Finished members are not in the new view.
    """
    absent = missing(members.values(), expected)
    if previous is None:
        return (False, f"waiting for {absent}") if absent else (True, "all have joined")
    before = {m.id: m.name for m in (*previous.servers, *previous.workers)}
    unready = {*finished, *gathering(members, previous, finished)}
    joined = sorted(m.name for m in members.values() if m.id not in before and m.id not in unready)
    left = sorted(name for node, name in before.items() if node not in members)
    done = _done(previous.workers, members, finished)
    changes = ((joined, "joined"), (left, "left"), (done, "finished"))
    words = [f"{some_of(names)} {what}" for names, what in changes if names]
    return (True, " and ".join(words)) if words else (False, "nobody came or went")


def _done(
    workers: Iterable[Member], members: Collection[NodeId], finished: Collection[NodeId]
) -> list[str]:
    """Return the groups that have finished while other groups go on, as text."""
    at_work = {m.group for m in workers if m.id in members and m.id not in finished}
    over = {m.group for m in workers if m.id in members} - at_work if at_work else set()
    return [f"group {group!r}" if group else "the first group" for group in sorted(over)]


def _placed_anew(
    tables: Sequence[TableSpec], known: int, servers: Sequence[Member], moves: Moves
) -> Iterator[Placements]:
    """Yield the placements of new tables, up to the first table with a shard that is not open."""
    for at in range(known, len(tables)):
        placements = place(tables[at], servers, moves.replicas, at)
        wanted = ((each.rows, rank) for each in placements for rank in each.chain)
        if moves.opened is not None and not all(
            (tables[at].name, rows, rank) in moves.opened for rows, rank in wanted
        ):
            return
        yield placements


IN_FLIGHT = 2  # the most clocks with unacknowledged pushes when a worker goes on


def next_view(
    number: tuple[int, int],
    members: Mapping[NodeId, Member],
    previous: View | None,
    tables: tuple[TableSpec, ...],
    promises: Sequence[Frozen],
    reason: str,
    moves: Moves = Moves(),  # noqa: B008 - frozen
    finished: Collection[NodeId] = (),
) -> View:
    """Return the next view, from the promises of all servers.

    Servers are frozen between their promise and the view, so that these clocks do not change. A
    dead worker counts in every round that *any* server saw it finish, because all servers had
    accepted its pushes before it reported the round to one. It also counts in every round that any
    server has closed: the server that saw the worker finish may be dead as well, or may not know
    the worker's clock after it took over. If no table applies pushes at the end of a round, clocks
    travel with pushes, and the worker's last ones may be on some servers only. A new worker's first
    round comes after those. A finished worker counts in all rounds, and no request waits for it.
    Each worker group has its own rounds.

    Args:
        number: the (term, number) of the view.
        members: the admitted members, by node.
        previous: the current view.
        tables: the table catalog, which begins with the tables of the current view.
        promises: the promises of all servers.
        reason: the reason for the view.
        moves: the wanted changes of chains.
        finished: the members whose work is done.
    """
    reached: dict[int, list[int]] = {}
    for promise in promises:
        for incarnation, clock in promise.clocks:
            reached.setdefault(incarnation, []).append(clock)
    here = previous.tables if previous is not None else ()
    closing = {spec.group for spec in here if spec.consistency.apply_at == "round_end"}

    def first_clock(group: str) -> int:
        standings = [promise.standing(group) for promise in promises]
        return max((max(each.open_round, each.replayed) for each in standings), default=0)

    def awaited(gone: Member) -> bool:  # some server holds pushes of its rounds
        standings = [promise.standing(gone.group) for promise in promises]
        behind = any(each.open_round < gone.last_clock for each in standings)
        return behind and any(each.waits for each in standings)

    before, departed = (previous.workers, previous.departed) if previous else ((), ())
    known = {m.id: m for m in before}

    def joins_at(group: str) -> int:
        """Return the first clock of a new worker in a group.

        Servers whose rows are new may not know the clocks of workers that died before they had
        reported them.
        """
        return max((first_clock(group), *(m.first_clock for m in before if m.group == group)))

    present = sorted(members.values(), key=lambda m: (m.role, m.group, m.rank))
    alive = members.keys() - {*finished, *gathering(members, previous, finished)}
    workers = tuple(
        known.get(m.id) or msgspec.structs.replace(m, first_clock=joins_at(m.group))
        for m in present
        if m.role == "worker" and m.id in alive
    )
    gone = []
    for member in before:
        if member.id in finished:
            gone.append(msgspec.structs.replace(member, last_clock=FOREVER))
        elif member.id not in alive:
            clocks = reached.get(member.incarnation, [member.first_clock])
            last = max(*clocks, first_clock(member.group))
            done = last if member.group in closing else max(min(clocks), last - IN_FLIGHT)
            gone.append(msgspec.structs.replace(member, last_clock=last, done_clock=done))
    servers = tuple(m for m in present if m.role == "server")
    placements: tuple[Placements, ...] = ()
    if previous is not None:
        placements = next_placements(previous, servers, moves, number[1])
    staying = [m for m in servers if m.id not in moves.leaving] or servers
    placements += tuple(_placed_anew(tables, len(placements), staying, moves))
    at_work = {rank for parts in placements for placement in parts for rank in placement.chain}
    heirs = {m.id for m in previous.servers} & {m.id for m in servers} if previous else set()
    kept = tuple(m for m in servers if m in staying or m.rank in at_work)
    if heirs and heirs.isdisjoint(m.id for m in kept):
        # one server of the view before has to adopt this one: all together may refuse it
        stays = next(m for m in servers if m.id in heirs)
        kept = tuple(m for m in servers if m in kept or m == stays)
    return View(
        term=number[0],
        number=number[1],
        servers=kept,
        workers=workers,
        tables=tables[: len(placements)],
        placements=placements,
        departed=(*filter(awaited, departed), *gone),
        reason=reason,
        checkpoint_clocks=previous.checkpoint_clocks if previous is not None else (),
    )
