"""ViewChange: when the next view is due, and how it is agreed on.

A view change has three steps: `Freeze` to every server, a `Frozen` promise with the server's clocks
from each, then the view, persisted before it is sent. Frozen servers apply nothing, so that the
clocks in their promises do not change, and the first and last clocks in the view are exact. Before
a view that migrates shards servers are drained (`Drain`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf

import msgspec

from shoal.protocol.checkpoint_clocks import marked
from shoal.protocol.machine import Effects, Note, Send
from shoal.protocol.messages import Drain, Drained, End, Freeze, Frozen, NewView, Waiting
from shoal.protocol.scheduler.journal import JournalRecord, SchedulerOptions
from shoal.protocol.scheduler.lease_ledgers import LeaseLedgers
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.membership import decide_view, missing, next_view
from shoal.protocol.scheduler.migration import Migration
from shoal.protocol.scheduler.placement import crowded, lost
from shoal.protocol.scheduler.rebalance import unchanged
from shoal.protocol.scheduler.table_catalog import TableCatalog
from shoal.protocol.views import Member, NodeId, View, ViewId
from shoal.tables.spec import TableSpec

SOON_S = 0.5  # pause after a view that could not migrate, although no server was too slow


class Proposal:
    """A proposed view: the questions to servers and their answers.

    Attributes:
        number: of the view; servers are asked until they answer.
        reason: why it is made, besides changes of membership.
        since: when it was begun.
        drains: whether servers are drained first.
        draining: whether they are still draining.
    """

    def __init__(
        self, number: ViewId, reason: str, drain: bool, resend_s: float, now: float
    ) -> None:
        self.number = number
        self.reason = reason
        self.since = now
        self.drains = drain
        self.again_at = -inf
        self.draining = drain
        self._resend_s = resend_s
        self._drained: set[NodeId] = set()
        self._promises: dict[NodeId, Frozen] = {}

    def ask(self, servers: Iterable[NodeId], now: float, out: Effects) -> None:
        """Ask the servers that have not answered."""
        self.again_at = now + self._resend_s
        self.remind(servers, out)

    def remind(self, servers: Iterable[NodeId], out: Effects) -> None:
        """Ask some of these again, which may not have been reached before."""
        answered: Collection[NodeId] = self._drained if self.draining else self._promises
        question = Drain(self.number) if self.draining else Freeze(self.number)
        out.extend(Send(node, question) for node in sorted(servers) if node not in answered)

    def take(self, server: NodeId, promise: Drained | Frozen) -> bool:
        """Take in an answer; False if it is for an earlier view."""
        if promise.view != self.number:
            return False
        if isinstance(promise, Frozen):
            self._promises[server] = promise
        else:
            self._drained.add(server)
        return True

    def hurry(self) -> None:
        """Stop draining: a server is gone, and its operations may never arrive."""
        if self.draining:
            self.draining, self.again_at = False, -inf

    def go_on(self, servers: Collection[NodeId], now: float, out: Effects) -> bool:
        """Ask the next question; returns whether all servers have promised."""
        if self.draining and all(node in self._drained for node in servers):
            self.hurry()
        if self.again_at == -inf:
            self.ask(servers, now, out)
        return not self.draining and all(node in self._promises for node in servers)

    def waits(self, servers: Iterable[Member], now: float) -> list[Waiting]:
        """The servers that the scheduler waits for."""
        answered: Collection[NodeId] = self._drained if self.draining else self._promises
        absent = sorted(member.name for member in servers if member.id not in answered)
        what = f"view {self.number[0]}.{self.number[1]}" + (f" ({self.reason})" * bool(self.reason))
        todo = "drain" if self.draining else "freeze"
        reason = f"waits for {', '.join(absent)} to {todo}"
        return [Waiting("the scheduler", what, reason, now - self.since)] if absent else []

    def promises(self, servers: Iterable[NodeId]) -> list[Frozen]:
        """The promises of these servers."""
        return [self._promises[node] for node in servers]


class ViewChange:
    """Makes views.

    Args:
        record: the journal of the previous scheduler.
        options: the scheduler's.
        members: the members.
        persist: writes the journal.

    Attributes:
        view: the current view.
        reason: why no view is being made.
        began_at: when the scheduler started.
    """

    def __init__(
        self,
        record: JournalRecord,
        options: SchedulerOptions,
        members: Members,
        persist: Callable[[Effects], None],
    ) -> None:
        self.view: View | None = record.view
        self.term = record.term + 1
        self.reason = ""
        self.began_at = 0.0
        self.migration = Migration(record.left)
        self.ledgers = LeaseLedgers(record.ledgers)
        self._options = options
        self._members = members
        self._persist = persist
        self._number = record.view.number if record.view else 0
        self._tables = TableCatalog(record.view.tables if record.view else ())
        self._proposal: Proposal | None = None
        self._over = False
        self._still_until = inf  # no shard migrates before, because it could not
        self._crowded: list[str] = []
        self._mark_at = inf  # when a view for a checkpoint is due
        self._to_mark = False  # whether the next view is for a checkpoint

    def begin(self, now: float) -> None:
        """Its scheduler is here."""
        self.began_at = now

    def end(self) -> None:
        """Make no more views."""
        self._over, self._proposal = True, None

    def wakes_at(self) -> float:
        waiting = self._proposal.again_at if self._proposal is not None else self._still_until
        return min(waiting, self._mark_at)

    def tick(self, now: float, out: Effects) -> None:
        """Repeat unanswered questions; stop draining that takes too long."""
        if now >= self._mark_at:
            self._mark_at = now + self._options.checkpoint_s
            if self._members.at_work(""):
                self._to_mark = True
                self.propose("a checkpoint is due", now, out)
        if self._proposal is not None and now >= self._proposal.again_at:
            if self._proposal.draining and now >= self._proposal.since + self._options.drain_s:
                self.hurry(now, out)
            else:
                self._proposal.ask(self._members.servers(), now, out)
        elif now >= self._still_until:
            self._still_until = inf
            self.consider(now, out)

    def remind(self, server: NodeId, out: Effects) -> None:
        """Repeat the question to a server that may not have been reached before."""
        if self._proposal is not None:
            self._proposal.remind([server], out)

    def waits(self, now: float) -> list[Waiting]:
        """The members that the next view waits for."""
        members, waits = self._members.by_id, list[Waiting]()
        if self.view is None and not self._over:
            reason = f"waits for {missing(members.values(), self._options)}"
            waits = [Waiting("the scheduler", "the first view", reason, now - self.began_at)]
        if self._proposal is not None:
            waits += self._proposal.waits([members[n] for n in self._members.servers()], now)
        for node, seconds in self._members.detector.spared(now):
            rows = ", ".join(self.bereaved(members[node]) or ["its rows"])
            reason = f"it is silent, and nobody else has {rows}"
            waits.append(Waiting("the scheduler", members[node].name, reason, seconds))
        return waits

    # ------------------------------------------------------------------ what happens

    def bereaved(self, dead: Member) -> list[str] | None:
        """The rows that are lost with a server; None if none are, empty if it was the last one."""
        if self.view is None or dead.role != "server":
            return None
        others = [node for node in self._members.servers() if node != dead.id]
        living = {m.rank for m in self.view.servers if m.id in others}
        rows = lost(self.view.tables, self.view.placements, living)
        if others and (not rows or self.view.member(dead.id) is None):
            return None
        return rows

    def hurry(self, now: float, out: Effects) -> None:
        """Go on without a member that is gone, which may have been the last to answer."""
        if self._proposal is not None:
            self._proposal.hurry()
            self._conclude(now, out)

    def promised(self, server: NodeId, promise: Drained | Frozen, now: float, out: Effects) -> None:
        """Take in a server's answer."""
        if self._proposal is not None and self._proposal.take(server, promise):
            self._conclude(now, out)

    def declare(self, sender: Member, spec: TableSpec, now: float, out: Effects) -> None:
        """Have a table in the next view.

        Raises:
            ShoalError: the table cannot be declared.
        """
        fresh = self._tables.declare(spec, self._options.servers, sender.group)
        if fresh and self.view is not None:  # the first view has it anyway
            self.propose(f"table {spec.name!r} was declared", now, out)
        elif self.view is not None and self.view.named(spec.name) is not None:
            out.append(Send(sender.id, NewView(self.view)))

    # ------------------------------------------------------------------ the next one

    def consider(self, now: float, out: Effects) -> None:
        """Begin to make a view, if one is due."""
        due, reason = self._decide()
        if due:
            self.propose("", now, out)  # changes of membership are looked up when it is made
        elif self.view is not None and self._may_move():
            planned = self._next((self.term, self._number + 1), drained=True)
            moves = not unchanged(planned.placements, self.view.placements)
            if moves or self.migration.gone(planned):
                self.propose("rows move", now, out, drain=True)
        elif reason != self.reason:
            out.append(Note("no view", {"reason": reason}))
        self.reason = reason

    def _may_move(self) -> bool:
        """Whether shards may migrate now."""
        return self._proposal is None and not self._over and self._still_until == inf

    def _decide(self) -> tuple[bool, str]:
        members = self._members
        return decide_view(members.by_id, self.view, self._options, members.finished)

    def propose(self, reason: str, now: float, out: Effects, drain: bool = False) -> None:
        """Begin a view change; one under way takes in further changes.

        So members that repeat their requests cannot delay a view forever.
        """
        if self._proposal is None:
            self._number += 1
            number = (self.term, self._number)
            self._proposal = Proposal(number, reason, drain, self._options.resend_s, now)
        self._conclude(now, out)

    def _conclude(self, now: float, out: Effects) -> None:
        """Make the view once every server has promised; at once in a run without servers."""
        servers = self._members.servers()
        if self._proposal is None or not self._proposal.go_on(servers, now, out):
            return
        proposal, self._proposal = self._proposal, None
        reason, promises = proposal.reason, proposal.promises(servers)
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
        if proposal.drains and not drained:
            waited = now - proposal.since >= self._options.drain_s
            pause = self._options.pause_s
            self._still_until = now + (pause if waited else min(pause, SOON_S))
        view = self._next(proposal.number, drained, promises, reason)
        if self._to_mark:
            self._to_mark = False
            view = msgspec.structs.replace(view, checkpoint_clocks=marked(view, promises))
        if self._options.checkpoint_s and self._mark_at == inf:
            self._mark_at = now + self._options.checkpoint_s
        self._adopt(view, now, out)
        self.consider(now, out)

    def _adopt(self, view: View, now: float, out: Effects) -> None:
        self.view = view
        gone = self.migration.adopt(view)
        for node in gone:
            self._members.remove(node)
        self._members.forget(view, now)
        for member, left in self.ledgers.reclaim(view):
            fields = {"name": member.name, "group": member.group, **msgspec.structs.asdict(left)}
            out.append(Note("returned", fields))
        self._persist(out)
        whole = not any(each.syncing_since for parts in view.placements for each in parts)
        sizes = {"servers": len(view.servers), "workers": len(view.workers)}
        out.append(Note("view", {"view": view.id, "reason": view.reason, "whole": whole, **sizes}))
        hosts = sorted({host for each in view.placements for host in crowded(each, view.servers)})
        if hosts != self._crowded:
            self._crowded = hosts
            out.append(Note("crowded", {"hosts": hosts}))
        members = [member.id for member in (*view.servers, *view.workers)]
        finished = self._members.finished
        out.extend(Send(node, NewView(view)) for node in members if node not in finished)
        out.extend(Send(node, End()) for node in gone)

    def _next(
        self,
        number: ViewId,
        drained: bool,
        promises: Sequence[Frozen] = (),
        reason: str = "",
    ) -> View:
        return next_view(
            number,
            self._members.by_id,
            self.view,
            self._tables.specs,
            promises,
            reason,
            self.migration.moves(self._options.replicas, drained),
            self._members.finished,
        )
