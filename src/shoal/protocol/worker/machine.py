"""The worker's state machine: requests, fan-out, resends, reassembly, clocks.

`worker.in_flight` knows which sub-requests are under way and which may be sent.
Architecture invariant: tensors, threads and connections are absent here. Values are memoryviews,
borrowed from the caller until the request is resolved.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from shoal.errors import (
    Cancelled,
    InvalidValue,
    Refused,
    RequestTimeout,
    RoundClosed,
    RunAborted,
    ShoalError,
    SyncTimeout,
)
from shoal.keys import KeyRange
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Detach,
    Discard,
    Effects,
    Event,
    EventTrace,
    Note,
    Outcome,
    PeerLost,
    Received,
    Resolve,
    Send,
    Sink,
    Stop,
    Ticked,
)
from shoal.protocol.messages.base import SCHEDULER, Message, misplaced
from shoal.protocol.messages.collective import NeighbourPiece, Piece
from shoal.protocol.messages.membership import Busy
from shoal.protocol.messages.requests import Computing, Nudge, Reply
from shoal.protocol.requests import Cancel, Exchange, FinishWork
from shoal.protocol.session import Session
from shoal.protocol.views import FOREVER, NodeId, Role, View
from shoal.protocol.worker.in_flight import InFlight, SubRequest, SubRequestPart
from shoal.protocol.worker.options import WorkerOptions
from shoal.protocol.worker.peers.peers import Peers
from shoal.protocol.worker.pending_requests import PendingRequest, PendingRequests
from shoal.protocol.worker.rerouting import chained, joined, moved, reroute, tell
from shoal.protocol.worker.routing import Router
from shoal.protocol.worker.sender import Sender
from shoal.protocol.worker.server_part import SubRequestPlan

RUN_ENDED = "this worker's run has ended"


HAS_KEYS = frozenset(("applied", "accepted", "waiting"))  # a server that says so has admitted it


class LateReply(Note, frozen=True, tag="late"):
    """A reply is ignored: its sub-request is not under way any more."""

    seq: int
    code: str


class AskedAgain(Note, frozen=True, tag="asked again"):
    """A request is not done, although its servers have answered: some rows are still missing."""

    request_id: int


class WorkerMachine:
    """Sends one caller's requests to servers, and resolves each request exactly once.

    Attributes:
        peers:  the exchanges with other workers; None if there are none
    """

    def __init__(
        self,
        session: Session,
        options: WorkerOptions | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.session = session
        self.options = options or WorkerOptions()
        self.peers = peers
        self.clock = 0
        self.bytes_pulled = 0
        self._in_flight = InFlight(self.options.credit_bytes)
        self._requests = PendingRequests()
        self._sender = Sender(session, self._in_flight, self.options)
        self._router: Router | None = None  # of the current view
        self._leaving: list[int] = []  # the requests to finish that the scheduler is not told of
        self._trace = EventTrace()

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        if self.peers is not None and isinstance(message, (Piece, NeighbourPiece)):
            return self.peers.arriving(sender, message, nbytes)
        answered = self._answered(sender, message) if isinstance(message, Reply) else None
        return (
            answered[1].receive(nbytes, answered[0]) if answered else Discard("nobody waits for it")
        )

    def problem_of(self, received: Received) -> str:
        if isinstance(received.message, Reply):  # counts only from a server that was sent a part
            return ""
        sender, message = received.sender, received.message
        problem = misplaced(message, sender, self.session.role_of(sender))
        if not problem and self.peers is not None:
            return self.peers.problem_of(sender, message)
        return problem

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        if type(event) is Received and self.session.unanswered.counts:
            self.session.unanswered.heard(event.sender)
        if type(event) is Received and type(event.message) is Reply:  # most events are one of both
            self._trace.add((now, event.sender, event.message))
            self._reply(event.sender, event.message, event.payload, now, out)
        elif type(event) is Asked and type(event.request) is Exchange:
            self._exchange(event.request_id, event.request, now, out)
        elif self.peers is None:
            self._handle(event, now, out)
        elif not self.peers.handle(event, now, out):
            self._handle(event, now, out)
            if not self.session.ended:
                self.peers.go_on(event, now, out)
        if self.session.ended:
            self._end(out)
        elif self._leaving and self._settled:
            self._leave(now, out)
        return out

    def _handle(self, event: Event, now: float, out: Effects) -> None:
        if isinstance(event, Received):
            self._trace.add((now, event.sender, event.message))
            self._received(event.sender, event.message, now, out)
        elif isinstance(event, Asked):
            self._asked(event.request_id, event.request, now, out)
        elif isinstance(event, Ticked):
            self.session.tick(now, out)
            if now >= self._sender.wakes_at:
                self._tick(now, out)
                self._sender.wake_at(min(self._requests.wakes_at(), self._in_flight.wakes_at()))
        elif isinstance(event, PeerLost):
            self.session.peer_lost(event.node, now, event.closed)
            self._in_flight.peer_lost(event.node, now + self.options.behind_s)
            self._sender.wake(now + self.options.behind_s)

    def deadline(self) -> float | None:
        at = min(self.session.deadline(), self._sender.wakes_at)
        at = at if self.peers is None else min(at, self.peers.deadline())
        return at if at < inf else None

    def address_of(self, node: NodeId) -> str | None:
        member = self.session.view.member(node) if self.session.view else None
        if member is not None and member.role == "server":
            return member.address
        return self.peers.address_of(node) if self.peers is not None else None

    def check(self) -> None:
        """Check that sub-requests belong to requests and that the window is kept."""
        for sub_request in self._in_flight.sub_requests.values():
            if sub_request.request_id and sub_request.request_id not in self._requests:
                raise self._trace.broken(f"sub-request #{sub_request.seq} belongs to no request")
        if problem := self._in_flight.problem():
            raise self._trace.broken(problem)

    @property
    def bytes_pushed(self) -> int:
        """The payload bytes sent to servers so far, without resends."""
        return self._sender.bytes_pushed

    @property
    def bytes_sent(self) -> int:
        """The payload bytes sent so far, to servers and to other workers."""
        return self.bytes_pushed + (self.peers.bytes_sent if self.peers is not None else 0)

    @property
    def bytes_received(self) -> int:
        """The payload bytes received so far, from servers and from other workers."""
        return self.bytes_pulled + (self.peers.bytes_received if self.peers is not None else 0)

    @property
    def listens(self) -> bool:
        """Whether other workers send values that no request waits for."""
        return self.peers is not None and self.peers.listens

    @property
    def sends_on(self) -> bool:
        """Whether bytes may be unsent that no request waits for."""
        return self.peers is not None and self.peers.sends_on

    def number_of(self, table: str) -> int | None:
        """Return the number of the table with a name in the current view; None if it is unknown."""
        return self._router.numbers.get(table) if self._router else None

    def hopeless(self, request_id: int) -> str:
        """Return why waiting for a request would never end; empty if it may end."""
        pending = self._requests.get(request_id)
        for sub_request in pending.sub_requests if pending is not None else ():
            if sub_request.plan.closing and sub_request.clock >= self.clock:
                return (
                    f"a push at clock {sub_request.clock} to a table with apply_at='round_end' is "
                    "acknowledged when its round closes; call advance() before waiting for it"
                )
        return ""

    def role_of(self, node: NodeId) -> Role | None:
        return self.session.role_of(node)

    def waiting(self) -> list[tuple[str, str]]:
        """Return (request, reason) of every unanswered request."""
        of_peers = self.peers.waiting() if self.peers is not None else []
        return [
            (
                self._sender.message(sub_request, part).describe(),
                f"{self.session.name_of(part.server_part.server)}: {part.reason}",
            )
            for sub_request in self._in_flight.sub_requests.values()
            for part in sub_request.open_parts()
        ] + of_peers

    # ------------------------------------------------------------------ asking

    def _asked(self, request_id: int, request: object, now: float, out: Effects) -> None:
        if self.session.ended:
            out.append(Resolve(request_id, Outcome(error=Refused(RUN_ENDED))))
        elif isinstance(request, FinishWork):
            self._leaving.append(request_id)
        else:
            self.session.asked(request_id, request, self.clock, now, out)
            if isinstance(request, Cancel):
                self._leaving = [each for each in self._leaving if each != request.request_id]
                if request.request_id in self._requests:
                    self._resolve(request.request_id, Cancelled("the caller withdrew it"), out)
                    self._pump(now, out)
                out.append(Resolve(request_id, Outcome()))

    def _exchange(self, request_id: int, ask: Exchange, now: float, out: Effects) -> None:
        try:
            if self.session.ended:
                raise Refused(RUN_ENDED)
            if self._router is None:
                raise InvalidValue("this worker is in no view yet")
            known: tuple[Router, tuple[SubRequestPlan, ...]] | None = ask.route
            if known is not None and known[0] is self._router:  # as in every step of training
                plans = known[1]
            else:
                plans = self._router.sub_requests(ask)
        except (Refused, InvalidValue) as mistake:
            uncounted = tuple((op.table, op.rows) for op in ask.pushes)
            out.append(Resolve(request_id, Outcome(error=mistake, uncounted=uncounted)))
            return
        clock = advance = self.clock = max(self.clock, ask.at)
        if ask.advance:
            advance = self.clock = FOREVER if ask.last else clock + 1
        patient = ask.timeout_s is None  # a limit that the caller has set is not extended
        timeout_s = self.options.sync_timeout_s if ask.timeout_s is None else ask.timeout_s
        sub_requests = []
        for plan in plans:
            told = advance if plan.advances else -1
            sub_requests.append(self._in_flight.add(request_id, ask, plan, clock, told))
        waits = timeout_s, patient, ask.after
        pending = self._requests.open(request_id, now, *waits, sub_requests, advance)
        if pending.expires_at < self._sender.wakes_at:
            self._sender.wake(pending.expires_at)
        if not pending.after and self._in_flight.leave_first(sub_requests[0]):
            self._sender.send(sub_requests[0], now, out)
        else:
            self._pump(now, out)

    # ------------------------------------------------------------------ sending

    def _pump(self, now: float, out: Effects) -> None:
        """Send the sub-requests that dependencies, window and credits allow, in order."""
        if not self._in_flight.unsent:
            return
        for sub_request in self._in_flight.admitted():
            pending = self._requests.get(sub_request.request_id)
            if pending is not None and pending.after:
                continue
            self._in_flight.leave(sub_request)
            self._sender.send(sub_request, now, out)
            if not sub_request.parts:  # a request without any row goes to no server
                self._sub_request_done(sub_request, now, out)

    def _tick(self, now: float, out: Effects) -> None:
        self._sender.probe_due(now, out)
        for request_id, pending in self._requests.expired(now):
            if not pending.nudged or (pending.patient and self.options.on_timeout != "ask"):
                pending.nudge(now)
                for sub_request in pending.sub_requests:
                    self._sender.probe(sub_request, now, out, urgent=True)
            else:
                self._resolve(request_id, self._timed_out(pending), out)
        self._pump(now, out)

    # ------------------------------------------------------------------ answers

    def _received(self, sender: NodeId, message: Message, now: float, out: Effects) -> None:
        if isinstance(message, Nudge):
            self._sender.probe_all(now, out)
            if self._computes():
                out.append(Send(sender, Computing(self.session.incarnation)))
        elif isinstance(message, Computing | Busy):
            self._requests.wait_on(sender, now)
        elif sender == SCHEDULER and (view := self.session.handle(message, now, out)):
            self._adopt(view, now, out)

    def _answered(self, server: NodeId, reply: Reply) -> tuple[SubRequest, SubRequestPart] | None:
        """Return the open part that a reply answers, if it replies to the part as last sent."""
        if reply.incarnation != self.session.incarnation:
            return None
        sub_request = self._in_flight.sub_requests.get(reply.seq)
        if sub_request is None or not sub_request.sent or reply.view < sub_request.since:
            return None
        part = sub_request.parts.get(server)
        return None if part is None or part.done else (sub_request, part)

    def _reply(
        self, sender: NodeId, reply: Reply, payload: Sink | None, now: float, out: Effects
    ) -> None:
        answered: tuple[SubRequest, SubRequestPart] | None
        if payload is not None and not payload.revoked and not payload.context[1].done:
            answered = payload.context
        else:
            answered = self._answered(sender, reply)
        if answered is None:
            out.append(LateReply(reply.seq, reply.code))
            return
        sub_request, part = answered
        if part.server_part.lists and reply.code in HAS_KEYS:
            self._sender.has_keys(part)
        if reply.code == "applied":
            self._applied(sub_request, part, reply, payload, now, out)
            return
        part.heard(reply.reason or reply.code)
        match reply.code:
            case "accepted" | "waiting":  # if its pull waits, its push was admitted
                part.ask_at(now + part.wait_s)
                # a push without a round is not accepted before all replicas have it
                if reply.code == "waiting" or sub_request.plan.closing or not self._in_flight.gated:
                    self._in_flight.land(sub_request, part)
                    self._pump(now, out)
            case "missing":
                self._sender.send_again(sub_request, part, now, out)
            case "keys":
                self._sender.lacks_keys(part)
                self._sender.send_again(sub_request, part, now, out)
            case "out_of_order":
                self._sender.probe_soon(part, now)
                self._sender.probe_ahead(sub_request, sender, now, out)
            case "stale" if reply.view > self.session.view_id:  # with that view all is probed
                self.session.ask_for_view(reply.view, out)
            case "stale":
                self._sender.probe_soon(part, now)
            case "refused" | "round_closed":
                self._refused(sub_request, part, reply, out)
                self._pump(now, out)

    def _applied(
        self,
        sub_request: SubRequest,
        part: SubRequestPart,
        reply: Reply,
        payload: Sink | None,
        now: float,
        out: Effects,
    ) -> None:
        if payload is None and part.server_part.nbytes_out:  # the push is applied, the rows lost
            part.heard(reply.code)
            part.pull_again()
            self._sender.send_again(sub_request, part, now, out)
            return
        if payload is not None and (payload.revoked or payload is not part.sink):
            out.append(LateReply(reply.seq, reply.code))
            return
        done = self._in_flight.applied(sub_request, part)
        if payload is not None:
            self.bytes_pulled += payload.nbytes
            if part.server_part.answers:
                part.server_part.answered(payload.views)
        pending = self._requests.get(sub_request.request_id)
        if pending is not None and pending.applied(reply, sub_request if done else None):
            if sub_request.ask.landed is None:  # as nearly all
                self._resolve(sub_request.request_id, None, out)
            else:
                self._complete(sub_request, pending, now, out)
        if self._in_flight.unsent:
            self._pump(now, out)

    def _refused(
        self, sub_request: SubRequest, part: SubRequestPart, reply: Reply, out: Effects
    ) -> None:
        kind = RoundClosed if reply.code == "round_closed" else Refused
        who, message = part.server_part.server, self._sender.message(sub_request, part)
        error = kind(f"{self.session.name_of(who)} refused {message.describe()}: {reply.reason}")
        self._in_flight.land(sub_request, part)
        part.refuse(late=kind is RoundClosed)
        if sub_request.request_id:
            self.clock = max(self.clock, reply.clock_min if kind is RoundClosed else 0)
            self._resolve(sub_request.request_id, error, out)
        elif sub_request.done:
            self._in_flight.drop(sub_request)

    def _sub_request_done(self, sub_request: SubRequest, now: float, out: Effects) -> None:
        self._in_flight.drop(sub_request)
        pending = self._requests.get(sub_request.request_id)
        if pending is not None and pending.done(sub_request):
            self._complete(sub_request, pending, now, out)

    def _complete(
        self, sub_request: SubRequest, pending: PendingRequest, now: float, out: Effects
    ) -> None:
        """Resolve a request whose sub-requests are done, or make the exchange that it lacks."""
        request_id, landed = sub_request.request_id, sub_request.ask.landed
        if landed is None:
            self._resolve(request_id, None, out)
            return
        assert self._router is not None
        try:
            more = landed()
            if more is not None and self.session.ended:
                raise Refused(RUN_ENDED)
            plans = self._router.sub_requests(more) if more is not None else ()
        except ShoalError as error:
            self._resolve(request_id, error, out)
            return
        if more is None:
            self._resolve(request_id, None, out)
            return
        out.append(AskedAgain(request_id))
        for plan in plans:
            self._requests.also(self._in_flight.add(request_id, more, plan, pending.read_at, -1))
        self._pump(now, out)

    def _resolve(self, request_id: int, error: ShoalError | None, out: Effects) -> None:
        pending, followers = self._requests.close(request_id)
        uncounted = self._uncounted(pending.sub_requests) if error is not None else ()
        for sub_request in pending.sub_requests:
            self._abandon(sub_request, out)
        out.append(Resolve(request_id, pending.outcome(error, self.clock, uncounted)))
        if error is not None:
            why = Refused(f"a request that this one comes after failed: {error}")
            for follower in followers:
                if follower in self._requests:
                    self._resolve(follower, why, out)

    def _uncounted(self, sub_requests: Iterable[SubRequest]) -> tuple[tuple[str, KeyRange], ...]:
        """Return the tables and rows whose pushes no server counts."""
        assert self._router is not None
        tables = self._router.view.tables
        return tuple(
            (tables[part.table].name, KeyRange(part.start, part.stop))
            for each in sub_requests
            for part in each.uncounted()
        )

    def _abandon(self, sub_request: SubRequest, out: Effects) -> None:
        """End a sub-request whose request is over; a push that was sent and an advance go on."""
        sent = sub_request.begun and sub_request.plan.pushed and not sub_request.done
        if sent:  # it may still be sent, even after the run; the caller gets its buffers
            out += [Detach(server) for server, p in sub_request.parts.items() if not p.done]
        if (sent or (sub_request.advance >= 0 and not sub_request.done)) and not self.session.ended:
            self._in_flight.orphan(sub_request)
        else:
            self._in_flight.drop(sub_request)

    def _timed_out(self, pending: PendingRequest) -> RequestTimeout:
        lines, waits = [], False
        for sub_request in pending.sub_requests:
            for part in sub_request.open_parts():
                unsent = "not sent: an earlier push is not accepted"
                why = part.reason if sub_request.sent else unsent
                waits = waits or "waits for" in why
                lines.append(f"{self.session.name_of(part.server_part.server)} {why}")
        hint = " (`on_timeout` says what happens then: wait, or drop late workers)" if waits else ""
        text = f"no answer within {2 * pending.timeout_s:g} s: {'; '.join(lines)}{hint}"
        return (SyncTimeout if waits else RequestTimeout)(text, self._trace.lines())

    def _computes(self) -> bool:
        """Return whether this worker waits for no member: not for the scheduler, in no pull."""
        waits = any(
            each.plan.pulled and any("waits for" in part.reason for part in each.open_parts())
            for each in self._in_flight.sub_requests.values()
        )
        return not (waits or self._leaving or self.session.questions())

    def _adopt(self, view: View, now: float, out: Effects) -> None:
        first = view.member(self.session.me)
        if first is not None:
            self.clock = max(self.clock, first.first_clock)
        space = self.session.options.namespace
        before, router = self._router, Router(view, self.session.group, space)
        self._router = router
        self._in_flight.gate(chained(view))
        known = before.view.servers if before is not None else ()
        told = Computing(self.session.incarnation)  # it connects, so that nudges reach this worker
        out.extend(Send(server.id, told) for server in view.servers if server not in known)
        if before is not None and moved(before.view, view):
            for sub_request in reroute(self._in_flight, before.view, router, self.clock):
                self._requests.also(sub_request)
        elif before is not None and joined(before.view, view):
            tell(self._in_flight, router, self.clock)
        self._leaving += self.session.withdraw_finish()
        self._sender.probe_all(now, out)
        self._pump(now, out)

    @property
    def _settled(self) -> bool:
        """Whether the servers have its pushes and clocks, and the next worker its values."""
        return self._in_flight.settled and (self.peers is None or self.peers.settled)

    def _leave(self, now: float, out: Effects) -> None:
        """Tell the scheduler that this worker has finished.

        The servers have its clocks: a new head that lacked them would hold up the other workers,
        and nobody would repeat them. The next worker of the ring has its values.
        """
        leaving, self._leaving = self._leaving, []
        for request_id in leaving:
            self.session.finish(request_id, now, out)

    def _end(self, out: Effects) -> None:
        """Resolve every request: the session has ended, and no request will be answered."""
        for orphan in [s for s in self._in_flight.sub_requests.values() if not s.request_id]:
            self._in_flight.drop(orphan)
        stop = next((e for e in out if isinstance(e, Stop)), None)
        ended = stop.error if stop is not None else None
        if self.peers is not None:
            self.peers.close(ended or RunAborted("the run has ended"), out)
        error = ended or Refused("the run has ended")
        out.extend(Resolve(request_id, Outcome(error=error)) for request_id in self._leaving)
        self._leaving.clear()
        for request_id in self._requests:
            if request_id in self._requests:
                self._resolve(request_id, error, out)
