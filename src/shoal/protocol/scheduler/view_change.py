"""ViewChange: when the next view is due, and how it is agreed on.

A view change has three steps: `Freeze` to every server, a `Frozen` promise with the server's clocks
from each, then the view. Frozen servers apply nothing, so that the clocks in their promises do not
change, and the first and last clocks in the view are exact. Before a view that migrates shards
servers are drained (`Drain`).

A view is *offered* to the servers of the view before. When one of them has adopted it, it is the
current view: it is persisted, batches and places of members that have left are reassigned, and the
other members are told. Until then it may fail: servers that cannot reach the scheduler refuse the
view together, and continue in their own (`server.view_change.thaw`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

import msgspec

from shoal.errors import RangeLost, ShoalError
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.admin import CheckpointRequest
from shoal.protocol.messages.membership import (
    Drained,
    End,
    Frozen,
    NewView,
    NotDeclared,
    ShardsOpened,
)
from shoal.protocol.messages.reasons import Waiting, bounded, some_of
from shoal.protocol.scheduler.checkpoint_plan import CheckpointPlan
from shoal.protocol.scheduler.journal import JournalRecord
from shoal.protocol.scheduler.ledgers import LeaseLedgers
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.membership import decide_view, missing, next_view
from shoal.protocol.scheduler.notes import (
    BatchesReturned,
    ReplicasCrowded,
    ShardUnopened,
    ViewDropped,
    ViewImpossible,
    ViewMade,
    ViewOffered,
)
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.scheduler.proposal import Proposal
from shoal.protocol.scheduler.rows.losses import bereft, lost_with
from shoal.protocol.scheduler.rows.placement import crowded
from shoal.protocol.scheduler.rows.rebalance import Migration, Opened, unchanged
from shoal.protocol.scheduler.table_catalog import Openings, TableCatalog
from shoal.protocol.views import NO_VIEW, Member, NodeId, View, ViewId
from shoal.tables.spec import TableSpec

CUT_OFF = "no member is heard of: is the scheduler's host cut off?"  # a reason to wait
SOON_S = 0.5  # pause after a view that could not migrate, although no server was too slow
DRAIN_MOST = 4.0  # the longest time to drain, in `drain_s`: meanwhile all requests wait


class ViewChange:
    """Makes views.

    Args:
        record: the journal of the previous scheduler.
        options: the options of the scheduler.
        members: the members.
        persist: the function that writes the journal.
        end: the function that ends the run with an error.

    Attributes:
        view: the current view, which some member has adopted.
        offered: the next view, which no server is known to have adopted yet.
        reason: the reason why no view is being made.
        began_at: the time when the scheduler started.
    """

    def __init__(
        self,
        record: JournalRecord,
        options: SchedulerOptions,
        members: Members,
        persist: Callable[..., None],
        end: Callable[[ShoalError, float, Effects], None],
    ) -> None:
        self.view: View | None = record.view
        self.offered: View | None = record.offered
        self.term = record.term + 1
        self.reason = ""
        self.began_at = 0.0
        self.migration = Migration(record.left)
        self.ledgers = LeaseLedgers(record.ledgers)
        self._options = options
        self._members = members
        self._persist = persist
        self._end = end
        views = [view for view in (record.view, record.offered) if view is not None]
        self._number = max((view.number for view in views), default=0)
        self._tables = TableCatalog(
            record.view.tables if record.view else (), options.fragment_rows
        )
        self._openings = Openings(self.term, options.pause_s)
        self._proposal: Proposal | None = None
        self._offered_at = 0.0
        self._over = False
        self._still_until = inf  # no shard migrates before, because a migration failed
        self._drain_s = options.drain_s  # of the next migration
        self._crowded: list[str] = []
        self._checkpoints = CheckpointPlan(options.checkpoint_every_s, options.start_clock)

    def begin(self, now: float) -> None:
        """Record the time when the scheduler starts."""
        self.began_at = now

    def end(self) -> None:
        """Make no more views."""
        self._over, self._proposal, self.offered = True, None, None

    def wakes_at(self) -> float:
        waiting = self._proposal.again_at if self._proposal is not None else self._still_until
        return min(waiting, self._checkpoints.at, self._openings.wakes_at())

    def tick(self, now: float, out: Effects) -> None:
        """Repeat unanswered questions; stop draining that takes too long."""
        if self._checkpoints.is_due(now, bool(self._members.at_work(""))):
            self.propose("a checkpoint is due", now, out)
        if self._proposal is not None and now >= self._proposal.again_at:
            if self._proposal.draining and now >= self._proposal.since + self._proposal.drain_s:
                self.hurry(now, out)
            else:
                self._proposal.ask(self._members.servers(), now, out)
        elif now >= self._still_until:
            self._still_until = inf
            self.consider(now, out)
        if self.view is not None and not self._over and self._openings.tick(self.view, now, out):
            self.consider(now, out)

    def waits(self, now: float) -> list[Waiting]:
        """Return the waits of the scheduler for members before the next view."""
        members, waits = self._members.by_id, list[Waiting]()
        if self.view is None and not self._over:
            reason = f"waits for {missing(members.values(), self._options)}"
            waits = [Waiting("the scheduler", "the first view", reason, now - self.began_at)]
        if self._proposal is not None:
            waits += self._proposal.waits([members[n] for n in self._members.servers()], now)
        names = {node: member.name for node, member in members.items()}
        waits += self._openings.waits(names, now)
        if self.offered is not None:
            first = some_of([names[node] for node in self._first_to_adopt()])
            what = f"view {self.offered.term}.{self.offered.number} ({self.offered.reason})"
            reason = f"waits for one of {first} to adopt it"
            waits.append(Waiting("the scheduler", what, reason, now - self._offered_at))
        for node, seconds in self._members.detector.spared(now):
            reason, rows = CUT_OFF, self.bereaved(members[node])
            if rows is not None:
                reason = f"it is silent, and nobody else has {some_of(rows or ['its rows'])}"
            waits.append(Waiting("the scheduler", members[node].name, reason, seconds))
        return waits

    # ------------------------------------------------------------------ what happens

    def bereaved(self, dead: Member) -> list[str] | None:
        """Return the rows that are lost with a server; None for none, empty if it was the last.

        Rows that another server has in the current view or in the offered one may not be lost:
        this is looked at again when it is known which of the views was adopted.
        """
        lost_in = self._lost_with(dead)
        return None if any(rows is None for rows in lost_in) else lost_in[-1]

    def needs(self, silent: Member) -> bool:
        """Return whether rows may be lost with a member."""
        return any(rows is not None for rows in self._lost_with(silent))

    def _lost_with(self, dead: Member) -> list[list[str] | None]:
        views = [view for view in (self.view, self.offered) if view is not None]
        return lost_with(dead, views, self._members.servers())

    def hurry(self, now: float, out: Effects) -> None:
        """Go on without a member that is gone, which may have been the last to answer."""
        if self._proposal is not None:
            self._proposal.hurry()
            self._conclude(now, out)

    def promised(self, server: NodeId, promise: Drained | Frozen, now: float, out: Effects) -> None:
        """Record a server's answer, and go on with the view change."""
        if self._proposal is not None and self._proposal.take(server, promise):
            self._conclude(now, out)

    def refused(self, number: ViewId, now: float, out: Effects) -> None:
        """Propose another view in the place of one that a server has refused."""
        proposal = self._proposal
        if proposal is not None and number == proposal.number:
            self._proposal = None
            self.propose(proposal.reason or "a view was refused", now, out, proposal.drain_s)
        elif number in {each.id for each in (self.offered, self.view) if each is not None}:
            self.propose("a view was refused", now, out)

    def heartbeat(self, sender: Member, number: ViewId, now: float, out: Effects) -> None:
        """Note that a member has adopted a view; repeat the messages that it may lack."""
        if sender.role == "server":
            if self._proposal is not None:
                self._proposal.remind([sender.id], out)
            self._adopted(number, now, out)
        newest = self.offered if sender.id in self._first_to_adopt() else self.view
        if newest is not None and number < newest.id and sender.id not in self._members.finished:
            out.append(Send(sender.id, NewView(newest)))

    def _adopted(self, number: ViewId, now: float, out: Effects) -> None:
        """Make the offered view the current one, because a server has adopted it."""
        if self.offered is not None and number == self.offered.id:
            self._make(self.offered, now, out)
            self.consider(now, out)

    def _first_to_adopt(self) -> list[NodeId]:
        """Return the servers of the view before, which get an offered view and can refuse it."""
        if self.view is None or self.offered is None:
            return []
        here = [m.id for m in self.view.servers if m.id in self._members.by_id]
        return [node for node in here if self.offered.member(node) is not None]

    def behind(self, member: Member, adopted: ViewId) -> bool:
        """Return whether a view that a member is in is newer than the one it has adopted."""
        views = [view for view in (self.view, self.offered) if view is not None]
        return any(view.id > adopted and view.member(member.id) is not None for view in views)

    def save(self, sender: NodeId, asked: CheckpointRequest, now: float, out: Effects) -> None:
        """Plan a checkpoint at a clock that a later view names, or refuse the request."""
        at_work = self.view is not None and not self._over and bool(self._members.at_work(""))
        if self._checkpoints.ask(sender, asked, at_work, out):
            self.propose("a checkpoint was asked for", now, out)

    def declare(self, sender: Member, spec: TableSpec, now: float, out: Effects) -> None:
        """Plan a table for a later view, or refuse it."""
        try:
            self._tables.declare(spec, self._options.servers, sender, self._members.memory())
        except ShoalError as error:
            out.append(Send(sender.id, NotDeclared(spec.name, bounded(error.message))))
            return
        if self.view is not None and self.view.named(spec.name) is not None:
            out.append(Send(sender.id, NewView(self.view)))
        else:
            self.consider(now, out)

    def opened(self, server: Member, message: ShardsOpened, now: float, out: Effects) -> None:
        """Record which shards a server has opened for the next view, and which it could not."""
        for table, rows, reason in self._openings.heard(server, message, now):
            out.append(ShardUnopened(server.name, table, str(rows), reason))
            if self.view is None or self.view.named(table) is None:
                self._tables.drop(table, f"{server.name}: {reason}", out)
        self.consider(now, out)

    # ------------------------------------------------------------------ the next one

    def consider(self, now: float, out: Effects) -> None:
        """Begin to make a view, if one is due."""
        if self.offered is not None:
            if not self._first_to_adopt():
                self._go_on_without_adopters(self.offered, now, out)
            return
        due, reason = self._decide()
        if due:
            self.propose("", now, out)  # changes of membership are looked up when the view is made
        elif self.view is not None and self._proposal is None and not self._over:
            self._change_placements(self.view, now, out)
        elif reason != self.reason:
            out.append(ViewImpossible(reason))
        self.reason = reason

    def _go_on_without_adopters(self, offered: View, now: float, out: Effects) -> None:
        """Make or drop an offered view, because the servers that it was sent to have died.

        No living member has adopted it, as members are told when one of these servers has. It is
        dropped if its rows were lost with them: a server that it lacks may have them still.
        """
        if bereft(offered, self._members.servers()):
            self.offered = None
            out.append(ViewDropped(offered.id, offered.reason))
            self._persist(out)
        else:
            self._make(offered, now, out)
        self._end_if_bereft(now, out)
        if not self._over:
            self.consider(now, out)

    def _change_placements(self, view: View, now: float, out: Effects) -> None:
        """Ask servers to open new and moved shards; propose a view with the open ones."""
        number = self.term, self._number + 1
        self._openings.want(self._next(number, drained=True), view, now, out)
        planned = self._next(number, drained=True, opened=self._openings.opened)
        moves = not unchanged(planned.placements[: len(view.tables)], view.placements)
        new = [repr(spec.name) for spec in planned.tables[len(view.tables) :]]
        may_move = self._still_until == inf and self._openings.complete(view.tables)
        if may_move and (moves or self.migration.gone(planned)):
            self.propose("rows move", now, out, self._drain_s)
        elif new:
            self.propose(f"table {some_of(new)} was declared", now, out)

    def _decide(self) -> tuple[bool, str]:
        members = self._members
        return decide_view(members.by_id, self.view, self._options, members.finished)

    def propose(self, reason: str, now: float, out: Effects, drain_s: float = 0.0) -> None:
        """Begin a view change; one that is under way includes further changes.

        So members that repeat their requests cannot delay a view forever.
        """
        if self._proposal is None:
            self._number += 1
            self._persist(out, True)  # a full disk must not keep servers waiting for their view
            number, known = (self.term, self._number), self.view.id if self.view else NO_VIEW
            self._proposal = Proposal(number, reason, known, drain_s, self._options.resend_s, now)
        self._conclude(now, out)

    def _conclude(self, now: float, out: Effects) -> None:
        """Make the view once every server has promised; at once in a run without servers."""
        servers = self._members.servers()
        if self._proposal is None or not self._proposal.go_on(servers, now, out):
            return
        proposal, self._proposal = self._proposal, None
        reason, promises = proposal.reason, proposal.promises(servers)
        self._catch_up(promises, now, out)
        if self._over:
            return
        due, changes = self._decide()
        if self.view is None and not due:
            return  # a member was lost again before the first view
        if self.view is None:
            self._members.close_up()
        if due or not reason:
            reason = f"{reason}, {changes}" if reason else changes
        before = self.view.servers if self.view is not None else ()
        drained = all(promise.drained for promise in promises)
        drained = drained and all(member.id in self._members.by_id for member in before)
        if proposal.drain_s:
            self._plan_drain(proposal, drained, now)
        view = self._next(proposal.number, drained, promises, reason, self._openings.opened)
        here = zip(map(self._members.by_id.get, servers), promises, strict=True)
        promised = [(member, promise) for member, promise in here if member is not None]
        self._offer(self._checkpoints.mark(view, promised, now, out), now, out)
        self.consider(now, out)

    def _plan_drain(self, proposal: Proposal, drained: bool, now: float) -> None:
        """Decide when rows may move next, and how long servers may take to drain for it.

        Links may be too slow for the usual time, again and again: rows would never get back to
        all their replicas.
        """
        if drained:
            self._drain_s = self._options.drain_s
        elif now - proposal.since >= proposal.drain_s:
            self._still_until = now + self._options.pause_s
            self._drain_s = min(2 * proposal.drain_s, DRAIN_MOST * self._options.drain_s)
        else:
            self._still_until = now + min(self._options.pause_s, SOON_S)

    def _catch_up(self, promises: Sequence[Frozen], now: float, out: Effects) -> None:
        """Make the newest adopted view the current one, and drop an offered view.

        All servers have promised a newer view: the offered one will not be adopted any more.
        """
        adopted = [promise.adopted for promise in promises if promise.adopted is not None]
        newest = max(adopted, key=lambda view: view.id, default=None)
        dropped, self.offered = self.offered, None
        if newest is not None and (self.view is None or newest.id > self.view.id):
            self._make(newest, now, out)
        elif dropped is not None:
            out.append(ViewDropped(dropped.id, dropped.reason))
        self._end_if_bereft(now, out)  # a server died that the dropped view did not need

    def _end_if_bereft(self, now: float, out: Effects) -> None:
        """End the run if no server has some rows of the current view, or if none is left."""
        if why := self.lost_without(()):
            self._end(RangeLost(why), now, out)

    def lost_without(self, nodes: Collection[NodeId]) -> str:
        """Return why the run cannot go on if these servers are gone too; empty if it can."""
        if self.view is None or not self._options.servers or (nodes and not self.view.tables):
            return ""
        return bereft(self.view, [node for node in self._members.servers() if node not in nodes])

    def _offer(self, view: View, now: float, out: Effects) -> None:
        """Send a view to the servers of the current view; the first that adopts it decides."""
        self.offered, self._offered_at = view, now
        out.extend(self.ledgers.departing(view))
        first = self._first_to_adopt()
        if not first:
            self._make(view, now, out)
            return
        self._persist(out)
        before = self.view.id if self.view is not None else NO_VIEW
        out.append(ViewOffered(view.id, before))
        out.extend(Send(node, NewView(view)) for node in first)

    def _make(self, view: View, now: float, out: Effects) -> None:
        """Make a view the current one, and tell all members."""
        told = self._first_to_adopt() if self.offered is view else ()
        self.view, self.offered = view, None
        self._tables.adopt(view.tables)
        self._openings.placed(view)
        gone = self.migration.adopt(view)
        for node in gone:
            self._members.remove(node)
        self._members.forget(view, now)
        for member, left in self.ledgers.reclaim(view):
            out.append(BatchesReturned(member.name, member.group, *msgspec.structs.astuple(left)))
        self._persist(out)
        self._checkpoints.adopted(view, out)
        whole = not any(each.syncing_since for parts in view.placements for each in parts)
        sizes = len(view.servers), len(view.workers)
        out.append(ViewMade(view.id, view.reason, whole, *sizes))
        hosts = sorted({host for each in view.placements for host in crowded(each, view.servers)})
        if hosts != self._crowded:
            self._crowded = hosts
            out.append(ReplicasCrowded(hosts))
        members = [member.id for member in (*view.servers, *view.workers)]
        finished = self._members.finished
        others = [node for node in members if node not in finished and node not in told]
        out.extend(Send(node, NewView(view)) for node in others)
        out.extend(Send(node, End()) for node in gone)

    def _next(
        self,
        number: ViewId,
        drained: bool,
        promises: Sequence[Frozen] = (),
        reason: str = "",
        opened: Opened | None = None,
    ) -> View:
        return next_view(
            number,
            self._members.by_id,
            self.view,
            self._tables.specs,
            promises,
            reason,
            self.migration.moves(self._options.replicas, drained, opened, self._openings.barred),
            self._members.finished,
        )
