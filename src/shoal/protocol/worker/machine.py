"""The worker's machine: routing, fan-out, resend, reassembly, clocks, credits.

What is under way, and what may leave, is `protocol.flight`'s.

Architecture invariant: absent here are tensors, threads and connections. Values are memoryviews
that the caller lends until the request resolves.
"""

from __future__ import annotations

from math import inf

import msgspec

from shoal.errors import (
    Cancelled,
    InvalidValue,
    Refused,
    RequestTimeout,
    RoundClosed,
    ShoalError,
    SyncTimeout,
)
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Detach,
    Discard,
    Effects,
    Event,
    Note,
    Outcome,
    Received,
    Resolve,
    Sink,
    Stop,
    Story,
    Ticked,
)
from shoal.protocol.messages import SCHEDULER, Message, Nudge, Reply
from shoal.protocol.messages.describing import describe
from shoal.protocol.requests import Cancel, Exchange
from shoal.protocol.session import Session
from shoal.protocol.views import FOREVER, NodeId, View
from shoal.protocol.worker.in_flight import Flight, Leg, LegPart
from shoal.protocol.worker.pending_requests import Pending, PendingRequests
from shoal.protocol.worker.rerouting import chained, joined, moved, reroute, tell
from shoal.protocol.worker.routing import Router
from shoal.protocol.worker.sender import Asking


class WorkerOptions(msgspec.Struct, frozen=True):
    """
    sync_timeout_s:  after this an unanswered request is asked for again, after twice this it fails
    probe_s:         the first question after an unanswered request; doubles up to probe_max_s
    behind_s:        before asking a server again that has not heard of our view yet
    credit_bytes:    payload that may be under way to a server (one request may exceed it alone)
    """

    sync_timeout_s: float = 10.0
    probe_s: float = 0.5
    probe_max_s: float = 4.0
    behind_s: float = 0.01
    credit_bytes: int = 256 << 20


class WorkerMachine:
    """Asks servers on behalf of one caller, and resolves each request exactly once."""

    def __init__(self, session: Session, options: WorkerOptions | None = None) -> None:
        self.session = session
        self.options = options or WorkerOptions()
        self.clock = 0
        self.bytes_pulled = 0
        self._flight = Flight(self.options.credit_bytes)
        self._requests = PendingRequests()
        self._asking = Asking(session, self._flight, self.options.probe_s, self.options.probe_max_s)
        self._router: Router | None = None  # of the present view
        self._story = Story()

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        part = self._part(self._leg_of(message), sender, message)
        if part is None or part.done or part.share.nbytes_out not in (nbytes, -1):
            return Discard("nobody waits for it")
        if part.sink is not None:
            part.revoke()
        part.sink = Sink(part.share.destination(nbytes))
        return part.sink

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        if isinstance(event, Received):
            message = event.message
            self._story.add(now, event.sender, message)
            if isinstance(message, Reply):
                self._reply(event.sender, message, event.payload, now, out)
            else:
                self._received(event.sender, message, now, out)
        elif isinstance(event, Asked):
            self._asked(event.request_id, event.request, now, out)
        elif isinstance(event, Ticked):
            self.session.tick(now, out)
            if now >= self._asking.wakes_at:
                self._tick(now, out)
                self._asking.wakes_at = min(self._requests.wakes_at(), self._flight.wakes_at())
        else:
            self.session.peer_lost(event.node, now)
            self._flight.peer_lost(event.node, now + self.options.behind_s)
            self._asking.wake(now + self.options.behind_s)
        if self.session.ended:
            self._end(out)
        return out

    def deadline(self) -> float | None:
        at = min(self.session.deadline(), self._asking.wakes_at)
        return at if at < inf else None

    def address_of(self, node: NodeId) -> str | None:
        member = self.session.view.member(node) if self.session.view else None
        return member.address if member and member.role == "server" else None

    def check(self) -> None:
        """Every leg belongs to a request; no request has more in flight than its window."""
        for leg in self._flight.legs.values():
            if leg.request_id and leg.request_id not in self._requests:
                raise self._story.broken(f"leg #{leg.seq} belongs to no request")
        if problem := self._flight.problem():
            raise self._story.broken(problem)

    @property
    def bytes_pushed(self) -> int:
        return self._asking.bytes_pushed

    def number_of(self, table: str) -> int | None:
        """The number of the table of that name in the present view."""
        return self._router.numbers.get(table) if self._router else None

    def hopeless(self, request_id: int) -> str:
        """Why waiting for a request now would never end; empty where it may."""
        pending = self._requests.get(request_id)
        for leg in pending.legs if pending is not None else ():
            if leg.plan.closing and leg.clock >= self.clock:
                return (
                    f"a push at clock {leg.clock} to a table that settles at the close is "
                    "acknowledged when its round closes; call advance() before waiting for it"
                )
        return ""

    def waiting(self) -> list[tuple[str, str]]:
        """(request, reason) of everything unanswered."""
        return [
            (
                describe(self._asking.message(leg, part)),
                f"{self._name(part.share.server)}: {part.reason}",
            )
            for leg in self._flight.legs.values()
            for part in leg.open_parts()
        ]

    # ------------------------------------------------------------------ asking

    def _asked(self, request_id: int, request: object, now: float, out: Effects) -> None:
        self.session.progress += 1
        if self.session.ended:
            error = Refused("this worker's run has ended")
            out.append(Resolve(request_id, Outcome(error=error)))
        elif isinstance(request, Exchange):
            try:
                self._exchange(request_id, request, now, out)
            except InvalidValue as mistake:
                out.append(Resolve(request_id, Outcome(error=mistake)))
        else:
            self.session.asked(request_id, request, self.clock, now, out)
            if isinstance(request, Cancel):
                if request.request_id in self._requests:
                    self._resolve(request.request_id, Cancelled("the caller withdrew it"), out)
                    self._pump(now, out)
                out.append(Resolve(request_id, Outcome()))

    def _exchange(self, request_id: int, ask: Exchange, now: float, out: Effects) -> None:
        if self._router is None:
            raise InvalidValue("this worker is in no view yet")
        plans = self._router.legs(ask)
        clock = advance = self.clock
        if ask.advance:
            advance = self.clock = FOREVER if ask.last else clock + 1
        timeout_s = self.options.sync_timeout_s if ask.timeout_s is None else ask.timeout_s
        pending = self._requests.open(request_id, now, timeout_s, ask.after)
        for plan in plans:
            told = advance if plan.advances else -1
            pending.legs.append(self._flight.add(request_id, ask, plan, clock, told))
        self._asking.wake(pending.expires_at)
        self._pump(now, out)

    # ------------------------------------------------------------------ sending

    def _pump(self, now: float, out: Effects) -> None:
        """Send what its gates, its dependencies and the credits allow, in order."""
        if not self._flight.unsent:
            return
        for leg in self._flight.admitted():
            pending = self._requests.get(leg.request_id)
            if pending is not None and pending.after:
                continue
            self._flight.leave(leg)
            self._asking.send(leg, now, out)
            if not leg.parts:  # a request without any row asks nobody
                self._leg_done(leg, out)

    def _tick(self, now: float, out: Effects) -> None:
        self._asking.probe_due(now, out)
        for request_id, pending in self._requests.expired(now):
            if not pending.nudged:
                pending.nudged = True
                pending.expires_at = now + pending.timeout_s
                for leg in pending.legs:
                    self._asking.probe(leg, now, out, urgent=True)
            else:
                self._resolve(request_id, self._timed_out(pending), out)
        self._pump(now, out)

    # ------------------------------------------------------------------ answers

    def _received(self, sender: NodeId, message: Message, now: float, out: Effects) -> None:
        if isinstance(message, Nudge):
            self._asking.probe_all(now, out)
        elif sender == SCHEDULER and (view := self.session.handle(message, now, out)):
            self._adopt(view, now, out)

    def _leg_of(self, message: Message) -> Leg | None:
        if not isinstance(message, Reply) or message.incarnation != self.session.incarnation:
            return None
        return self._flight.legs.get(message.seq)

    def _part(self, leg: Leg | None, sender: NodeId, message: Message) -> LegPart | None:
        """The part that a server answers, as it was last sent."""
        if leg is None or not isinstance(message, Reply):
            return None
        return leg.parts.get(sender) if leg.sent and message.view >= leg.since else None

    def _reply(
        self, sender: NodeId, reply: Reply, payload: Sink | None, now: float, out: Effects
    ) -> None:
        leg = self._leg_of(reply)
        part = self._part(leg, sender, reply)
        if leg is None or part is None or part.done:
            out.append(Note("late", {"seq": reply.seq, "code": reply.code}))
            return
        part.reason = reply.reason or reply.code
        match reply.code:
            case "applied":
                self._applied(leg, part, reply, payload, now, out)
            case "accepted" | "parked":  # its pull is parked; the push with it has been taken
                part.again_at = now + part.wait_s
                if reply.code == "parked" or leg.plan.closing or not self._flight.gated:
                    self._flight.land(leg, part)  # not while other servers are to have it
                    self._pump(now, out)
            case "missing":
                self._asking.send_again(leg, part, now, out)
            case "stale" | "early":
                self._asking.probe_at(part, now + self.options.behind_s)
                if reply.code == "early":
                    self._asking.probe_ahead(leg, sender, now, out)
                elif reply.view > self.session.view_id:
                    self.session.ask_for_view(out)
            case "refused" | "round_closed":
                self._refused(leg, part, reply, out)
                self._pump(now, out)

    def _applied(
        self,
        leg: Leg,
        part: LegPart,
        reply: Reply,
        payload: Sink | None,
        now: float,
        out: Effects,
    ) -> None:
        if payload is None and part.share.nbytes_out:  # the rows were lost: the push was not
            part.share = part.share.without_push()
            self._asking.send_again(leg, part, now, out)
            return
        if payload is not None and (payload.revoked or payload is not part.sink):
            out.append(Note("late", {"seq": reply.seq, "code": reply.code}))
            return
        self._flight.land(leg, part)
        part.done = True
        if payload is not None:
            self.bytes_pulled += payload.nbytes
            part.share.answered(payload.views)
        pending = self._requests.get(leg.request_id)
        if pending is not None:
            pending.heard(reply)
        if leg.done:
            self._leg_done(leg, out)
        self._pump(now, out)

    def _refused(self, leg: Leg, part: LegPart, reply: Reply, out: Effects) -> None:
        kind = RoundClosed if reply.code == "round_closed" else Refused
        who = self._name(part.share.server)
        error = kind(f"{who} refused {describe(self._asking.message(leg, part))}: {reply.reason}")
        self._flight.land(leg, part)
        part.done = True  # this server has said its last word on it
        if leg.request_id:
            self._resolve(leg.request_id, error, out)
        elif leg.done:
            self._flight.drop(leg)

    def _leg_done(self, leg: Leg, out: Effects) -> None:
        self._flight.drop(leg)
        pending = self._requests.get(leg.request_id)
        if pending is None:
            return
        pending.legs.remove(leg)
        if not pending.legs:
            self._resolve(leg.request_id, None, out)

    def _resolve(self, request_id: int, error: ShoalError | None, out: Effects) -> None:
        pending, followers = self._requests.close(request_id)
        for leg in pending.legs:
            self._abandon(leg, out)
        out.append(Resolve(request_id, pending.outcome(error)))
        if error is not None:
            why = Refused(f"a request that this one comes after failed: {error}")
            for follower in followers:
                if follower in self._requests:
                    self._resolve(follower, why, out)

    def _abandon(self, leg: Leg, out: Effects) -> None:
        """Its request is over, the leg is not: a push that was sent goes on, and an advance."""
        told = leg.advance >= 0 or (leg.begun and leg.plan.pushed)
        if told and not leg.done and not self.session.ended:
            if leg.begun and leg.plan.pushed:
                out += [Detach(server) for server, p in leg.parts.items() if not p.accepted]
            self._flight.orphan(leg)
        else:
            self._flight.drop(leg)

    def _timed_out(self, pending: Pending) -> RequestTimeout:
        lines, parked = [], False
        for leg in pending.legs:
            for part in leg.open_parts():
                why = part.reason if leg.sent else "not sent: an earlier push is not accepted"
                parked = parked or "waits for" in why
                lines.append(f"{self._name(part.share.server)} {why}")
        text = f"no answer within {2 * pending.timeout_s:g} s: {'; '.join(lines)}"
        return (SyncTimeout if parked else RequestTimeout)(text, self._story.lines())

    # ------------------------------------------------------------------ views, end

    def _adopt(self, view: View, now: float, out: Effects) -> None:
        first = view.member(self.session.me)
        if first is not None:
            self.clock = max(self.clock, first.first_clock)
        space = self.session.options.namespace
        before, router = self._router, Router(view, self.session.group, space)
        self._router = router
        self._flight.gated = chained(view)
        if before is not None and moved(before.view, view):
            for leg in reroute(self._flight, before.view, router, self.clock):
                self._requests.also(leg)
        elif before is not None and joined(before.view, view):
            tell(self._flight, router, self.clock)
        self._asking.probe_all(now, out)
        self._pump(now, out)

    def _end(self, out: Effects) -> None:
        """The session is over: nothing that is asked will be answered."""
        for leg in list(self._flight.legs.values()):
            if not leg.request_id:
                self._flight.drop(leg)
        stop = next((e for e in out if isinstance(e, Stop)), None)
        error = stop.error if stop and stop.error else Refused("the run has ended")
        for request_id in self._requests:
            if request_id in self._requests:
                self._resolve(request_id, error, out)

    def _name(self, node: NodeId) -> str:
        member = self.session.view.member(node) if self.session.view else None
        return member.name if member else node
