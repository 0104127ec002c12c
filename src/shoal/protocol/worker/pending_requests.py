"""The caller's pending requests, their sub-requests, time-outs and order."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import msgspec

from shoal.errors import ShoalError
from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.requests import Reply
from shoal.protocol.views import FOREVER, NodeId
from shoal.protocol.worker.in_flight import SubRequest


class PendingRequest(msgspec.Struct, eq=False):
    """A caller's request that is not resolved.

    Attributes:
        expires_at: the time of the next time-out.
        timeout_s: the time-out; the request fails at its second expiry.
        patient: whether its time begins anew while it waits for computing workers or a busy server.
        sub_requests: the sub-requests that are not done.
        after: the ids of requests that have to be resolved first.
        nudged: whether the first time-out is over: servers were probed urgently.
        read_at: the clock at which it pulls.
    """

    expires_at: float
    timeout_s: float
    patient: bool
    sub_requests: list[SubRequest] = []
    after: list[int] = []
    clock_min: int = FOREVER
    round_weight: float = -1.0
    updates: int = -1
    nudged: bool = False
    read_at: int = 0

    def wait_on(self, now: float) -> None:
        """Restart the time-out: the request waits for a member that has reported that it lives."""
        self.nudged, self.expires_at = False, now + self.timeout_s

    def done(self, sub_request: SubRequest) -> bool:
        """Remove a sub-request that is done; return whether all are."""
        self.sub_requests.remove(sub_request)
        return not self.sub_requests

    def nudge(self, now: float) -> None:
        """Begin the second time-out, because the first one is over."""
        self.nudged, self.expires_at = True, now + self.timeout_s

    def applied(self, reply: Reply, done: SubRequest | None) -> bool:
        """Record a server's reply to a part, and the sub-request if it is done by that.

        Returns:
            Whether all sub-requests are done.
        """
        if reply.clock_min < self.clock_min:
            self.clock_min = reply.clock_min
        if reply.round_weight > self.round_weight:
            self.round_weight = reply.round_weight
        if reply.updates > self.updates:
            self.updates = reply.updates
        if done is None:
            return False
        self.sub_requests.remove(done)
        return not self.sub_requests

    def outcome(
        self, error: ShoalError | None, clock: int, uncounted: tuple[tuple[str, KeyRange], ...]
    ) -> Outcome:
        """Return the outcome for the caller; the worker is at `clock`."""
        at = -1 if self.clock_min == FOREVER else self.clock_min
        return Outcome(error, at, self.round_weight, None, self.updates, clock, uncounted)


class PendingRequests:
    """Pending requests by id. Invariant: no request waits for one that is not here."""

    def __init__(self) -> None:
        self._open: dict[int, PendingRequest] = {}
        self._followers: dict[int, list[int]] = {}  # request -> requests that come after it
        self.get = self._open.get

    def open(
        self,
        request_id: int,
        now: float,
        timeout_s: float,
        patient: bool,
        after: tuple[int, ...],
        sub_requests: list[SubRequest],
        read_at: int = 0,
    ) -> PendingRequest:
        """Add a request, which is resolved when all its sub-requests are done."""
        pending = PendingRequest(now + timeout_s, timeout_s, patient, sub_requests, read_at=read_at)
        self._open[request_id] = pending
        for each in after:
            if each in self._open:
                pending.after.append(each)
                self._followers.setdefault(each, []).append(request_id)
        return pending

    def also(self, sub_request: SubRequest) -> None:
        """Add a sub-request to its request, if the request is still pending."""
        pending = self._open.get(sub_request.request_id)
        if pending is not None:
            pending.sub_requests.append(sub_request)

    def close(self, request_id: int) -> tuple[PendingRequest, list[int]]:
        """Remove a request; return it, and the requests that came after it."""
        followers = []
        for follower in self._followers.pop(request_id, ()):
            other = self._open.get(follower)
            if other is not None:
                other.after.remove(request_id)
                followers.append(follower)
        return self._open.pop(request_id), followers

    def expired(self, now: float) -> Iterator[tuple[int, PendingRequest]]:
        """Yield the requests whose time-out is over; the caller may close others meanwhile."""
        for request_id, pending in list(self._open.items()):
            if now >= pending.expires_at and request_id in self._open:
                yield request_id, pending

    def wait_on(self, sender: NodeId, now: float) -> None:
        """Restart the time-outs of patient requests that were nudged and wait for a living member.

        A server reports that workers compute; the scheduler reports that a server is busy.
        """
        for pending in self._open.values():
            there = sender == SCHEDULER or any(
                sender in each.parts for each in pending.sub_requests
            )
            if there and pending.nudged and pending.patient:
                pending.wait_on(now)

    def wakes_at(self) -> float:
        return min((pending.expires_at for pending in self._open.values()), default=inf)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._open

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._open))
