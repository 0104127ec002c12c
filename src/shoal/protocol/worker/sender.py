"""Sender: a worker's requests and probes to servers, and when they are repeated."""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.requests import EncodedRequest, ListedRequest, Probe, Request
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId
from shoal.protocol.worker.in_flight import InFlight, SubRequest, SubRequestPart
from shoal.protocol.worker.known_lists import KnownLists
from shoal.protocol.worker.options import WorkerOptions


class Sender:
    """Sends sub-requests, and probes of unanswered ones.

    Attributes:
        wakes_at: the time before which nothing is due; it may be earlier than necessary.
        bytes_pushed: the payload bytes sent, without resends.
    """

    def __init__(self, session: Session, in_flight: InFlight, options: WorkerOptions) -> None:
        self.wakes_at = inf
        self.bytes_pushed = 0
        self._session = session
        self._in_flight = in_flight
        self._probe_s = options.probe_s
        self._probe_max_s = options.probe_max_s
        self._behind_s = options.behind_s
        self._known = KnownLists()

    def wake_at(self, at: float) -> None:
        """Set the time before which nothing is due."""
        self.wakes_at = at

    def wake(self, at: float) -> None:
        """Bring `wakes_at` forward to this time, if it is later."""
        if at < self.wakes_at:
            self.wakes_at = at

    def send(self, sub_request: SubRequest, now: float, out: Effects) -> None:
        """Send a sub-request to every server that has a part of it."""
        again_at = now + self._probe_s
        if again_at < self.wakes_at:
            self.wakes_at = again_at
        for part in sub_request.parts.values():
            part.ask_at(again_at, self._probe_s)
            theirs = part.server_part
            buffers = self._known.told(theirs) if theirs.lists else theirs.buffers
            if theirs.sizes or theirs.lists:
                self.bytes_pushed += sum(buffer.nbytes for buffer in buffers)
            else:
                self.bytes_pushed += theirs.nbytes
            out.append(Send(theirs.server, self.message(sub_request, part), buffers))

    def has_keys(self, part: SubRequestPart) -> None:
        """Note that a server has admitted a request: it has the lists of keys."""
        self._known.learn(part.server_part)

    def lacks_keys(self, part: SubRequestPart) -> None:
        """Note that a server lacks a list of keys that a request has named."""
        self._known.forget(part.server_part)

    def send_again(
        self, sub_request: SubRequest, part: SubRequestPart, now: float, out: Effects
    ) -> None:
        part.ask_at(now + part.wait_s)
        self.wake(part.again_at)
        theirs = part.server_part
        buffers = self._known.told(theirs) if theirs.lists else theirs.buffers
        out.append(Send(theirs.server, self.message(sub_request, part), buffers))

    def message(self, sub_request: SubRequest, part: SubRequestPart) -> Request:
        """Return the request for a server, in the current view."""
        ask, server_part, in_flight = sub_request.ask, part.server_part, self._in_flight
        fields = (
            self._session.view_id,
            self._session.incarnation,
            sub_request.seq,
            next(iter(in_flight.sub_requests)),  # the oldest one, or this
            sub_request.clock,
            server_part.pushes,
            sub_request.advance,
            server_part.pulls,
            ask.weight,
            server_part.rates,
            ask.assign,
            in_flight.follows(sub_request, server_part.server) if sub_request.follows else (),
            ask.updates,
        )
        if server_part.lists:
            lists = self._known.lists(server_part)
            return ListedRequest(*fields, server_part.sizes, server_part.pulled, lists)
        if server_part.sizes or server_part.pulled:
            return EncodedRequest(*fields, server_part.sizes, server_part.pulled)
        return Request(*fields)

    # ------------------------------------------------------------------ probes

    def probe_due(self, now: float, out: Effects) -> None:
        """Probe the parts that are due, with exponential back-off."""
        for sub_request, part in self._in_flight.due(now):
            part.ask_at(now, min(2 * part.wait_s, self._probe_max_s))
            self._probe(sub_request, part, now, out)
            self._session.unanswered.asked(part.server_part.server, out)

    def probe(
        self, sub_request: SubRequest, now: float, out: Effects, urgent: bool = False
    ) -> None:
        """Probe a sub-request; if `urgent` servers nudge the workers that they wait for."""
        for part in sub_request.open_parts() if sub_request.sent else ():
            self._probe(sub_request, part, now, out, urgent)

    def probe_all(self, now: float, out: Effects) -> None:
        for sub_request in self._in_flight.sub_requests.values():
            self.probe(sub_request, now, out)

    def probe_soon(self, part: SubRequestPart, now: float) -> None:
        """Plan a probe of a part that its server could not admit yet; rarer if that goes on."""
        part.ask_soon(now, self._behind_s, self._probe_s)
        self.wake(part.again_at)

    def probe_ahead(
        self, sub_request: SubRequest, server: NodeId, now: float, out: Effects
    ) -> None:
        """Probe the sub-requests before this one: the server lacks one of them."""
        for earlier in self._in_flight.ahead(sub_request, server):
            self._probe(earlier, earlier.parts[server], now, out)

    def _probe(
        self,
        sub_request: SubRequest,
        part: SubRequestPart,
        now: float,
        out: Effects,
        urgent: bool = False,
    ) -> None:
        part.ask_at(now + part.wait_s)
        self.wake(part.again_at)
        probe = Probe(self._session.view_id, self._session.incarnation, sub_request.seq, urgent)
        out.append(Send(part.server_part.server, probe))
