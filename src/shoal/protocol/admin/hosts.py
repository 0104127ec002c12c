"""How an engine has processes and files on other hosts.

    desk     beside the run's supervisor: asks hosts, and hears what their processes do
    keeper   on each other host: says that it is there, does what it is asked, and reports

A keeper whose connection breaks says again that it is there, and repeats its reports. The desk then
repeats what is unanswered: files may be read, written and removed twice, and the keeper does a
numbered question that changes processes once. A host that is not back in time is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from math import inf

import msgspec

from shoal.errors import ProcessDied
from shoal.protocol.machine import (
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
)
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.hosts import (
    LISTING_BYTES_MAX,
    PIECE_BYTES,
    REPORTS_BYTES,
    REPORTS_MAX,
    HostAnswered,
    HostAsked,
    HostHeld,
    HostReports,
    HostReportsSeen,
)
from shoal.protocol.views import NodeId, Role

DESK: NodeId = "desk"
LOST_S = 20.0  # without a connection, after which a host is lost
AGAIN_S = 1.0  # between two times that a keeper says that it is there
WITH_DATA = ("start", "begin", "put")

Answer = Callable[[HostAsked, bytes], tuple[HostAnswered, bytes]]


class Leave(msgspec.Struct, frozen=True):
    """A request to a desk or keeper: end."""


class HostRequest(msgspec.Struct, frozen=True):
    """A request to a desk: ask a host, and resolve the number of the question.

    limit_s:  the time after which a host that has not answered is lost
    """

    host: NodeId
    asked: HostAsked
    data: bytes = b""
    limit_s: float = 60.0


class Reported(msgspec.Struct, frozen=True):
    """A request to a keeper: report something to the desk."""

    report: str


class HostCame(Note, frozen=True, tag="host came"):
    """A host is there for the first time."""

    host: NodeId
    held: HostHeld


class HostReported(Note, frozen=True, tag="host reported"):
    """A host has reported something; each report comes once, in order."""

    host: NodeId
    report: str


class HostLost(Note, frozen=True, tag="host lost"):
    """A host is lost; what it says later is ignored."""

    host: NodeId
    reason: str


class HostDesk:
    """Asks keepers, and hears their reports."""

    def __init__(self) -> None:
        self._lost: dict[NodeId, str] = {}
        self._heard: dict[NodeId, int] = {}  # the number of reports of each host that has come
        self._away: dict[NodeId, float] = {}  # since when a host has had no connection
        self._pending: dict[int, tuple[HostRequest, float]] = {}  # by number; and until when

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        asked = isinstance(message, HostAnswered) and self._asked(sender, message.number)
        if not asked or nbytes > LISTING_BYTES_MAX:
            return Discard("nothing is asked that has such an answer")
        return Sink([memoryview(bytearray(nbytes))])

    def problem_of(self, received: Received) -> str:
        return ""

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        match event:
            case Received(sender) if sender in self._lost:
                return []
            case Received(sender, HostHeld() as held):
                self._held(sender, held, out)
            case Received(sender, HostAnswered(number) as answered, payload):
                if self._asked(sender, number):
                    del self._pending[number]
                    data = bytes(payload.views[0]) if payload is not None else b""
                    out.append(Resolve(number, Outcome(value=(answered, data))))
            case Received(sender, HostReports(first, reports)) if sender in self._heard:
                heard = self._heard[sender]
                for report in reports[max(0, heard - first) :] if first <= heard else ():
                    out.append(HostReported(sender, report))
                    self._heard[sender] += 1
                out.append(Send(sender, HostReportsSeen(self._heard[sender])))
            case PeerLost(host) if host in self._heard and host not in self._lost:
                self._away[host] = now
            case Asked(_, HostRequest() as request):
                self._pending[request.asked.number] = request, now + request.limit_s
                self._send(request, out)
            case Asked(_, Leave()):
                return [Stop()]
        self._give_up(now, out)
        return out

    def deadline(self) -> float | None:
        away = min((since + LOST_S for since in self._away.values()), default=inf)
        late = min((until for _, until in self._pending.values()), default=inf)
        return min(away, late) if min(away, late) < inf else None

    def check(self) -> None:
        """Check nothing, because this machine has no invariant."""

    def address_of(self, node: NodeId) -> str | None:
        return None

    def role_of(self, node: NodeId) -> Role | None:
        return None

    def _asked(self, host: NodeId, number: int) -> bool:
        """Return whether a host has been asked a question of this number."""
        return number in self._pending and self._pending[number][0].host == host

    def _held(self, host: NodeId, held: HostHeld, out: Effects) -> None:
        if host not in self._heard:
            self._heard[host] = 0
            out.append(HostCame(host, held))
        out.append(Send(host, HostReportsSeen(self._heard[host])))
        if self._away.pop(host, None) is not None:
            for request, _ in self._pending.values():
                if request.host == host:
                    self._send(request, out)

    def _send(self, request: HostRequest, out: Effects) -> None:
        if request.host in self._lost:
            self._fail(request, out)
        else:
            buffers = (memoryview(request.data),) if request.data else ()
            out.append(Send(request.host, request.asked, buffers))

    def _give_up(self, now: float, out: Effects) -> None:
        """Lose the hosts that have been away, or silent, for too long."""
        for host, since in [*self._away.items()]:
            if now >= since + LOST_S:
                self._lose(host, f"its connection has been broken for {LOST_S:g} s", out)
        for request, until in [*self._pending.values()]:
            if now >= until:
                self._lose(request.host, f"it has not answered for {request.limit_s:g} s", out)

    def _lose(self, host: NodeId, reason: str, out: Effects) -> None:
        if host in self._lost:
            return
        self._lost[host] = reason
        self._away.pop(host, None)
        out.append(HostLost(host, reason))
        for request, _ in [*self._pending.values()]:
            if request.host == host:
                self._fail(request, out)

    def _fail(self, request: HostRequest, out: Effects) -> None:
        del self._pending[request.asked.number]
        error = ProcessDied(self._lost[request.host])
        out.append(Resolve(request.asked.number, Outcome(error=error)))


class HostKeeper:
    """Does what the desk asks, and reports to it.

    Args:
        held: what this host says of itself.
        desk: the desk's address.
        answer: the function that does what is asked, with the payload, and returns the answer.
    """

    def __init__(self, held: HostHeld, desk: str, answer: Answer) -> None:
        self._held = held
        self._desk = desk
        self._answer = answer
        self._met = False  # whether the desk has answered on the present connection
        self._again_at = 0.0
        self._reports: deque[str] = deque()  # that the desk may not have seen
        self._first = 0  # the number of the first of them
        self._sent = 0  # the number of the first that was never sent
        self._done: dict[int, tuple[HostAnswered, bytes]] = {}  # answers about processes

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        brings = isinstance(message, HostAsked) and message.what in WITH_DATA and sender == DESK
        if not brings or nbytes > PIECE_BYTES:
            return Discard("the desk alone sends tasks and files, in pieces")
        return Sink([memoryview(bytearray(nbytes))])

    def problem_of(self, received: Received) -> str:
        if isinstance(received.message, HostAsked) and received.sender != DESK:
            return "the desk alone asks"
        return ""

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        match event:
            case Received(_, HostAsked() as asked, payload):
                data = bytes(payload.views[0]) if payload is not None else b""
                answered, data = self._once(asked, data)
                out.append(Send(DESK, answered, (memoryview(data),) if data else ()))
            case Received(sender, HostReportsSeen(until)) if sender == DESK:
                while self._reports and self._first < until:
                    self._reports.popleft()
                    self._first += 1
                unsent = self._sent < self._first + len(self._reports)
                if not self._met or unsent:
                    self._met = True
                    self._report(out)
            case PeerLost(host) if host == DESK:
                self._met, self._again_at = False, now
            case Asked(_, Reported(report)):
                self._reports.append(report)
                if self._met:
                    self._report(out)
            case Asked(_, Leave()):
                return [Stop()]
        if not self._met and now >= self._again_at:
            self._again_at = now + AGAIN_S
            out.append(Send(DESK, self._held))
        return out

    def deadline(self) -> float | None:
        return None if self._met else self._again_at

    def check(self) -> None:
        """Check nothing, because this machine has no invariant."""

    def address_of(self, node: NodeId) -> str | None:
        return self._desk if node == DESK else None

    def role_of(self, node: NodeId) -> Role | None:
        return None

    def _once(self, asked: HostAsked, data: bytes) -> tuple[HostAnswered, bytes]:
        """Answer a question; one that starts or signals a process is done once."""
        if asked.what not in ("start", "signal", "begin"):
            return self._answer(asked, data)
        if asked.number not in self._done:
            self._done[asked.number] = self._answer(asked, data)
        return self._done[asked.number]

    def _report(self, out: Effects) -> None:
        reports: list[str] = []
        nbytes = 0
        for each in islice(self._reports, REPORTS_MAX):
            nbytes += 4 * len(each)  # bytes that a character has at most
            if reports and nbytes > REPORTS_BYTES:
                break
            reports.append(each)
        if reports:
            self._sent = self._first + len(reports)
            out.append(Send(DESK, HostReports(self._first, (*reports,))))
