"""What a worker has under way: legs, in the order of their sequence numbers.

A request of the caller's becomes one or two *legs*. A leg has one sequence number and at most one
message per server. Two legs are needed where `Advance` has to follow accepted pushes (DESIGN
section 4, rule 5): with several servers a worker tells none of them that it has finished a round
before all of them hold its pushes, so that its death cannot split the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

import msgspec

from shoal.protocol.limits import WINDOW
from shoal.protocol.machine import Sink
from shoal.protocol.requests import Exchange
from shoal.protocol.views import NO_VIEW, NodeId, ViewId
from shoal.protocol.worker.routing import LegPlan, Share


class LegPart(msgspec.Struct, eq=False):
    """One server's share of a leg. Invariant: `done` implies `accepted`."""

    share: Share
    again_at: float = inf
    wait_s: float = 0.0
    accepted: bool = False
    done: bool = False
    reason: str = "no answer"
    sink: Sink | None = None

    def revoke(self) -> None:
        """What still arrives for it goes to scratch."""
        if self.sink is not None:
            self.sink.revoke()
            self.sink = None


class Leg(msgspec.Struct, eq=False):
    """One message per server, and what became of each.

    request_id:  of the caller's request; 0 for an *orphan*, whose request ended with its outcome
                 unknown. It goes on until every server has it: a push that only some of them
                 count would split its round, and an advance that is not told would keep everybody
                 waiting for a clock that this worker has finished
    advance:     the worker's clock afterwards, or -1
    gates:       legs that have to be accepted everywhere first
    follows:     ... or that leave first, and that each server has to take first
    begun:       it was sent once, by now perhaps to servers that are gone
    since:       the view in which it was cut as it is; answers of an earlier one are to another cut
    """

    seq: int
    request_id: int
    ask: Exchange
    plan: LegPlan
    clock: int
    advance: int
    parts: dict[NodeId, LegPart]
    gates: list[int] = []
    follows: list[int] = []
    sent: bool = False
    begun: bool = False
    since: ViewId = NO_VIEW

    def open_parts(self) -> list[LegPart]:
        return [part for part in self.parts.values() if not part.done]

    @property
    def done(self) -> bool:
        for part in self.parts.values():  # noqa: SIM110 - asked at every answer: no generator
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


class Flight:
    """The legs that are not done, and which of them may leave.

    gated: pulls wait until earlier pushes are accepted, because other servers answer them

    Invariant: at most WINDOW sequence numbers lie between the oldest leg and the youngest sent.
    """

    def __init__(self, credit_bytes: int) -> None:
        self.legs: dict[int, Leg] = {}
        self.unsent: dict[int, Leg] = {}
        self._unaccepted: dict[int, Leg] = {}  # those with pushes that some server may not hold
        self.gated = False
        self._credit_bytes = credit_bytes
        self._under_way: dict[NodeId, int] = {}  # payload bytes sent and not accepted, by server
        self._next_seq = 0

    def add(self, request_id: int, ask: Exchange, plan: LegPlan, clock: int, advance: int) -> Leg:
        """The next leg, behind those whose pushes it has to follow."""
        seq = self._next_seq
        self._next_seq = seq + 1
        parts = {share.server: LegPart(share) for share in plan.shares}
        leg = Leg(seq, request_id, ask, plan, clock, advance, parts)
        self._line_up(leg)
        self.legs[seq] = self.unsent[seq] = leg
        if plan.pushed:
            self._unaccepted[seq] = leg
        return leg

    def _line_up(self, leg: Leg) -> None:
        """Put it behind those whose pushes it has to follow."""
        if not self._unaccepted:
            return
        plan, advances = leg.plan, leg.advance >= 0
        behind = [
            earlier.seq
            for earlier in self._unaccepted.values()
            if earlier.seq < leg.seq
            and (
                (advances and earlier.clock < leg.advance)
                or any(table in plan.pulled for table in earlier.plan.pushed)
            )
        ]
        if self.gated or (advances and len(leg.parts) > 1):
            leg.gates = behind
        else:
            leg.follows = behind

    def reroute(self, cut: Callable[[Leg], list[Share]], view: ViewId) -> None:
        """Other servers have some of the rows now: all that is not done is to be sent to them.

        cut: what of a leg is open, by the servers of that view
        """
        for leg in self.legs.values():
            if leg.sent:
                for part in leg.parts.values():
                    self.land(leg, part)
                leg.sent = False
            for part in leg.parts.values():
                part.revoke()
            shares = cut(leg)
            leg.parts = {share.server: LegPart(share) for share in shares}
            leg.since = view
        self.unsent = dict(self.legs)
        self._unaccepted = {seq: leg for seq, leg in self.legs.items() if leg.plan.pushed}
        for leg in self.legs.values():
            leg.gates, leg.follows = [], []
            self._line_up(leg)

    @property
    def lowest(self) -> int:
        """Every request below this is settled."""
        return next(iter(self.legs), self._next_seq)

    def unaccepted_clocks(self) -> set[int]:
        """The clocks of pushes that some server may not hold."""
        return {leg.clock for leg in self._unaccepted.values()}

    def admitted(self) -> Iterator[Leg]:
        """The unsent legs that gates, window and credits let through now, in order.

        A push does not overtake one of an earlier clock: it may have to wait for that clock to be
        over, at its server, and would keep the credit that the other needs.
        """
        pushing: dict[NodeId, int] = {}  # the first clock of those that stay
        for leg in list(self.unsent.values()):
            if leg.seq >= self.lowest + WINDOW:
                return
            if leg.gates:
                leg.gates = [gate for gate in leg.gates if gate in self._unaccepted]
            if leg.sent:
                continue
            to = [server for server, part in leg.parts.items() if part.share.nbytes]
            ahead = min((pushing.get(server, leg.clock) for server in to), default=leg.clock)
            waits = leg.gates or ahead < leg.clock or self._crowded(leg)
            if not waits and self.unsent.keys().isdisjoint(leg.follows):
                yield leg
            else:
                for server in to:
                    pushing.setdefault(server, leg.clock)

    def follows(self, leg: Leg, server: NodeId) -> tuple[int, ...]:
        """What a server is told that it has to have taken."""
        return tuple([each.seq for each in self.ahead(leg, server)]) if leg.follows else ()

    def ahead(self, leg: Leg, server: NodeId) -> list[Leg]:
        """Those that it follows which a server may not have taken yet."""
        earlier = [self._unaccepted[seq] for seq in leg.follows if seq in self._unaccepted]
        return [each for each in earlier if not each.accepted_by(server)]

    def _crowded(self, leg: Leg) -> bool:
        """Whether one of its servers has as much to take in as it has given credit for."""
        for part in leg.parts.values():
            nbytes, before = part.share.nbytes, self._under_way.get(part.share.server, 0)
            if before and nbytes and before + nbytes > self._credit_bytes:
                return True
        return False

    def leave(self, leg: Leg) -> None:
        """The leg is being sent."""
        leg.sent = leg.begun = True
        del self.unsent[leg.seq]
        for part in leg.parts.values():
            server, nbytes = part.share.server, part.share.nbytes
            self._under_way[server] = self._under_way.get(server, 0) + nbytes

    def land(self, leg: Leg, part: LegPart) -> None:
        """The part is accepted: its server has it, and may be sent as much again.

        Credit is not held until it is applied. That may take an advance, which follows pushes that
        wait for this credit.
        """
        if not part.accepted:
            part.accepted = True
            self._under_way[part.share.server] -= part.share.nbytes
            if leg.accepted:
                self._unaccepted.pop(leg.seq, None)

    def drop(self, leg: Leg) -> None:
        """The leg is over; what still arrives for it goes to scratch."""
        del self.legs[leg.seq]
        self._unaccepted.pop(leg.seq, None)
        if leg.sent:
            for part in leg.parts.values():
                self.land(leg, part)
        else:
            del self.unsent[leg.seq]
        for part in leg.parts.values():
            if not part.done:
                part.revoke()

    def orphan(self, leg: Leg) -> None:
        """Give the caller its buffers back; let the push go on with copies, and the advance.

        A push that was not sent is not sent any more.
        """
        leg.request_id = 0
        if not leg.begun:
            self._unaccepted.pop(leg.seq, None)
        for part in leg.parts.values():
            part.revoke()
            if leg.begun:
                copied = self.gated or not part.accepted  # it may have to go to other servers yet
                part.share = part.share.without_caller(copied)
            else:
                part.share = part.share.emptied()

    def due(self, now: float) -> list[tuple[Leg, LegPart]]:
        """The sent parts that are to be asked about."""
        return [
            (leg, part)
            for leg in self.legs.values()
            if leg.sent
            for part in leg.open_parts()
            if now >= part.again_at
        ]

    def wakes_at(self) -> float:
        """When the next one is."""
        times = [
            part.again_at for leg in self.legs.values() if leg.sent for part in leg.open_parts()
        ]
        return min(times, default=inf)

    def peer_lost(self, node: NodeId, again_at: float) -> None:
        """Ask again once the connection is back; half an answer must not be waited for."""
        for leg in self.legs.values():
            part = leg.parts.get(node)
            if part is not None and leg.sent and not part.done:
                part.revoke()
                part.again_at = min(part.again_at, again_at)

    def problem(self) -> str:
        """The invariant that does not hold; empty where all do."""
        sent = self._next_seq - len(self.unsent)
        if self.legs and sent > self.lowest + WINDOW:
            return "more requests in flight than the window allows"
        return ""
