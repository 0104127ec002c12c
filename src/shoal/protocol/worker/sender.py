"""Asking: what a worker says to servers about a leg, and when it says it again."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages import Probe, Request
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId
from shoal.protocol.worker.in_flight import Flight, Leg, LegPart


class Asking:
    """Sends requests, and probes of those that are not answered.

    wakes_at:      nothing is to be asked before; it may be earlier than need be
    bytes_pushed:  payload sent, resends not counted
    """

    def __init__(
        self, session: Session, flight: Flight, probe_s: float, probe_max_s: float
    ) -> None:
        self.wakes_at = inf
        self.bytes_pushed = 0
        self._session = session
        self._flight = flight
        self._probe_s = probe_s
        self._probe_max_s = probe_max_s

    def wake(self, at: float) -> None:
        if at < self.wakes_at:
            self.wakes_at = at

    def send(self, leg: Leg, now: float, out: Effects) -> None:
        """To every server that has a part of it."""
        again_at = now + self._probe_s
        self.wake(again_at)
        for part in leg.parts.values():
            part.wait_s = self._probe_s
            part.again_at = again_at
            self.bytes_pushed += part.share.nbytes
            out.append(Send(part.share.server, self.message(leg, part), part.share.buffers))

    def send_again(self, leg: Leg, part: LegPart, now: float, out: Effects) -> None:
        part.again_at = now + part.wait_s
        self.wake(part.again_at)
        out.append(Send(part.share.server, self.message(leg, part), part.share.buffers))

    def message(self, leg: Leg, part: LegPart) -> Request:
        """What a server is asked, as of now."""
        ask, share = leg.ask, part.share
        return Request(
            self._session.view_id,
            self._session.incarnation,
            leg.seq,
            self._flight.lowest,
            leg.clock,
            share.pushes,
            leg.advance,
            share.pulls,
            ask.weight,
            ask.lr,
            ask.assign,
            self._flight.follows(leg, share.server),
        )

    # ------------------------------------------------------------------ probes

    def probe_due(self, now: float, out: Effects) -> None:
        """Those that have waited long enough, and ever longer."""
        for leg, part in self._flight.due(now):
            part.wait_s = min(2 * part.wait_s, self._probe_max_s)
            self._probe(leg, part, now, out)

    def probe(self, leg: Leg, now: float, out: Effects, urgent: bool = False) -> None:
        """Ask what became of it; `urgent`: servers are to nudge those that they wait for."""
        for part in leg.open_parts() if leg.sent else ():
            self._probe(leg, part, now, out, urgent)

    def probe_all(self, now: float, out: Effects) -> None:
        for leg in self._flight.legs.values():
            self.probe(leg, now, out)

    def probe_at(self, part: LegPart, at: float) -> None:
        """Its server could not take it yet: ask again then."""
        part.again_at = at
        self.wake(at)

    def probe_ahead(self, leg: Leg, server: NodeId, now: float, out: Effects) -> None:
        """A server lacks what the leg follows: ask what became of that."""
        for earlier in self._flight.ahead(leg, server):
            self._probe(earlier, earlier.parts[server], now, out)

    def _probe(
        self, leg: Leg, part: LegPart, now: float, out: Effects, urgent: bool = False
    ) -> None:
        part.again_at = now + part.wait_s
        self.wake(part.again_at)
        probe = Probe(self._session.view_id, self._session.incarnation, leg.seq, urgent)
        out.append(Send(part.share.server, probe))
