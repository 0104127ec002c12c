"""InFlight: a worker's sub-requests under way, in the order of their sequence numbers.

A caller's request becomes one or two *sub-requests*. A sub-request has one sequence number and at
most one message per server. Two are needed where `advance` has to follow accepted pushes: with
several servers a worker reports a finished round to none of them before all of them have its
pushes, so that its death cannot split the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from math import inf

import msgspec

from shoal.protocol.limits import ANSWER_BYTES, IN_FLIGHT, WINDOW
from shoal.protocol.machine import Arrival, Discard, Sink
from shoal.protocol.messages.base import Part
from shoal.protocol.requests import Exchange
from shoal.protocol.views import NO_VIEW, NodeId, ViewId
from shoal.protocol.worker.server_part import ServerPart, SubRequestPlan


class SubRequestPart(msgspec.Struct, eq=False):
    """One server's part of a sub-request. Invariant: `done` implies `accepted`.

    again_at:  the time of the next probe of its server
    wait_s:    the pause between probes, which doubles with each
    soon_s:    the same while its server cannot admit it yet
    counts:    whether its push may count: its server has not refused the push
    reason:    the reason or code in the last reply of its server
    sink:      the sink of the arriving answer
    """

    server_part: ServerPart
    again_at: float = inf
    wait_s: float = 0.0
    soon_s: float = 0.0
    accepted: bool = False
    done: bool = False
    counts: bool = True
    reason: str = "no answer"
    sink: Sink | None = None

    def receive(self, nbytes: int, of: SubRequest) -> Arrival:
        """Return the destination of an answer of `nbytes` bytes; a former one goes to scratch.

        Args:
            of: the sub-request that this is a part of, which the sink names with it.
        """
        wanted, views = self.server_part.nbytes_out, self.server_part.outs
        if wanted != nbytes:  # perhaps an answer of any size
            if wanted != -1 or nbytes > ANSWER_BYTES:
                return Discard("nobody waits for it")
            try:
                views = self.server_part.destination(nbytes)
            except MemoryError:
                return Discard(f"this worker has no memory for {nbytes} bytes")
        if self.sink is not None:
            self.revoke()
        self.sink = Sink(views, (of, self))
        return self.sink

    def ask_at(self, at: float, wait_s: float | None = None) -> None:
        """Set the time of the next probe of its server, and the pause between probes."""
        self.again_at = at
        if wait_s is not None:
            self.wait_s = wait_s

    def ask_soon(self, now: float, least_s: float, most_s: float) -> None:
        """Set the time of the next probe of a server that cannot admit it yet."""
        self.soon_s = min(2 * self.soon_s, most_s) if self.soon_s else least_s
        self.again_at = now + self.soon_s

    def heard(self, reason: str) -> None:
        """Record the answer of the server."""
        self.reason = reason

    def pull_again(self) -> None:
        """Drop the push, which is applied: the pulled rows were lost on their way."""
        self.server_part = self.server_part.without_push()

    def refuse(self, late: bool) -> None:
        """Note that the server has refused it: that is its final reply, and no push counts.

        late: whether its push was late for its round. Otherwise a pull of the same message may have
            been refused, when the push was in the rows already.
        """
        self.done = True
        self.counts = not late and bool(self.server_part.pulls)

    def revoke(self) -> None:
        """Revoke the sink, so that a late answer goes to scratch memory."""
        if self.sink is not None:
            self.sink.revoke()
            self.sink = None


class SubRequest(msgspec.Struct, eq=False):
    """One message per server, and the state of each.

    Attributes:
        seq: the sequence number.
        request_id: the id of the caller's request; 0 for an *orphan*, whose request ended with its
            outcome unknown. An orphan goes on until every server has it: a push that only some
            servers count would split its round, and without the advance the other workers would
            wait for a clock that this worker has finished.
        advance: the clock of the worker afterwards, or -1.
        gates: the sub-requests that every server has to accept before this one is sent.
        follows: the sub-requests that are sent before this one, and that each server has to admit
            before it.
        sent: whether it is sent in its current form.
        begun: whether it was sent before, perhaps to servers that are gone.
        since: the view in which it was cut; replies of an earlier view answer another cut.
    """

    seq: int
    request_id: int
    ask: Exchange
    plan: SubRequestPlan
    clock: int
    advance: int
    parts: dict[NodeId, SubRequestPart]
    gates: list[int] = []
    follows: list[int] = []
    sent: bool = False
    begun: bool = False
    since: ViewId = NO_VIEW

    def split_off(self, push: SubRequestPlan, rest: SubRequestPlan) -> SubRequest:
        """Keep the push alone; return the rest as a sub-request, which comes after it."""
        following = copy(self)
        following.plan = rest
        self.plan, self.advance = push, -1
        return following

    def uncounted(self) -> list[Part]:
        """Return the parts of its push that no server counts: they were not sent, or refused."""
        return [
            part
            for each in self.parts.values()
            if not self.begun or not each.counts
            for part in each.server_part.pushes
        ]

    def open_parts(self) -> list[SubRequestPart]:
        return [part for part in self.parts.values() if not part.done]

    @property
    def done(self) -> bool:
        for part in self.parts.values():  # noqa: SIM110 - on the hot path: no generator
            if not part.done:
                return False
        return True

    def accepted_by(self, server: NodeId) -> bool:
        return server not in self.parts or self.parts[server].accepted

    @property
    def accepted(self) -> bool:
        for part in self.parts.values():  # noqa: SIM110
            if not part.accepted:
                return False
        return True


class InFlight:
    """The sub-requests that are not done, and which of them may be sent.

    Attributes:
        gated: whether pulls wait until earlier pushes are accepted, because other servers (the
            tails) answer them.

    Invariant: at most IN_FLIGHT sub-requests are sent and not done, and at most WINDOW sequence
    numbers lie between the oldest one and the youngest that was sent.
    """

    def __init__(self, credit_bytes: int) -> None:
        self.sub_requests: dict[int, SubRequest] = {}
        self.unsent: dict[int, SubRequest] = {}
        # sub-requests with pushes that some server may not have accepted
        self._unaccepted: dict[int, SubRequest] = {}
        self.gated = False
        self._credit_bytes = credit_bytes
        self._under_way: dict[NodeId, int] = {}  # payload bytes sent and not accepted, by server
        self._next_seq = 0

    def add(
        self, request_id: int, ask: Exchange, plan: SubRequestPlan, clock: int, advance: int
    ) -> SubRequest:
        """Add a sub-request, behind the ones whose pushes it has to follow."""
        seq = self._next_seq
        self._next_seq = seq + 1
        parts = {}
        for each in plan.server_parts:
            parts[each.server] = SubRequestPart(each)
        sub_request = SubRequest(seq, request_id, ask, plan, clock, advance, parts)
        if self._unaccepted:
            self._line_up(sub_request)
        self.sub_requests[seq] = self.unsent[seq] = sub_request
        if plan.pushed:
            self._unaccepted[seq] = sub_request
        return sub_request

    def _line_up(self, sub_request: SubRequest) -> None:
        """Find the sub-requests whose pushes this one has to follow."""
        plan, advances = sub_request.plan, sub_request.advance >= 0
        if not advances and not plan.pulled:
            return
        behind = [
            earlier.seq
            for earlier in self._unaccepted.values()
            if earlier.seq < sub_request.seq
            and (
                (advances and earlier.clock < sub_request.advance)
                or any(table in plan.pulled for table in earlier.plan.pushed)
            )
        ]
        if self.gated or (advances and len(sub_request.parts) > 1):
            sub_request.gates = behind
        else:
            sub_request.follows = behind

    def reroute(self, cut: Callable[[SubRequest], list[ServerPart]], view: ViewId) -> None:
        """Cut all sub-requests anew, to be sent again: other servers have some of the rows.

        Args:
            cut: the function that cuts a sub-request's open parts for the servers of the view.
            view: the id of the view.
        """
        for sub_request in self.sub_requests.values():
            if sub_request.sent:
                for part in sub_request.parts.values():
                    self.land(sub_request, part)
                sub_request.sent = False
            for part in sub_request.parts.values():
                part.revoke()
            sub_request.parts = {each.server: SubRequestPart(each) for each in cut(sub_request)}
            sub_request.since = view
        self.unsent = dict(self.sub_requests)
        self._unaccepted = {seq: each for seq, each in self.unsent.items() if each.plan.pushed}
        for sub_request in self.sub_requests.values():
            sub_request.gates, sub_request.follows = [], []
            self._line_up(sub_request)

    @property
    def lowest(self) -> int:
        """The sequence number below which every request is resolved."""
        return next(iter(self.sub_requests), self._next_seq)

    @property
    def settled(self) -> bool:
        """Whether the servers have all pushes and clocks that no caller waits for."""
        return all(each.accepted for each in self.sub_requests.values() if not each.request_id)

    @property
    def _sent(self) -> int:
        return len(self.sub_requests) - len(self.unsent)

    def unaccepted_clocks(self) -> set[int]:
        """Return the clocks of pushes that some server may not have accepted."""
        return {sub_request.clock for sub_request in self._unaccepted.values()}

    def admitted(self) -> Iterator[SubRequest]:
        """Yield the sub-requests that dependencies, window and credits allow to send, in order.

        A push does not overtake one of an earlier clock. It may have to wait at its server until
        that clock is over, and would hold the credit that the earlier push needs.
        """
        pushing: dict[NodeId, int] = {}  # the first clock of unsent pushes
        for sub_request in list(self.unsent.values()):
            if sub_request.seq >= self.lowest + WINDOW or self._sent >= IN_FLIGHT:
                return
            if sub_request.gates:
                sub_request.gates = [gate for gate in sub_request.gates if gate in self._unaccepted]
            if sub_request.sent:
                continue
            to = [server for server, part in sub_request.parts.items() if part.server_part.nbytes]
            overtakes = any(pushing[each] < sub_request.clock for each in to if each in pushing)
            waits = sub_request.gates or overtakes or self._crowded(sub_request)
            if not waits and self.unsent.keys().isdisjoint(sub_request.follows):
                yield sub_request
            else:
                for server in to:
                    pushing.setdefault(server, sub_request.clock)

    def follows(self, sub_request: SubRequest, server: NodeId) -> tuple[int, ...]:
        """Return the sequence numbers that a server has to admit before this sub-request."""
        return tuple([each.seq for each in self.ahead(sub_request, server)])

    def ahead(self, sub_request: SubRequest, server: NodeId) -> list[SubRequest]:
        """Return the sub-requests before this one that a server may not have admitted yet."""
        earlier = [self._unaccepted[seq] for seq in sub_request.follows if seq in self._unaccepted]
        return [each for each in earlier if not each.accepted_by(server)]

    def _crowded(self, sub_request: SubRequest) -> bool:
        """Return whether the credit of one of its servers is used up."""
        for part in sub_request.parts.values():
            nbytes = part.server_part.nbytes
            before = self._under_way.get(part.server_part.server, 0)
            if before and nbytes and before + nbytes > self._credit_bytes:
                return True
        return False

    def gate(self, on: bool) -> None:
        """Set whether pulls wait for earlier pushes, because other servers answer them."""
        self.gated = on

    def leave_first(self, sub_request: SubRequest) -> bool:
        """Note that a sub-request to one server is being sent, if no other waits to be sent.

        Returns:
            Whether it may be sent: it fits the window and the server's credit. `admitted` decides
            about all others.
        """
        first, total = next(iter(self.sub_requests)), len(self.sub_requests)
        if len(self.unsent) > 1 or total > IN_FLIGHT or sub_request.seq >= first + WINDOW:
            return False
        if sub_request.gates or len(sub_request.parts) != 1:
            return False
        [part] = sub_request.parts.values()
        server, nbytes = part.server_part.server, part.server_part.nbytes
        before = self._under_way.get(server, 0)
        if before and nbytes and before + nbytes > self._credit_bytes:
            return False
        sub_request.sent = sub_request.begun = True
        del self.unsent[sub_request.seq]
        self._under_way[server] = before + nbytes
        return True

    def leave(self, sub_request: SubRequest) -> None:
        """Note that the sub-request is being sent."""
        sub_request.sent = sub_request.begun = True
        del self.unsent[sub_request.seq]
        for part in sub_request.parts.values():
            server, nbytes = part.server_part.server, part.server_part.nbytes
            self._under_way[server] = self._under_way.get(server, 0) + nbytes

    def land(self, sub_request: SubRequest, part: SubRequestPart) -> None:
        """Note that a part is accepted, and return its credit.

        Credit is not held until the part is applied: that may need an advance, which follows pushes
        that wait for this credit.
        """
        if not part.accepted:
            part.accepted = True
            self._under_way[part.server_part.server] -= part.server_part.nbytes
            if sub_request.accepted:
                self._unaccepted.pop(sub_request.seq, None)

    def applied(self, sub_request: SubRequest, part: SubRequestPart) -> bool:
        """Note that a part is applied; if all are, remove the sub-request and return True."""
        part.done = True
        for each in sub_request.parts.values():
            if not each.done:
                self.land(sub_request, part)
                return False
        if not part.accepted:
            part.accepted = True
            self._under_way[part.server_part.server] -= part.server_part.nbytes
        del self.sub_requests[sub_request.seq]
        self._unaccepted.pop(sub_request.seq, None)
        return True

    def drop(self, sub_request: SubRequest) -> None:
        """Remove a sub-request; late answers go to scratch memory."""
        del self.sub_requests[sub_request.seq]
        self._unaccepted.pop(sub_request.seq, None)
        if sub_request.sent:
            for part in sub_request.parts.values():
                self.land(sub_request, part)
        else:
            del self.unsent[sub_request.seq]
        for part in sub_request.parts.values():
            if not part.done:
                part.revoke()

    def orphan(self, sub_request: SubRequest) -> None:
        """Return the buffers to the caller; the push goes on with copies, and the advance too.

        A push that was not sent yet is dropped.
        """
        sub_request.request_id = 0
        if not sub_request.begun:
            self._unaccepted.pop(sub_request.seq, None)
        for part in sub_request.parts.values():
            part.revoke()
            if sub_request.begun:
                # accepted or not: it may be rerouted to other servers
                part.server_part = part.server_part.without_caller(copied=not part.done)
            else:
                part.server_part = part.server_part.emptied()

    def due(self, now: float) -> list[tuple[SubRequest, SubRequestPart]]:
        """Return the sent parts whose probe is due."""
        return [(each, part) for each, part in self._unanswered() if now >= part.again_at]

    def wakes_at(self) -> float:
        """Return the time of the next probe."""
        return min((part.again_at for _, part in self._unanswered()), default=inf)

    def _unanswered(self) -> Iterator[tuple[SubRequest, SubRequestPart]]:
        for sub_request in self.sub_requests.values():
            for part in sub_request.open_parts() if sub_request.sent else ():
                yield sub_request, part

    def peer_lost(self, node: NodeId, again_at: float) -> None:
        """Plan a probe for when the connection is back, and revoke half-received answers."""
        for sub_request in self.sub_requests.values():
            part = sub_request.parts.get(node)
            if part is not None and sub_request.sent and not part.done:
                part.revoke()
                part.again_at = min(part.again_at, again_at)

    def problem(self) -> str:
        """Return the invariant that does not hold; empty if all hold."""
        sent = [seq for seq, each in self.sub_requests.items() if each.sent]
        if len(sent) > IN_FLIGHT or (sent and sent[-1] >= self.lowest + WINDOW):
            return "more requests in flight than the limits allow"
        return ""
