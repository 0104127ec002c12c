"""The scheduler's state machine: members, views, barriers, leases and the end of the run.

A scheduler that restarts begins a new term with a new view, which also releases frozen servers.

Architecture invariant: the contents of tables and the data of workers are absent here. No push or
pull passes through the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from shoal.errors import JoinTimeout, RangeLost, RunAborted, ShoalError
from shoal.protocol.machine import (
    Arrival,
    Discard,
    Effects,
    Event,
    EventTrace,
    PeerLost,
    Persist,
    Received,
    Send,
    Ticked,
    Unexpected,
)
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.membership import (
    TOO_SLOW,
    Abort,
    BarrierArrival,
    Declare,
    Drained,
    End,
    Finish,
    Finished,
    Frozen,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Joined,
    Lease,
    Leave,
    LeaveRefused,
    NewView,
    NotJoined,
    RowsConfirmed,
    ShardsOpened,
    Synced,
    ViewRefused,
    WaitTimes,
)
from shoal.protocol.scheduler.barriers import Barriers
from shoal.protocol.scheduler.journal import JournalRecord, read_record
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.membership import gathering, missing
from shoal.protocol.scheduler.notes import (
    JoinDenied,
    MemberAwaited,
    MemberJoined,
    MemberLost,
    OutOfDate,
    RunEnding,
    StragglerDropped,
)
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.scheduler.rows.losses import end_of
from shoal.protocol.scheduler.shutdown import Shutdown
from shoal.protocol.scheduler.stragglers import Stragglers
from shoal.protocol.scheduler.tools import OF_TOOLS, Tools
from shoal.protocol.scheduler.view_change import ViewChange
from shoal.protocol.session import HELD_UP_S
from shoal.protocol.views import FOREVER, NO_VIEW, Member, NodeId, Role, View, ViewId

OF_WORK = BarrierArrival | Lease | Abort


class SchedulerMachine:
    """Decides views and barriers, grants leases, and ends the run.

    journal: the last record of the scheduler before its restart (`DataCorrupt` if it is none)
    ledger:  the batches that are done, in a run that is resumed from a checkpoint
    """

    def __init__(
        self,
        options: SchedulerOptions,
        journal: bytes | None = None,
        ledger: LedgerRecord = LedgerRecord(),  # noqa: B008 - frozen
    ) -> None:
        self.options = options
        record = JournalRecord(ledgers={"": ledger}) if journal is None else read_record(journal)
        self.restarted = journal is not None
        self.members = Members(record, options)
        self.ended = record.ended
        self._run = record.run or options.run
        self._views = ViewChange(record, options, self.members, self._persist, self._end)
        self._migration = self._views.migration
        self.ledgers = self._views.ledgers
        self._barriers = Barriers(dict(record.released), self.members, self._persist)
        self._stragglers = Stragglers(options)
        self._shutdown = Shutdown(options, self._views.term)
        parts = self.members, self._views, self._barriers, self._stragglers, self._shutdown
        self._tools = Tools(*parts, options.slow_window_s, self._lost)
        self._join_by = self._due = inf
        self._begun, self._reason, self._rows_lost = False, record.reason, record.rows_lost
        self._trace = EventTrace()

    @property
    def view(self) -> View | None:
        """The current view."""
        return self._views.view

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        return Discard("the scheduler takes no payloads")

    def problem_of(self, received: Received) -> str:
        said = received.sender, received.message
        return self.members.problem_of(*said) or self._barriers.problem_of(*said)

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        if not self._begun:
            self._begin(now, out)
        elif now > self._due + HELD_UP_S:
            self.members.detector.held_up(now)
        if isinstance(event, Received):
            self._trace.add((now, event.sender, event.message))
            self._received(event.sender, event.message, now, out)
        elif isinstance(event, PeerLost) and event.closed:
            self.members.detector.cut_off(event.node, now)
        elif isinstance(event, Ticked):
            self._tick(now, out)
        self._answer_leases(out)
        due = self.deadline()
        self._due = inf if due is None else due
        return out

    def deadline(self) -> float | None:
        if not self._begun:
            return 0.0
        join_by = self._join_by if self.view is None else inf
        at = min(self.members.detector.wakes_at(), self._views.wakes_at(), join_by)
        at = self._shutdown.wakes_at() if self.ended else min(at, self._shutdown.wakes_at())
        return at if at < inf else None

    def check(self) -> None:
        """Check the members' invariants."""
        self.members.check(self._trace)

    def address_of(self, node: NodeId) -> str | None:
        return None  # members connect to the scheduler, never the other way round

    def role_of(self, node: NodeId) -> Role | None:
        member = self.members.by_id.get(node)
        return member.role if member is not None else None

    def _begin(self, now: float, out: Effects) -> None:
        self._begun = True
        self._views.begin(now)
        self._join_by = now + self.options.join_timeout_s
        if self.ended:  # the scheduler died while it was shutting down
            self.ended = False
            ended = RangeLost if self._rows_lost else RunAborted
            self._end(ended(self._reason) if self._reason else None, now, out)
        elif self.restarted:
            # No member is declared dead for one time-out; living ones are heard of by then.
            self.members.heard_of(self.members.by_id, now)
            self._persist(out)
            if self.view is not None:
                self._views.propose("the scheduler restarted", now, out)
            self._end_if_done(now, out)

    def _tick(self, now: float, out: Effects) -> None:
        if self.ended:
            self._shutdown.say(now, out)
            return
        if self.view is None and now >= self._join_by:
            absent = missing(self.members.by_id.values(), self.options)
            limit = self.options.join_timeout_s
            reason = f"missing after {limit:g} s: {absent}" if absent else "no view could be made"
            self._end(JoinTimeout(reason), now, out)
            return
        self._look_for_silent(now, out)
        self._views.tick(now, out)
        if self._shutdown.asking:
            self._end_if_done(now, out)

    def _look_for_silent(self, now: float, out: Effects) -> None:
        detector = self.members.detector
        for node in detector.silent(now):
            member = self.members.by_id.get(node)
            if member is None:  # the previous death has let a view through, without this member
                continue
            if self._views.needs(member) and detector.spare(node, now):
                out.append(MemberAwaited(member.name, node))
            else:
                self._lost([node], detector.how(node, now), now, out)

    def _lost(
        self, nodes: Sequence[NodeId], how: str, now: float, out: Effects, aborted: bool = False
    ) -> None:
        """Go on without members, or end the run; one journal record has the whole change.

        A restarted scheduler would not know what follows from half of the change.

        aborted:  whether the members are lost because their group was aborted
        """
        here = [node for node in nodes if node in self.members.by_id]
        if self.ended or not here:  # the previous death has ended the run
            return
        for node in here:
            member = self.members.by_id[node]
            self.members.remove(node)
            self._stragglers.forget(member)
            self.ledgers.withdraw(member)
            out.append(MemberLost(member.name, how, member.launch, node))
            rows = self._views.bereaved(member)
            if error := end_of(member, rows, how, self.options.on_worker_loss):
                self._end(error, now, out)
                return
            self._over(member.group, aborted)
        self._end_if_done(now, out)
        if not self.ended:
            self._persist(out)
            self._views.hurry(now, out)
            self._views.consider(now, out)
            self._barriers.release(out)

    # ------------------------------------------------------------------ messages

    def _received(self, sender: NodeId, message: Message, now: float, out: Effects) -> None:
        member = self.members.by_id.get(sender)
        if isinstance(message, OF_TOOLS):
            self._tools.asked(sender, message, now, out)
            return
        if isinstance(message, Join) and not (self.ended and member):
            self._join(sender, message, now, out)
            return
        if self.ended:
            if isinstance(message, Finish):
                self._shutdown.confirmed(sender)
                out.append(Send(sender, Finished()))
                self._shutdown.say(now, out)
            else:
                out.append(Send(sender, self._shutdown.told))
            return
        if member is None:
            known = Finished() if isinstance(message, Finish) else End()
            out.append(Send(sender, known if sender in self._migration.left else _STRANGER))
            return
        over = sender in self.members.finished and isinstance(message, OF_WORK)
        if over or getattr(message, "incarnation", member.incarnation) != member.incarnation:
            # sent before it finished; or by its incarnation before a late Join made a new one
            out.append(OutOfDate(type(message).__name__, sender))
            return
        self.members.heard_of([sender], now, isinstance(message, Heartbeat))
        match message:
            case Heartbeat(_, view):
                out.append(Send(sender, HeartbeatSeen(self.members.finished_beside(member))))
                self._views.heartbeat(member, view, now, out)
            case Drained() | Frozen():
                self._views.promised(sender, message, now, out)
            case ShardsOpened():
                self._views.opened(member, message, now, out)
            case ViewRefused(view):
                self._views.refused(view, now, out)
            case Synced(_, placements) if self.view is not None:
                self._migration.has_synced(self.view, member, placements)
                self._views.consider(now, out)
            case WaitTimes():
                self._stragglers.heard(member, message, self.members, now)
                for slow, reason in self._stragglers.slow(self.members, now):
                    out.append(StragglerDropped(slow.name, reason))
                    self._lost([slow.id], TOO_SLOW, now, out)
                    out.append(Send(slow.id, End(reason, "dropped")))
            case Leave():
                against = self._migration.wants_to_go(self.view, member, self.members.servers())
                if against:
                    out.append(Send(sender, LeaveRefused(against)))
                self._views.consider(now, out)
            case RowsConfirmed():
                self._shutdown.answered(sender, message)
                self._end_if_done(now, out)
            case Declare(_, spec):
                self._views.declare(member, spec, now, out)
            case BarrierArrival():
                self._barriers.enter(member, message, now, out)
            case Lease():
                self.ledgers.ask(member, message, now)
            case Finish() if member.role == "server":  # its `End` is not from here
                self._lost([sender], "it was told of an end", now, out)
            case Finish(_, view):
                self._finish(member, view, now, out)
            case Abort():
                self._aborted(member, message, now, out)
            case _:
                out.append(Unexpected(type(message).__name__))

    def _finish(self, member: Member, view: ViewId, now: float, out: Effects) -> None:
        """Record that a worker has finished, unless new heads still have to hear its clocks.

        It repeats them when it adopts their view, and then its question.
        """
        if member.id in self.members.finished:
            out.append(Send(member.id, Finished()))
        elif not self._views.behind(member, view):
            self._finished(member, now, out)
        elif view == NO_VIEW:
            self._lost([member.id], "it left before its first view", now, out)

    def _finished(self, member: Member, now: float, out: Effects) -> None:
        self.members.finish(member.id)
        self._stragglers.forget(member)
        self.ledgers.gone(member, FOREVER)
        self._over(member.group, finished=True)
        self._end_if_done(now, out)
        if not self.ended:
            self._persist(out)
            self._barriers.release(out)
            self._views.consider(now, out)
        out.append(Send(member.id, Finished()))

    def _aborted(self, member: Member, asked: Abort, now: float, out: Effects) -> None:
        """End the run, or an attached group only, while the others go on."""
        reason, group = f"{member.name}: {asked.reason}", member.group
        if not group:
            self._end(RunAborted(reason), now, out)
            return
        others = self.members.at_work(group)
        self._lost(others, f"{member.name} aborted", now, out, aborted=True)
        out.extend(Send(node, End(reason)) for node in others)

    def _over(self, group: str, finished: bool) -> None:
        """Drop the state of an attached group without workers, for a later group of its name.

        In an elastic run, where workers are replaced, the ledger of a group that died stays.
        """
        if group and not self.members.at_work(group):
            self._barriers.end(group)
            if finished or not self.options.elastic:
                self.ledgers.end(group)

    def _join(self, sender: NodeId, message: Join, now: float, out: Effects) -> None:
        known = self.members.by_id.get(sender)
        if known is None:
            refusal = self.members.refusal(sender, message, self.view, self.options)
            if self.ended or self._shutdown.asking:
                refusal = NotJoined("the run has ended")
            if refusal is not None:
                out.append(JoinDenied(message.role, refusal.reason))
                out.append(Send(sender, refusal))
                return
            known = self.members.admit(sender, message)
            self._persist(out)
            out.append(MemberJoined(known.name, known.launch, sender))
        self.members.heard_of([sender], now)
        out.append(Send(sender, Joined(known.incarnation, known.rank, self._run)))
        if self.view is not None and self.view.member(sender) is not None:
            out.append(Send(sender, NewView(self.view)))
        self._views.consider(now, out)

    def _answer_leases(self, out: Effects) -> None:
        entries, answers = self.ledgers.answers(self.members)
        if answers and not self.ended:
            out.extend(entries)
            self._persist(out)
            out.extend(answers)

    def _end_if_done(self, now: float, out: Effects) -> None:
        """End the run if no worker is at work; in order once living servers confirm all rows."""
        members, finished = self.members.by_id, self.members.finished
        waiting = gathering(members, self.view, finished)
        awaited = self.options.on_worker_loss == "replace" and self.members.missing_workers()
        if self.view is None or awaited or not waiting.issuperset(self.members.at_work()):
            return
        if not finished.isdisjoint(m.id for m in members.values() if not m.group):
            confirmed = self._shutdown.ask(self.view.id, self.members.servers(), now, out)
            if confirmed and all(member.id in members for member in self.view.servers):
                self._end(None, now, out)
        elif not self.options.elastic:
            self._end(RunAborted("every worker has died"), now, out)

    def _end(self, error: ShoalError | None, now: float, out: Effects) -> None:
        """End the run and tell all members until they confirm, or `linger_s` has passed."""
        if self.ended:
            return
        self.ended = True
        at_work = self.members.by_id.keys() - self.members.finished
        self._shutdown.begin(sorted(at_work), error, now, self._views.lost_without)
        self._reason, self._rows_lost = self._shutdown.reason, isinstance(error, RangeLost)
        self._views.end()
        self._persist(out)
        out.append(RunEnding(self._reason or "all workers have finished"))
        self._shutdown.say(now, out)

    def _persist(self, out: Effects, reserve: bool = False) -> None:
        record = JournalRecord(
            self._views.term,
            self.view,
            self.members.next_incarnation,
            tuple(self.members.by_id.values()),
            tuple(sorted(self.members.finished)),
            self._barriers.released,
            self.ended,
            self._reason if self.ended else "",
            tuple(sorted(self._migration.left)),
            self.ledgers.records(),
            self._run,
            self._views.offered,
            self.ended and self._rows_lost,
        )
        out.append(Persist(msgspec.msgpack.encode(record), reserve))


_STRANGER = End("this node is no member of the run: it was declared dead; start it again", "dead")
