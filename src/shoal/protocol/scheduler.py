"""The scheduler's machine: who is in, in which view, at which barrier, and when the run is over.

A view is made in three moves: `Freeze` to every server, a `Frozen` promise with its clocks from
each, then the view, persisted before it is told. Frozen servers apply nothing, so the clocks in
their promises stand still and the first and last clocks in the view are exact. Before a view that
moves rows, servers are asked to `Drain`. A scheduler that restarts begins a new term with a new
view, which also thaws servers that its former self froze.

Architecture invariant: absent here are tables' contents and workers' data. The scheduler is not on
the road of any push or pull.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from shoal.errors import JoinTimeout, RunAborted, ShoalError
from shoal.protocol.barriers import Barriers
from shoal.protocol.declared import Declared
from shoal.protocol.farewell import Farewell
from shoal.protocol.machine import (
    Arrival,
    Discard,
    Effects,
    Event,
    Note,
    PeerLost,
    Persist,
    Received,
    Send,
    Story,
    Ticked,
)
from shoal.protocol.membership import (
    closed_up,
    decide_view,
    join_refusal,
    missing,
    next_view,
    range_lost,
)
from shoal.protocol.messages import (
    Abort,
    Declare,
    Drained,
    End,
    Enter,
    Finish,
    Finished,
    Frozen,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Joined,
    Learned,
    Leave,
    Message,
    NewView,
    NotDeclared,
    NotJoined,
    Released,
    Stays,
)
from shoal.protocol.moving import settled
from shoal.protocol.placement import lost
from shoal.protocol.proposing import Proposal
from shoal.protocol.record import Record, SchedulerOptions
from shoal.protocol.relocating import Relocating
from shoal.protocol.roster import Roster
from shoal.protocol.views import NodeId, View, ViewId
from shoal.tables.spec import TableSpec


class SchedulerMachine:
    """Decides views and barriers, and ends the run."""

    def __init__(self, options: SchedulerOptions, journal: bytes | None = None) -> None:
        self.options = options
        record = msgspec.msgpack.decode(journal, type=Record) if journal else Record()
        self.restarted = journal is not None
        self.view: View | None = record.view
        self.term = record.term + 1
        self.roster = Roster(record, options)
        self.ended = record.ended
        self._number = record.view.number if record.view else 0
        self._tables = Declared(record.view.tables if record.view else ())
        self._barriers = Barriers(dict(record.released))
        self._proposal: Proposal | None = None
        self._relocating = Relocating(record.left)
        self._farewell = Farewell(options.resend_s, options.linger_s)
        self._join_by = inf
        self._begun = False
        self._reason = record.reason
        self._story = Story()

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        return Discard("the scheduler takes no payloads")

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        if not self._begun:
            self._begin(now, out)
        if isinstance(event, Received):
            self._story.add(now, event.sender, event.message)
            self._received(event.sender, event.message, now, out)
        elif isinstance(event, PeerLost):
            self.roster.cut_off(event.node, now)
        elif isinstance(event, Ticked):
            self._tick(now, out)
        return out

    def deadline(self) -> float | None:
        if not self._begun:
            return 0.0
        if self.ended:
            at = self._farewell.wakes_at()
            return at if at < inf else None
        at = self.roster.silent_at()
        if self._proposal is not None:
            at = min(at, self._proposal.again_at)
        if self.view is None:
            at = min(at, self._join_by)
        return at if at < inf else None

    def check(self) -> None:
        """What always holds of its members."""
        self.roster.check(self._story)

    def address_of(self, node: NodeId) -> str | None:
        return None  # members connect to the scheduler, never the other way round

    # ------------------------------------------------------------------ time

    def _begin(self, now: float, out: Effects) -> None:
        self._begun = True
        self._join_by = now + self.options.join_timeout_s
        if self.ended:  # its former self died while it was telling them
            self.ended = False
            self._end(RunAborted(self._reason) if self._reason else None, now, out)
        elif self.restarted:
            # Nobody is evicted for one detection period; whoever lives is heard of by then.
            self.roster.heard_of(self.roster.members, now)
            self._persist(out)
            if self.view is not None:
                self._propose("the scheduler restarted", now, out)

    def _tick(self, now: float, out: Effects) -> None:
        if self.ended:
            self._farewell.say(now, out)
            return
        if self.view is None and now >= self._join_by:
            absent = missing(self.roster.members.values(), self.options)
            limit = self.options.join_timeout_s
            reason = f"missing after {limit:g} s: {absent}" if absent else "no view could be made"
            self._end(JoinTimeout(reason), now, out)
            return
        for node in self.roster.silent(now):
            self._lost(node, now, out)
        if self._proposal is not None and now >= self._proposal.again_at:
            self._proposal.ask(self.roster.servers(), now, out)

    def _lost(self, node: NodeId, now: float, out: Effects) -> None:
        member = None if self.ended else self.roster.remove(node)
        if member is None:  # the one before has ended the run, in the same tick
            return
        out.append(Note("lost", {"name": member.name, "node": node}))
        if self.view is not None and member.role == "server":
            living = {m.rank for m in self.view.servers if m.id in self.roster.members}
            rows = lost(self.view.tables, self.view.arcs, living)
            if rows or not living:
                self._end(range_lost(member, rows, self.options.silence_s), now, out)
                return
        if self._proposal is not None:
            self._proposal.hurry()
            self._conclude(now, out)  # it may have been the only one that was waited for
        self._consider(now, out)
        self._release_barriers(out)
        self._end_if_done(now, out)

    # ------------------------------------------------------------------ messages

    def _received(self, sender: NodeId, message: Message, now: float, out: Effects) -> None:
        member = self.roster.members.get(sender)
        if isinstance(message, Join) and not (self.ended and member):
            self._join(sender, message, now, out)
            return
        if self.ended:
            if isinstance(message, Finish):
                self._farewell.confirmed(sender)
                out.append(Send(sender, Finished()))
                self._farewell.say(now, out)
            else:
                out.append(Send(sender, End(self._reason)))
            return
        if member is None:
            out.append(Send(sender, End("" if sender in self._relocating.left else _STRANGER)))
            return
        if getattr(message, "incarnation", member.incarnation) != member.incarnation:
            # Its former self's, taken for dead since: an old Join of its has come in late. If that
            # is all there is of the new one, it will not be heard of, and is dead soon.
            out.append(Note("stale", {"message": type(message).__name__, "node": sender}))
            return
        self.roster.heard_of([sender], now)
        match message:
            case Heartbeat(_, progress, view):
                out.append(Send(sender, HeartbeatSeen(progress)))
                if self._proposal is not None and member.role == "server":
                    self._proposal.remind([sender], out)
                done = sender in self.roster.finished
                if self.view is not None and view < self.view.id and not done:
                    out.append(Send(sender, NewView(self.view)))
            case Drained() | Frozen():
                if self._proposal is not None and self._proposal.take(sender, message):
                    self._conclude(now, out)
            case Learned(_, arcs) if self.view is not None:
                self._relocating.has_learned(self.view, member, arcs)
                self._consider(now, out)
            case Leave():
                against = self._relocating.wants_to_go(self.view, member, self.roster.servers())
                if against:
                    out.append(Send(sender, Stays(against)))
                self._consider(now, out)
            case Declare(_, spec):
                self._declare(sender, spec, now, out)
            case Enter():
                self._enter(sender, message, out)
            case Finish() if member.role == "server":  # it was told of an end that is not ours
                self._lost(sender, now, out)
            case Finish():
                self.roster.finish(sender)
                self._persist(out)
                out.append(Send(sender, Finished()))
                self._release_barriers(out)
                self._end_if_done(now, out)
            case Abort(reason):
                self._end(RunAborted(f"{member.name}: {reason}"), now, out)
            case _:
                out.append(Note("unexpected", {"message": type(message).__name__}))

    def _join(self, sender: NodeId, message: Join, now: float, out: Effects) -> None:
        known = self.roster.members.get(sender)
        if known is None:
            refusal = join_refusal(
                message.role, self.roster.members.values(), self.view, self.options
            )
            refusal = "the run has ended" if self.ended else refusal
            if refusal:
                out.append(Note("refused", {"role": message.role, "reason": refusal}))
                out.append(Send(sender, NotJoined(refusal)))
                return
            known = self.roster.admit(sender, message)
            self._persist(out)
            out.append(Note("joined", {"name": known.name, "node": sender}))
        self.roster.heard_of([sender], now)
        out.append(Send(sender, Joined(known.incarnation, known.rank)))
        if self.view is not None and self.view.member(sender) is not None:
            out.append(Send(sender, NewView(self.view)))
        self._consider(now, out)

    def _declare(self, sender: NodeId, spec: TableSpec, now: float, out: Effects) -> None:
        try:
            fresh = self._tables.declare(spec, self.options.servers)
        except ShoalError as error:
            out.append(Send(sender, NotDeclared(spec.name, error.message)))
            return
        if fresh and self.view is not None:  # the first view has it anyway
            self._propose(f"table {spec.name!r} was declared", now, out)
        elif self.view is not None and self.view.named(spec.name) is not None:
            out.append(Send(sender, NewView(self.view)))

    # ------------------------------------------------------------------ views

    def _decide(self) -> tuple[bool, str]:
        roster = self.roster
        return decide_view(roster.members, self.view, self.options, roster.finished)

    def _consider(self, now: float, out: Effects) -> None:
        due, reason = self._decide()
        if due:
            self._propose("", now, out)  # who came and went is looked up when it is made
        elif self.view is not None and self._proposal is None and not self.ended:
            planned = self._next_view((self.term, self._number + 1), drained=True)
            if not settled(planned.arcs, self.view.arcs) or self._relocating.gone(planned):
                self._propose("rows move", now, out, drain=True)
        elif reason != self._reason:
            out.append(Note("no view", {"reason": reason}))
        self._reason = reason

    def _propose(self, reason: str, now: float, out: Effects, drain: bool = False) -> None:
        """Begin to make a view; one that is being made takes in whatever comes meanwhile.

        So members who repeat themselves cannot put a view off for ever.
        """
        if self._proposal is None:
            self._number += 1
            number = (self.term, self._number)
            self._proposal = Proposal(number, reason, drain, self.options.resend_s)
        self._conclude(now, out)

    def _conclude(self, now: float, out: Effects) -> None:
        """Make the view once every server has promised; a run without servers waits for nobody."""
        if self._proposal is None or not self._proposal.go_on(self.roster.servers(), now, out):
            return
        proposal, self._proposal = self._proposal, None
        reason, promises = proposal.reason, proposal.promises(self.roster.servers())
        due, changes = self._decide()
        if self.view is None and not due:
            return  # somebody was lost again before the first view
        if self.view is None:
            self.roster.members = closed_up(self.roster.members.values())
        if due or not reason:
            reason = f"{reason}, {changes}" if reason else changes
        before = self.view.servers if self.view is not None else ()
        drained = all(promise.drained for promise in promises)
        drained = drained and all(member.id in self.roster.members for member in before)
        self.view = self._next_view(proposal.number, drained, promises, reason)
        gone = self._relocating.adopt(self.view)
        for node in gone:
            self.roster.remove(node)
        self._persist(out)
        whole = not any(arc.learning for arcs in self.view.arcs for arc in arcs)
        sizes = {"servers": len(self.view.servers), "workers": len(self.view.workers)}
        fields = {"view": proposal.number, "reason": reason, "whole": whole, **sizes}
        out.append(Note("view", fields))
        finished = self.roster.finished
        told = [m.id for m in (*self.view.servers, *self.view.workers)]
        out.extend(Send(node, NewView(self.view)) for node in told if node not in finished)
        out.extend(Send(node, End()) for node in gone)
        self._consider(now, out)

    def _next_view(
        self,
        number: ViewId,
        drained: bool,
        promises: Sequence[Frozen] = (),
        reason: str = "",
    ) -> View:
        return next_view(
            number,
            self.roster.members.values(),
            self.view,
            self._tables.specs,
            promises,
            reason,
            self._relocating.moves(self.options.replicas, drained),
            self.roster.finished,
        )

    # ------------------------------------------------------------------ barriers, end

    def _enter(self, sender: NodeId, asked: Enter, out: Effects) -> None:
        if self._barriers.enter(sender, asked.name, asked.generation, asked.groups):
            self._release_barriers(out)
        else:  # the answer was lost
            out.append(Send(sender, Released(asked.name, asked.generation)))

    def _release_barriers(self, out: Effects) -> None:
        for name, generation, entered in self._barriers.release(
            self.roster.members.values(), self.roster.finished
        ):
            self._persist(out)
            out.append(Note("released", {"name": name, "generation": generation}))
            out.extend(Send(node, Released(name, generation)) for node in entered)

    def absent_from(self, name: str, generation: int) -> list[str]:
        """Who has not entered a barrier, for people who ask."""
        return self._barriers.absent_from(name, generation, self.roster.members.values())

    def _end_if_done(self, now: float, out: Effects) -> None:
        if self.view is None or not self.roster.workers_are_done():
            return
        if self.roster.finished:
            self._end(None, now, out)
        elif not self.options.elastic:
            self._end(RunAborted("every worker has died"), now, out)

    def _end(self, error: ShoalError | None, now: float, out: Effects) -> None:
        """Tell everybody, until they have confirmed it or `linger_s` has passed."""
        if self.ended:
            return
        self.ended = True
        told = [node for node in self.roster.members if node not in self.roster.finished]
        self._farewell.begin(told, error, now)
        self._reason = self._farewell.reason
        self._proposal = None
        self._persist(out)
        out.append(Note("ending", {"reason": self._reason or "all workers have finished"}))
        self._farewell.say(now, out)

    def _persist(self, out: Effects) -> None:
        record = Record(
            self.term,
            self.view,
            self.roster.next_incarnation,
            tuple(self.roster.members.values()),
            tuple(sorted(self.roster.finished)),
            self._barriers.released,
            self.ended,
            self._reason if self.ended else "",
            tuple(sorted(self._relocating.left)),
        )
        out.append(Persist(msgspec.msgpack.encode(record)))


_STRANGER = "you are not a member of this run (taken for dead?); join again"
