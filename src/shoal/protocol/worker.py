"""The worker's machine: routing, fan-out, resend, reassembly, clocks, credits.

A request of the caller's becomes one or two *legs*. A leg has one sequence number and at most one
message per server. Two legs are needed where `Advance` has to follow accepted pushes (DESIGN
section 4, rule 5): with several servers a worker tells none of them that it has finished a round
before all of them hold its pushes, so that its death cannot split the round.

Architecture invariant: absent here are tensors, threads and connections. Values are memoryviews
that the caller lends until the request resolves.
"""

from __future__ import annotations

from math import inf

import msgspec

from shoal.errors import Cancelled, InvalidValue, Refused, RequestTimeout, RoundClosed, SyncTimeout
from shoal.protocol.machine import (
    Accept,
    Arrival,
    Asked,
    Discard,
    Effects,
    Event,
    Note,
    Outcome,
    PeerLost,
    Received,
    Resolve,
    Send,
    Sink,
    Stop,
    Story,
    Ticked,
)
from shoal.protocol.messages import (
    FOREVER,
    SCHEDULER,
    Declare,
    Message,
    NodeId,
    NotDeclared,
    Nudge,
    Probe,
    Reply,
    Request,
    View,
    describe,
)
from shoal.protocol.requests import (
    AwaitView,
    Cancel,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
)
from shoal.protocol.routing import Router
from shoal.protocol.server import WINDOW
from shoal.protocol.session import Session
from shoal.tables.spec import TableSpec


class WorkerOptions(msgspec.Struct, frozen=True):
    """
    sync_timeout_s:  after this an unanswered request is asked for again, after twice this it fails
    probe_s:         the first question after an unanswered request; doubles up to probe_max_s
    behind_s:        before asking a server again that has not heard of our view yet
    credit_bytes:    payload that may be under way to all servers (one request may exceed it alone)
    """

    sync_timeout_s: float = 10.0
    probe_s: float = 0.5
    probe_max_s: float = 4.0
    behind_s: float = 0.01
    credit_bytes: int = 256 << 20


# ---------------------------------------------------------------------------- state


class LegPart(msgspec.Struct):
    """One server's share of a leg. Invariant: `done` implies `accepted`."""

    server: NodeId
    message: Request
    buffers: tuple[memoryview, ...]
    outs: list[memoryview]
    nbytes_out: int
    nbytes: int
    again_at: float = inf
    wait_s: float = 0.0
    accepted: bool = False
    done: bool = False
    reason: str = "no answer"
    sink: Sink | None = None


class Leg(msgspec.Struct):
    """One message per server, and what became of each.

    An *orphan* (request_id 0) is a push whose request ended with its outcome unknown: it goes on
    until every server holds it, because one that only some of them count would split its round.
    """

    request_id: int
    clock: int
    parts: dict[NodeId, LegPart]
    tables: tuple[int, ...]  # that it pushes to
    closing: bool  # whether one of them settles at the close
    gates: list[int]  # legs that have to be accepted everywhere first
    nbytes: int = 0
    sent: bool = False


class Pending(msgspec.Struct):
    """A caller's request: its legs, and when its patience ends."""

    legs: int
    after: list[int]
    expires_at: float
    timeout_s: float
    clock_min: int = FOREVER
    round_weight: float = -1.0
    nudged: bool = False


class WorkerMachine:
    """Asks servers on behalf of one caller, and resolves each request exactly once."""

    def __init__(self, session: Session, options: WorkerOptions | None = None) -> None:
        self.session = session
        self.options = options or WorkerOptions()
        self.clock = 0
        self.bytes_pushed = 0
        self.bytes_pulled = 0
        self._next_seq = 0
        self._legs: dict[int, Leg] = {}  # by sequence number, in its order
        self._unaccepted: dict[int, Leg] = {}  # those with pushes that some server may not hold
        self._requests: dict[int, Pending] = {}
        self._awaiting: list[int] = []
        self._in_flight_bytes = 0
        self._unsent = 0
        self._next_tick = inf
        self._router: Router | None = None  # of the present view
        self._story = Story()

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        part = self._part_of(sender, message)
        if part is None or part.done or nbytes != part.nbytes_out:
            return Discard("nobody waits for it")
        if part.sink is not None:
            part.sink.revoke()
        part.sink = Sink(part.outs)
        return Accept(part.sink)

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        match event:
            case Received(sender, message, payload):
                self._story.add(now, sender, message)
                if isinstance(message, Reply):
                    self._reply(sender, message, payload, now, out)
                elif isinstance(message, Nudge):
                    self._probe_all(now, out)
                elif isinstance(message, NotDeclared):
                    self._declared(message.table, message.reason, out)
                elif sender == SCHEDULER:
                    view = self.session.handle(message, now, out)
                    if view is not None:
                        self._adopt(view, now, out)
            case Asked(request_id, request):
                self._asked(request_id, request, now, out)
            case Ticked():
                self.session.tick(now, out)
                if now >= self._next_tick:
                    self._tick(now, out)
                    self._next_tick = min(self._wakeups(), default=inf)
            case PeerLost(node):
                self._peer_lost(node, now)
                self._next_tick = min(self._next_tick, now + self.options.behind_s)
        if self.session.ended:
            self._end(out)
        return out

    def deadline(self) -> float | None:
        at = min(self._next_tick, self.session.deadline())
        return at if at < inf else None

    def address_of(self, node: NodeId) -> str | None:
        member = self.session.view.member(node) if self.session.view else None
        return member.address if member and member.role == "server" else None

    def check(self) -> None:
        """Every leg belongs to a request; no request has more in flight than its window."""
        for seq, leg in self._legs.items():
            if leg.request_id and leg.request_id not in self._requests:
                raise self._story.broken(f"leg #{seq} belongs to no request")
        if self._legs and self._next_seq > next(iter(self._legs)) + WINDOW + self._unsent:
            raise self._story.broken("more requests in flight than the window allows")

    def number_of(self, table: str) -> int | None:
        """The number of the table of that name in the present view."""
        return self._router.numbers.get(table) if self._router else None

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def hopeless(self, request_id: int) -> str:
        """Why waiting for a request now would never end; empty where it may."""
        for leg in self._legs.values():
            if leg.request_id == request_id and leg.closing and leg.clock >= self.clock:
                return (
                    f"a push at clock {leg.clock} to a table that settles at the close is "
                    "acknowledged when its round closes; call advance() before waiting for it"
                )
        return ""

    def waiting(self) -> list[tuple[str, str]]:
        """(request, reason) of everything unanswered."""
        return [
            (describe(part.message), f"{self._name(part.server)}: {part.reason}")
            for leg in self._legs.values()
            for part in leg.parts.values()
            if not part.done
        ]

    # ------------------------------------------------------------------ asking

    def _asked(self, request_id: int, request: object, now: float, out: Effects) -> None:
        self.session.progress += 1
        if self.session.ended:
            error = Refused("this worker's run has ended")
            out.append(Resolve(request_id, Outcome(error=error)))
            return
        match request:
            case Exchange():
                try:
                    self._exchange(request_id, request, now, out)
                except InvalidValue as error:
                    self._forget_legs(request_id)
                    self._requests.pop(request_id, None)
                    out.append(Resolve(request_id, Outcome(error=error)))
            case DeclareTable(spec):
                question = Declare(self.session.incarnation, spec)
                self.session.ask(f"table {spec.name}", request_id, question, now, out)
                self._check_declared(spec, out)
            case EnterBarrier(name, groups):
                self.session.enter_barrier(request_id, name, groups, now, out)
            case FinishWork():
                self.session.finish(request_id, now, out)
            case AwaitView():
                self._awaiting.append(request_id)
                self._resolve_awaiting(out)
            case Cancel(target):
                self.session.forget(target)
                if target in self._requests:
                    self._resolve(target, Cancelled("the caller withdrew it"), out)
                out.append(Resolve(request_id, Outcome()))

    def _exchange(self, request_id: int, ask: Exchange, now: float, out: Effects) -> None:
        router = self._router
        if router is None:
            raise InvalidValue("this worker is in no view yet")
        clock = advance = self.clock
        if ask.advance:
            advance = FOREVER if ask.last else clock + 1
        timeout = self.options.sync_timeout_s if ask.timeout_s is None else ask.timeout_s
        after = [each for each in ask.after if each in self._requests]
        pending = Pending(0, after, now + timeout, timeout)
        self._requests[request_id] = pending
        told = advance if ask.advance else -1
        if router.rides(ask):
            self._add_leg(router, request_id, clock, ask, ask.pushes, told, ask.pulls)
        else:
            self._add_leg(router, request_id, clock, ask, ask.pushes, -1, ())
            self._add_leg(router, request_id, clock, ask, (), told, ask.pulls)
        self.clock = advance
        self._next_tick = min(self._next_tick, pending.expires_at)
        self._pump(now, out)

    def _add_leg(
        self,
        router: Router,
        request_id: int,
        clock: int,
        ask: Exchange,
        pushes: tuple[PushOp, ...],
        advance: int,
        pulls: tuple[PullOp, ...],
    ) -> None:
        plan, shares = router.cut(pushes, pulls, advance >= 0)
        gates = [
            seq
            for seq, earlier in self._unaccepted.items()
            if advance >= 0 or any(table in plan.pulled for table in earlier.tables)
        ]
        seq = self._next_seq
        self._next_seq += 1
        leg = Leg(request_id, clock, {}, plan.pushed, plan.closing and not ask.assign, gates)
        for share in shares:
            message = Request(
                router.view_id,
                self.session.incarnation,
                seq,
                0,
                clock,
                share.pushes,
                advance,
                share.pulls,
                ask.weight,
                ask.lr,
                ask.assign,
            )
            leg.parts[share.server] = LegPart(
                share.server, message, share.buffers, share.outs, share.nbytes_out, share.nbytes
            )
            leg.nbytes += share.nbytes
        self._requests[request_id].legs += 1
        self._legs[seq] = leg
        self._unsent += 1
        if pushes:
            self._unaccepted[seq] = leg

    # ------------------------------------------------------------------ sending

    def _pump(self, now: float, out: Effects) -> None:
        """Send what its gates, its dependencies and the credits allow, in order."""
        if not self._unsent:
            return
        lowest = next(iter(self._legs))
        for seq, leg in list(self._legs.items()):
            if leg.sent:
                continue
            if seq >= lowest + WINDOW:
                return
            leg.gates = [gate for gate in leg.gates if gate in self._unaccepted]
            if leg.gates or self._requests[leg.request_id].after:
                continue
            crowded = self._in_flight_bytes + leg.nbytes > self.options.credit_bytes
            if leg.nbytes and self._in_flight_bytes and crowded:
                continue
            self._send_leg(leg, lowest, now, out)
            if not leg.parts:  # a request without any row asks nobody
                self._leg_done(seq, leg, out)

    def _send_leg(self, leg: Leg, lowest: int, now: float, out: Effects) -> None:
        leg.sent = True
        self._unsent -= 1
        self._next_tick = min(self._next_tick, now + self.options.probe_s)
        self._in_flight_bytes += leg.nbytes
        for part in leg.parts.values():
            if lowest:
                part.message = msgspec.structs.replace(part.message, settled_below=lowest)
            part.wait_s = self.options.probe_s
            part.again_at = now + part.wait_s
            self.bytes_pushed += part.nbytes
            out.append(Send(part.server, part.message, part.buffers))

    def _tick(self, now: float, out: Effects) -> None:
        for leg in list(self._legs.values()):
            for part in leg.parts.values():
                if leg.sent and not part.done and now >= part.again_at:
                    part.wait_s = min(2 * part.wait_s, self.options.probe_max_s)
                    self._probe(part, now, out)
        for request_id, pending in list(self._requests.items()):
            if now < pending.expires_at or request_id not in self._requests:
                continue
            if not pending.nudged:
                pending.nudged = True
                pending.expires_at = now + pending.timeout_s
                self._probe_all(now, out, request_id, urgent=True)
            else:
                self._resolve(request_id, self._timed_out(request_id, pending), out)
        self._pump(now, out)

    def _wakeups(self) -> list[float]:
        times = [pending.expires_at for pending in self._requests.values()]
        for leg in self._legs.values():
            if leg.sent:
                times += [part.again_at for part in leg.parts.values() if not part.done]
        return times

    def _probe(self, part: LegPart, now: float, out: Effects, urgent: bool = False) -> None:
        part.again_at = now + part.wait_s
        self._next_tick = min(self._next_tick, part.again_at)
        message = part.message
        probe = Probe(self.session.view_id, message.incarnation, message.seq, urgent)
        out.append(Send(part.server, probe))

    def _probe_all(
        self, now: float, out: Effects, request_id: int | None = None, urgent: bool = False
    ) -> None:
        for leg in self._legs.values():
            if leg.sent and request_id in (None, leg.request_id):
                for part in leg.parts.values():
                    if not part.done:
                        self._probe(part, now, out, urgent)

    def _peer_lost(self, node: NodeId, now: float) -> None:
        """Ask again once the connection is back; half an answer must not be waited for."""
        for leg in self._legs.values():
            part = leg.parts.get(node)
            if part is not None and leg.sent and not part.done:
                if part.sink is not None:
                    part.sink.revoke()
                    part.sink = None
                part.again_at = min(part.again_at, now + self.options.behind_s)

    # ------------------------------------------------------------------ answers

    def _part_of(self, sender: NodeId, message: Message) -> LegPart | None:
        if not isinstance(message, Reply) or message.incarnation != self.session.incarnation:
            return None
        leg = self._legs.get(message.seq)
        return leg.parts.get(sender) if leg is not None else None

    def _reply(
        self, sender: NodeId, reply: Reply, payload: Sink | None, now: float, out: Effects
    ) -> None:
        part = self._part_of(sender, reply)
        if part is None or part.done:
            out.append(Note("late", {"seq": reply.seq, "code": reply.code}))
            return
        leg = self._legs[reply.seq]
        part.reason = reply.reason or reply.code
        match reply.code:
            case "applied":
                self._applied(part, leg, reply, payload, now, out)
            case "accepted":
                part.accepted = True
                self._check_accepted(reply.seq, leg, now, out)
            case "parked":  # its pull is; the push with it has been taken
                part.again_at = now + part.wait_s
                part.accepted = True
                self._check_accepted(reply.seq, leg, now, out)
            case "missing":
                self._send_again(part, now, out)
            case "stale":
                part.again_at = now + self.options.behind_s
                self._next_tick = min(self._next_tick, part.again_at)
                if reply.view > self.session.view_id:
                    self.session.ask_for_view(out)
            case "refused" | "round_closed":
                self._refused(part, leg, reply, out)
                self._pump(now, out)

    def _applied(
        self,
        part: LegPart,
        leg: Leg,
        reply: Reply,
        payload: Sink | None,
        now: float,
        out: Effects,
    ) -> None:
        if part.nbytes_out and payload is None:
            # The rows themselves were lost: ask for them again, without the push.
            pulled = part.message.pulls
            keyed = sum(each.keys >= 0 for each in pulled)
            part.message = msgspec.structs.replace(part.message, pushes=())
            part.buffers = part.buffers[len(part.buffers) - keyed :]
            self._send_again(part, now, out)
            return
        if payload is not None and (payload.revoked or payload is not part.sink):
            out.append(Note("late", {"seq": reply.seq, "code": reply.code}))
            return
        part.accepted = part.done = True
        part.again_at = inf
        self.bytes_pulled += part.nbytes_out
        pending = self._requests.get(leg.request_id)
        if pending is not None:
            pending.clock_min = min(pending.clock_min, reply.clock_min)
            pending.round_weight = max(pending.round_weight, reply.round_weight)
        if all(each.done for each in leg.parts.values()):
            self._leg_done(reply.seq, leg, out)
            self._pump(now, out)
        else:
            self._check_accepted(reply.seq, leg, now, out)

    def _refused(self, part: LegPart, leg: Leg, reply: Reply, out: Effects) -> None:
        kind = RoundClosed if reply.code == "round_closed" else Refused
        who = self._name(part.server)
        error = kind(f"{who} refused {describe(part.message)}: {reply.reason}")
        part.accepted = part.done = True  # this server has said its last word on it
        if leg.request_id:
            self._resolve(leg.request_id, error, out)
        elif all(each.done for each in leg.parts.values()):
            self._drop_leg(reply.seq, leg)

    def _send_again(self, part: LegPart, now: float, out: Effects) -> None:
        part.message = msgspec.structs.replace(part.message, view=self.session.view_id)
        part.again_at = now + part.wait_s
        self._next_tick = min(self._next_tick, part.again_at)
        out.append(Send(part.server, part.message, part.buffers))

    def _check_accepted(self, seq: int, leg: Leg, now: float, out: Effects) -> None:
        if seq in self._unaccepted and all(part.accepted for part in leg.parts.values()):
            del self._unaccepted[seq]
            self._pump(now, out)

    def _leg_done(self, seq: int, leg: Leg, out: Effects) -> None:
        self._drop_leg(seq, leg)
        pending = self._requests.get(leg.request_id)
        if pending is None:
            return
        pending.legs -= 1
        if not pending.legs:
            self._resolve(leg.request_id, None, out)

    def _drop_leg(self, seq: int, leg: Leg) -> None:
        del self._legs[seq]
        self._unaccepted.pop(seq, None)
        if leg.sent:
            self._in_flight_bytes -= leg.nbytes
        else:
            self._unsent -= 1
        for part in leg.parts.values():
            if part.sink is not None and not part.done:
                part.sink.revoke()  # what still arrives goes to scratch

    def _forget_legs(self, request_id: int) -> None:
        for seq, leg in list(self._legs.items()):
            if leg.request_id == request_id:
                if leg.sent and leg.tables and not all(p.done for p in leg.parts.values()):
                    self._orphan(leg)
                else:
                    self._drop_leg(seq, leg)

    def _orphan(self, leg: Leg) -> None:
        """Give the caller its buffers back and let the push go on with copies."""
        leg.request_id = 0
        for part in leg.parts.values():
            if part.sink is not None:
                part.sink.revoke()
                part.sink = None
            part.outs, part.nbytes_out = [], 0
            if not part.accepted:
                part.buffers = tuple(memoryview(bytes(each)) for each in part.buffers)

    def _resolve(self, request_id: int, error: Exception | None, out: Effects) -> None:
        pending = self._requests.pop(request_id)
        self._forget_legs(request_id)
        outcome = Outcome(
            error=error,  # type: ignore[arg-type]
            clock_min=-1 if pending.clock_min == FOREVER else pending.clock_min,
            round_weight=pending.round_weight,
        )
        out.append(Resolve(request_id, outcome))
        for follower, other in list(self._requests.items()):
            if request_id in other.after:
                other.after.remove(request_id)
                if error is not None and follower in self._requests:
                    why = Refused(f"a request that this one comes after failed: {error}")
                    self._resolve(follower, why, out)

    def _timed_out(self, request_id: int, pending: Pending) -> RequestTimeout:
        lines, parked = [], False
        for leg in self._legs.values():
            if leg.request_id != request_id:
                continue
            for part in leg.parts.values():
                if not part.done:
                    why = part.reason if leg.sent else "not sent: an earlier push is not accepted"
                    parked = parked or "waits for" in why
                    lines.append(f"{self._name(part.server)} {why}")
        total = 2 * pending.timeout_s
        text = f"no answer within {total:g} s: {'; '.join(lines)}"
        return (SyncTimeout if parked else RequestTimeout)(text, self._story.lines())

    # ------------------------------------------------------------------ views, end

    def _adopt(self, view: View, now: float, out: Effects) -> None:
        first = view.member(self.session.me)
        if first is not None and self.clock < first.first_clock:
            self.clock = first.first_clock
        self._router = Router(view)
        for spec in view.tables:
            self._declared(spec.name, "", out)
        self._resolve_awaiting(out)
        for leg in self._legs.values():
            for part in leg.parts.values():
                part.message = msgspec.structs.replace(part.message, view=view.id)
        self._probe_all(now, out)
        self._pump(now, out)

    def _declared(self, table: str, reason: str, out: Effects) -> None:
        error = Refused(reason) if reason else None
        self.session.answered(f"table {table}", out, Outcome(error=error))

    def _check_declared(self, spec: TableSpec, out: Effects) -> None:
        """The view may have the table already; another of that name is for the scheduler."""
        view = self.session.view
        number = view.named(spec.name) if view else None
        if view is None or number is None:
            return
        known = view.tables[number]
        if msgspec.structs.replace(known, fragment_rows=spec.fragment_rows) == spec:
            self._declared(spec.name, "", out)

    def _resolve_awaiting(self, out: Effects) -> None:
        if self.session.view is not None:
            for request_id in self._awaiting:
                out.append(Resolve(request_id, Outcome(value=self.session.view)))
            self._awaiting.clear()

    def _end(self, out: Effects) -> None:
        """The session is over: nothing that is asked will be answered."""
        for seq, leg in list(self._legs.items()):
            leg.tables = ()  # nothing goes on either
            if not leg.request_id:
                self._drop_leg(seq, leg)
        stop = next((e for e in out if isinstance(e, Stop)), None)
        error = stop.error if stop and stop.error else Refused("the run has ended")
        for request_id in list(self._requests):
            if request_id in self._requests:
                self._resolve(request_id, error, out)
        for request_id in self._awaiting:
            out.append(Resolve(request_id, Outcome(error=error)))
        self._awaiting.clear()

    def _name(self, node: NodeId) -> str:
        member = self.session.view.member(node) if self.session.view else None
        return member.name if member else node
